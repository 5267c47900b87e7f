"""Fitting and judging on other rows: no row is judged by a fit that saw it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_scores import NAMES, sample, spec_of

from labelwise.calibration import Choice, platt
from labelwise.decide import ExpectedF, Threshold, TopK
from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.evaluation import evaluate
from labelwise.links import Link, Sigmoid
from labelwise.methods import link_to_spec
from labelwise.predictions import Predictions
from labelwise.scores import (
    FitPlan,
    ScoreTable,
    crossfit,
    decision,
    fixed_rule,
    judge,
    judge_as_given,
    read_fitted,
    read_run,
    read_scores,
    save_calibration,
    save_json,
)
from labelwise.scores.fit import folds_of


def table_of(predictions, split=None):
    return ScoreTable("scores.csv", predictions, None if split is None else np.array(split))


def test_no_row_is_judged_by_a_fit_that_saw_it():
    predictions = sample(53)
    fits = []

    def fit(part):
        fits.append(set(part.ids))
        shift = float(len(fits))

        class Marked(Link):
            def log_probs(self, logits):
                return Sigmoid().log_probs(np.full_like(logits, shift))

        return Marked(), Threshold(0.5)

    made = crossfit(predictions, fit, folds=5)
    judged_by = made.log_odds[:, 0].round().astype(int).tolist()
    for name, number in zip(predictions.ids, judged_by, strict=True):
        assert name not in fits[number - 1]
    assert sorted(len(seen) for seen in fits) == [42, 42, 42, 43, 43]
    assert made.sets.all()


def test_folds_are_even_and_must_fit():
    assert np.bincount(folds_of(17, 5, 0)).tolist() == [4, 4, 3, 3, 3]
    for folds in (1, 18):
        with pytest.raises(SettingsError, match="between 2 and the 17 rows"):
            folds_of(17, folds, 0)


def test_one_undivided_table_is_judged_honestly_and_says_so():
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(60, 5, generator=generator)
    labels = torch.randint(0, 2, (60, 5), generator=generator).to(torch.uint8)
    ids = [str(row) for row in range(60)]
    predictions = Predictions(ids, noise, labels, None, NAMES, "", Sigmoid())
    judged = judge(table_of(predictions), FitPlan("platt"), query_length=0)
    fooled = evaluate(predictions, Sigmoid(), calibrated=judged.link, query_length=0)
    assert judged.evaluation.after.log_loss > np.log(2) > fooled.after.log_loss
    assert "no row is judged by a fit that saw it" in judged.evaluation.notes[0]
    assert "cross-fitted in 5 folds" in judged.evaluation.calibrator
    assert judged.fitted_on == "all 60 rows"


@pytest.mark.parametrize("files", [1, 2])
def test_splits_and_files_keep_the_roles_apart(files):
    whole = sample(200)
    split = ["val"] * 120 + ["test"] * 80
    table = table_of(whole, split)
    if files == 1:
        judged = judge(table, FitPlan("platt"), fit_on="val", report_on="test")
    else:
        shuffled = table.part("test")
        order = [4, 3, 2, 1, 0]
        other = replace(
            shuffled,
            names=tuple(shuffled.names[k] for k in order),
            logits=shuffled.logits[:, order],
            labels=shuffled.labels[:, order],
        )
        judged = judge(table_of(table.part("val")), FitPlan("platt"), other=table_of(other))
    link = platt(whole.logits[:120], whole.labels[:120], Sigmoid())
    assert link_to_spec(judged.link) == link_to_spec(link)
    expected = evaluate(table.part("test"), Sigmoid(), Threshold(0.5), calibrated=link)
    assert judged.evaluation.after == expected.after
    assert judged.evaluation.data.rows == 80


def test_auto_chooses_once_and_says_what_it_compared():
    judged = judge(table_of(sample(80)), FitPlan("auto"), query_length=0)
    names = [row.name for row in judged.made.compared]
    assert "temperature" in names
    assert judged.made.link_words.startswith(names[0].replace(" ", "-"))
    assert "chosen by log loss over 5 folds" in judged.evaluation.calibrator


def test_auto_may_leave_the_scores_as_they_are(monkeypatch):
    predictions = sample(60)
    choice = Choice(predictions.link, "as it is", (), 5)
    kept = (None, "", choice)
    monkeypatch.setattr("labelwise.scores.fit.fit_calibrator", lambda *rows, **options: kept)
    kept = judge(table_of(predictions), FitPlan("auto"), query_length=0)
    assert kept.made.link is None
    assert kept.evaluation.after is None
    assert "as they are" in kept.evaluation.notes[1]
    assert kept.link is predictions.link


def test_roles_that_overlap_are_refused():
    table = table_of(sample(40), ["val"] * 20 + ["test"] * 20)
    with pytest.raises(SettingsError, match="must differ, got 'val' twice"):
        judge(table, FitPlan("platt"), fit_on="val", report_on="val")
    with pytest.raises(SettingsError, match="go together"):
        judge(table, FitPlan("platt"), fit_on="val")
    for judged in (lambda: judge(table, FitPlan("platt")), lambda: judge_as_given(table, None)):
        with pytest.raises(SettingsError, match="has the splits test, val; name one"):
            judged()
    assert judge_as_given(table, None, split="all").data.rows == 40
    with pytest.raises(DataError, match="share rows, first 'image-0'"):
        judge(table_of(sample(40)), FitPlan("platt"), other=table_of(sample(30)))
    other = replace(sample(30), names=("dog", "cat", "beach", "car", "tree"))
    with pytest.raises(DataError, match=r"label '<b>tree & co</b>' of .* is missing"):
        judge(table_of(sample(40)), FitPlan("platt"), other=table_of(other))


def test_scores_that_only_rank_need_a_calibrator_before_a_rule():
    ranks = table_of(sample(60).with_link(None))
    with pytest.raises(SettingsError, match="only rank"):
        judge(ranks, FitPlan("none", "0.5"))
    judged = judge(ranks, FitPlan("platt", "none"), query_length=0)
    assert judged.evaluation.before is None
    assert judged.evaluation.after is not None


def test_fixed_rules_by_name():
    texts = ("0.25", "top-3", "none", "expected-f")
    assert [fixed_rule(text) for text in texts] == [Threshold(0.25), TopK(3), None, ExpectedF()]
    with pytest.raises(SettingsError, match="must be a threshold such as"):
        fixed_rule("best-f")


def test_what_is_written_can_be_read_back(tmp_path):
    predictions = sample(80, unknown=0.2)
    judged = judge(table_of(predictions), FitPlan("platt"), query_length=0)
    save_calibration(tmp_path, judged, predictions)
    link = read_fitted(tmp_path / "link.json").link
    read = read_scores(tmp_path / "predictions.parquet", None).predictions
    torch.testing.assert_close(read.link(read.logits), link(predictions.logits))
    plain = read_scores(tmp_path / "probabilities.parquet", "probs").predictions
    probs = plain.link(plain.logits).astype(np.float32)
    torch.testing.assert_close(probs, link(predictions.logits), rtol=1e-6, atol=1e-9)
    assert np.array_equal(plain.observed, predictions.observed)
    save_json(tmp_path / "rule.json", decision(judged))
    record = json.loads((tmp_path / "rule.json").read_text())
    assert set(record["thresholds"]) == set(NAMES)
    assert record["figures"]["macro_f1"] == judged.evaluation.sets.macro_f1


def test_a_run_is_read_from_its_files(tmp_path):
    predictions = sample(40)
    predictions.save(tmp_path / "predictions" / "test.parquet")
    link = platt(predictions.logits, predictions.labels, Sigmoid(), scope="shared")
    spec = spec_of(NAMES, link, TopK(2))
    spec.save(tmp_path / "model.json")
    run = read_run(tmp_path, "test")
    assert run.rule == TopK(2)
    assert link_to_spec(run.calibrated) == link_to_spec(link)
    spec.model_copy(update={"link": {"kind": "sigmoid"}}).save(tmp_path / "model.json")
    assert read_run(tmp_path, "test").calibrated is None
    with pytest.raises(CheckpointError, match="no predictions of 'val'; there are: test"):
        read_run(tmp_path, "val")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.json must have format 1, got None"):
        read_run(tmp_path, "test")
    with pytest.raises(CheckpointError, match="folder of a finished run"):
        read_run(tmp_path / "nowhere", "test")

"""Fits judged on other rows, in groups, and promises. Oracles: the file, copies of rows, sets."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_scores import NAMES, sample, spec_of

from labelwise.base.groups import Groups
from labelwise.calibration import isotonic, platt
from labelwise.decide import NEVER, AtMost, ExpectedF, Threshold, TopK, find_promise
from labelwise.decide.promised_rules import same_sets
from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.evaluation import evaluate
from labelwise.learn.methods import link_to_spec
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.predictions import Predictions
from labelwise.scores import FitPlan, ScoreTable, crossfit, judge, promise_scores, read_scores
from labelwise.scores.fit import fit_calibrator, fixed_rule, folds_of, judge_as_given, make_promise
from labelwise.scores.fitted import decision, read_fitted, save_calibration, save_json
from labelwise.scores.run import read_run


def table_of(predictions, split=None):
    return ScoreTable("scores.csv", predictions, None if split is None else np.array(split))


def test_no_row_is_judged_by_a_fit_that_saw_it():
    predictions = sample(53)
    fits = []

    class Marked(Link):
        def __init__(self, shift):
            self.shift = shift

        def log_probs(self, logits):
            return Sigmoid().log_probs(np.full_like(logits, self.shift))

    def fit(part):
        fits.append(set(part.ids))
        return Marked(float(len(fits))), Threshold(0.5)

    made = crossfit(predictions, fit, folds=5)
    judged_by = made.log_odds[:, 0].round().astype(int).tolist()
    for name, number in zip(predictions.ids, judged_by, strict=True):
        assert name not in fits[number - 1]
    assert sorted(len(seen) for seen in fits) == [42, 42, 42, 43, 43]
    assert made.sets.all()


def test_one_undivided_table_is_judged_honestly_and_says_so():
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(60, 5, generator=generator)
    labels = torch.randint(0, 2, (60, 5), generator=generator)
    predictions = replace(sample(60), logits=noise, labels=labels)
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
        test, order = table.part("test"), [4, 3, 2, 1, 0]
        turned = {"logits": test.logits[:, order], "labels": test.labels[:, order]}
        other = table_of(replace(test, names=tuple(test.names[::-1]), **turned))
        judged = judge(table_of(table.part("val")), FitPlan("platt"), other=other)
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


def test_roles_that_overlap_are_refused():
    table = table_of(sample(40), ["val"] * 20 + ["test"] * 20)
    with pytest.raises(SettingsError, match="must differ, got 'val' twice"):
        judge(table, FitPlan("platt"), fit_on="val", report_on="val")
    with pytest.raises(SettingsError, match="go together"):
        judge(table, FitPlan("platt"), fit_on="val")
    with pytest.raises(SettingsError, match="the splits test, val; name two with --fit-on and --r"):
        judge(table, FitPlan("platt"))
    with pytest.raises(SettingsError, match="has the splits test, val; name one"):
        judge_as_given(table, None)
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
    judged = judge(ranks, FitPlan("platt", "none"), query_length=0).evaluation
    assert (judged.before is None, judged.after is None) == (True, False)


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
    assert (run.rule, link_to_spec(run.calibrated)) == (TopK(2), link_to_spec(link))
    spec.model_copy(update={"link": {"kind": "sigmoid"}}).save(tmp_path / "model.json")
    assert read_run(tmp_path, "test").calibrated is None
    with pytest.raises(CheckpointError, match="no predictions of 'val'; there are: test"):
        read_run(tmp_path, "val")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.json must have format 1, got None"):
        read_run(tmp_path, "test")
    with pytest.raises(CheckpointError, match="folder of a finished run"):
        read_run(tmp_path / "nowhere", "test")


GROUPED = """id,split,group,score:dog,label:dog
a,x,p1,0.5,1
b,x,p1,0.25,0
c,y,p2,-1,0
d,y,p3,2,1
"""


def of_patients(rows=300):
    return replace(sample(rows), group=[f"p{row // 5}" for row in range(rows)])


def test_a_group_column_is_read_and_follows_its_rows(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(GROUPED)
    table = read_scores(path, "logits")
    assert list(table.predictions.group) == ["p1", "p1", "p2", "p3"]
    assert list(table.part("y").group) == ["p2", "p3"]
    assert table.part("y").groups is None  # each photo is its own
    assert table.predictions.groups.count == 3
    path.write_text(GROUPED.replace("p2", " "))
    with pytest.raises(DataError, match=r"row 3 has no 'group'; give it one"):
        read_scores(path, "logits")
    path.write_text(GROUPED.replace("p3", "p1"))
    with pytest.raises(DataError, match="1 group can be found on both sides, first 'p1': what is"):
        judge(read_scores(path, "logits"), FitPlan("platt-shared"), fit_on="x", report_on="y")


def test_groups_may_stand_with_the_labels(tmp_path):
    scores, labels = tmp_path / "scores.csv", tmp_path / "labels.csv"
    scores.write_text("id,score:dog\nb,0.25\na,0.5\nz,1\n")
    labels.write_text("id,group,label:dog\na,p1,1\nb,p2,0\n")
    read = read_scores(scores, "logits", labels=labels).predictions
    assert (list(read.ids), list(read.group)) == (["b", "a"], ["p2", "p1"])
    scores.write_text("id,group,score:dog\nb,p2,0.25\n")
    with pytest.raises(DataError, match="both name groups; leave one of them out"):
        read_scores(scores, "logits", labels=labels)


def test_groups_are_saved_joined_and_taken(tmp_path):
    some = of_patients(20)
    some.save(tmp_path / "p.parquet")
    again = Predictions.load(tmp_path / "p.parquet")
    assert list(again.group) == list(some.group)
    assert list(again.take(np.array([3, 17])).group) == ["p0", "p3"]
    assert list(again.joined(some).group) == [*some.group, *some.group]
    assert again.joined(sample(3)).group is None
    with pytest.raises(ValueError, match="group must name 20 groups, got 1"):
        replace(some, group=["x"])


def test_folds_hold_whole_groups():
    some = of_patients()
    dealt = folds_of(300, 5, 1, some.groups)
    for name in set(some.group):
        assert len(set(dealt[np.array(some.group) == name])) == 1
    assert np.bincount(dealt).tolist() == [60] * 5
    with pytest.raises(SettingsError, match="between 2 and the 60 groups"):
        folds_of(300, 61, 1, some.groups)

    seen = []
    crossfit(some, lambda part: seen.append(len(set(part.group))) or (None, None), folds=5, seed=1)
    assert seen == [48] * 5


def test_a_promise_keeps_groups_from_its_calibrator_and_tests_them():
    grouped, alone = (
        promise_scores(table_of(rows), "recall=0.6", calibrator="platt-shared").promised.promises[0]
        for rows in (of_patients(1500), sample(1500))
    )
    assert (grouped.n, grouped.groups <= 150, grouped.test) == (750, True, "betting")
    assert (alone.groups, alone.test) == (None, "Hoeffding-Bentkus")


def test_auto_deals_whole_groups_into_its_folds(monkeypatch):
    given = {}
    noted = lambda *rows, **options: given.update(options)  # noqa: E731
    monkeypatch.setattr("labelwise.calibration.fit_calibrator", noted)
    fit_calibrator("auto", of_patients(100), None)
    assert Groups.of(given["groups"]).count == 20


def test_the_sets_are_those_that_were_tested_and_the_link_saw_all_rows():
    rows = sample(600, seed=1)
    before, after = (
        platt(rows.logits[:n], rows.labels[:n], Sigmoid(), scope="label") for n in (90, 600)
    )
    for rule in (Threshold(0.4), Threshold((0.2, 0.9, NEVER, 0.0, 1e-4))):
        moved = same_sets(rule, before, after, rows.logits, rows.names)
        other = sample(1000, seed=2)
        for part in (rows, other):
            expected = rule(before.decision_probs(part.logits))
            np.testing.assert_array_equal(moved(after.decision_probs(part.logits)), expected)
    # Thresholds that are scores of photos themselves, where rounding decides.
    scores = before.decision_probs(rows.logits)
    for row in range(20):
        rule = Threshold(tuple(scores[row].tolist()))
        moved = same_sets(rule, before, after, rows.logits, rows.names)
        np.testing.assert_array_equal(moved(after.decision_probs(rows.logits)), rule(scores))
    found = promise_scores(table_of(rows), "recall=0.8", calibrator="platt", cross_fit=True)
    expected = platt(rows.logits, rows.labels, Sigmoid())(rows.logits)
    torch.testing.assert_close(found.link(rows.logits), expected)
    assert found.promised.promises[0].n == 480
    assert "fitted on 120 others, and for the probabilities again on all 600" in found.fitted_on


def test_rounding_lets_no_photo_in():
    """A threshold so near a photo below it that float32 cannot tell them apart."""

    class Steep(Link):
        def log_probs(self, logits):
            return Sigmoid().log_probs(1e6 * logits)

    rows = replace(sample(2, names=("dog",)), logits=torch.tensor([[0.0], [1.0]]))
    moved = same_sets(Threshold(0.501), Steep(), Sigmoid(), rows.logits, rows.names)
    assert moved(Sigmoid().decision_probs(rows.logits))[:, 0].tolist() == [False, True]


def test_what_cannot_be_cross_fitted_is_refused():
    rows = sample(300, seed=3)
    table = table_of(rows)
    with pytest.raises(SettingsError, match="of a calibrator; name one"):
        promise_scores(table, "recall=0.8", cross_fit=True)
    with pytest.raises(SettingsError, match="tags take the most probable"):
        promise_scores(table, "tags=0.8", calibrator="platt", cross_fit=True)
    steps = isotonic(rows.logits, rows.labels, Sigmoid())
    with pytest.raises(SettingsError, match="must rise, and at the threshold of 'dog'"):
        same_sets(Threshold(0.5), Sigmoid(), steps, rows.logits, rows.names)
    for rule, link in ((AtMost(Threshold(0.5), 1), Sigmoid()), (Threshold(0.5), Softmax())):
        with pytest.raises(SettingsError, match="links of single labels"):
            same_sets(rule, link, Sigmoid(), rows.logits, rows.names)


def test_a_promise_is_not_made_on_rows_that_fitted_its_link():
    rows = sample(60, seed=1)
    held, fitted = rows.take(np.arange(40)), rows.take(np.arange(39, 60))
    how = {"photos": "scores.csv", "confidence": 0.9, "seed": 0}
    with pytest.raises(DataError, match=f"1 of 40 were used for fitting, first '{rows.ids[39]}'"):
        make_promise(find_promise("recall=0.6"), Sigmoid(), held, fitted, **how)

"""The survey on small features, for real; oracles: slow loops, tests by hand, kept results."""

import runpy
import sys
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import t as student

from labelwise.cli import main
from labelwise.errors import DataError
from labelwise.papers import survey
from labelwise.papers.measures import promise_power
from labelwise.papers.survey import critical_difference, ranks_of
from labelwise.predictions import Predictions
from labelwise.tables import load

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "survey.py"))
p_value = SCRIPT["p_value"]
METHODS_HERE = ["bce", "two-way"]


def feature_file(folder, soft=False):
    random = np.random.default_rng(0)
    features = 5 + 3 * random.normal(size=(200, 6))
    truth = features[:, :3] + random.normal(size=(200, 3)) > 6
    labels = np.where(truth, 0.8, 0.1).astype(np.float32) if soft else truth
    names = np.array(["a", "b", "c"])
    np.savez(folder / "rows.npz", features=features, labels=labels, label_names=names)
    return folder / "rows.npz"


def command(folder, *more):
    return [
        *("papers", "run", "survey", "--quick", "--seeds", "3", "--rows", ",".join(METHODS_HERE)),
        *("--source", f"scene={folder / 'rows.npz'}", "-o", str(folder / "out")),
        *("--set", "steps=12", "--set", "cells=full,half", *more),
    ]


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survey")
    feature_file(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["labelwise", *command(folder)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return folder


def cell_of(figures, column="mAP@class", **made):
    """Return a cell of these figures by method and seed."""
    facts = {"made": {"seeds": 3, "images": {"train": 60, "val": 15, "test": 25}, "labels": 2}}
    methods = {
        name: survey.Surveyed({"0.01": 0.5}, 0.01, tuple({column: value} for value in values))
        for name, values in figures.items()
    }
    return survey.SurveyCell(made.pop("data", "x"), made.pop("cell", "full"), facts, methods)


def test_every_cell_is_a_file_with_its_command_tries_and_seeds(surveyed):
    for name in ("full", "half"):
        found = survey.SurveyCell.load(surveyed / "out" / f"scene.{name}.json")
        assert found.facts["command"].startswith("labelwise papers run survey --quick")
        assert {"commit", "machine"} <= found.facts.keys()
        images = {"train": 60 if name == "half" else 120, "val": 30, "test": 50}
        assert found.facts["made"]["images"] == images
        for one in found.methods.values():
            assert len(one.figures) == len(one.tries) == 3  # --quick; five or more otherwise
            near = min(one.tries, key=lambda lr: abs(float(lr) - one.rate))
            assert one.tries[near] == max(one.tries.values())
        assert "log loss before" in found.methods["bce"].figures[0]
        assert "log loss before" not in found.methods["two-way"].figures[0]  # it only ranks
    assert (surveyed / "out" / "survey.md").read_text("utf-8").count("| `bce` | proper |") == 2
    (surveyed / "x.full.json").write_text("{}")
    with pytest.raises(DataError, match="is not the result of a survey"):
        survey.SurveyCell.load(surveyed / "x.full.json")


def test_every_seed_deals_and_hides_again(tmp_path):
    rows = survey.rows_of("scene", f"features:{feature_file(tmp_path)}", survey.SurveyPlan())
    truth = load(tmp_path / "rows.npz").targets()[0]
    for cell in survey.CELLS:
        first, again, second = (survey.deal(rows, cell, seed) for seed in (0, 0, 1))
        torch.testing.assert_close(first.labels["train"], again.labels["train"])
        assert not torch.equal(first.features["test"], second.features["test"])
        if first.known:
            assert not torch.equal(first.known["train"], second.known["train"])
        mean = first.features["train"].mean(0)
        torch.testing.assert_close(mean, torch.zeros(6), atol=1e-4, rtol=0)
    kinds = ("tenth", "single", "noise", "full")
    tenth, single, noise, full = (survey.deal(rows, cell, 0) for cell in kinds)
    full = full.labels["train"]
    assert 0.05 < tenth.known["train"].float().mean() < 0.15
    torch.testing.assert_close(single.known["train"].sum(1), full.any(1).long())
    assert full[single.known["train"]].all()
    assert 0.02 < (noise.labels["train"] != full)[full == 1].float().mean() < 0.25
    assert abs(noise.labels["train"].sum() - full.sum()) < 0.2 * full.sum()
    assert truth.mean() == pytest.approx(float(full.mean()), abs=0.1)


def test_validation_is_hidden_and_flipped_as_training_is(tmp_path):
    rows = survey.rows_of("scene", f"features:{feature_file(tmp_path)}", survey.SurveyPlan())
    truth = survey.deal(rows, "full", 0).labels["val"]
    for cell in survey.CELLS:
        complete, alike = survey.deal(rows, cell, 0), survey.deal(rows, cell, 0, "alike")
        assert torch.equal(complete.labels["val"], truth)
        assert "val" not in complete.known
        assert torch.equal(complete.labels["train"], alike.labels["train"])
        assert torch.equal(alike.labels["test"], complete.labels["test"])
        assert torch.equal(alike.labels["val"], truth) == (cell in ("full", "half"))
    tenth, single, noise = (
        survey.deal(rows, cell, 0, "alike") for cell in ("tenth", "single", "noise")
    )
    assert 0 < tenth.known["val"].float().mean() < 0.3
    assert not (tenth.labels["val"] * ~tenth.known["val"]).any()
    known = tenth.known["val"]
    shares = (truth * known).sum(0) / known.sum(0).clamp(min=1)
    assert tenth.facts(False).mean_labels == pytest.approx(float(shares.sum()))
    assert (
        tenth.predictions("val", torch.zeros(truth.shape), None).observed.tolist() == known.tolist()
    )
    torch.testing.assert_close(single.labels["val"].sum(1), truth.any(1).float())
    assert single.facts(False).mean_labels == pytest.approx(float(truth.any(1).float().mean()))
    assert 0 < (noise.labels["val"] != truth).float().mean() < 0.3


def test_five_rates_on_both_sides_and_more_while_the_best_is_at_an_edge(tmp_path, monkeypatch):
    rows = survey.rows_of("scene", f"features:{feature_file(tmp_path)}", survey.SurveyPlan())
    plan = survey.SurveyPlan(seeds=1, overrides={"steps": 4})
    tried = [float(lr) for lr in survey.survey_method("bce", "full", rows, plan).tries]
    assert len(set(tried)) == len(tried) >= 5
    assert min(tried) < survey.RATES[2] < max(tried)
    monkeypatch.setattr(  # the higher the rate, the better
        "labelwise.papers.survey.average_precision",
        lambda scores, *_: type("Mean", (), {"value": float(np.abs(scores).mean())}),
    )
    found = survey.survey_method("bce", "full", rows, plan)
    rates = sorted(float(lr) for lr in found.tries)
    assert rates[-1] > survey.RATES[-1] * 2.9
    assert len(rates) == 9


def test_soft_labels_are_trained_on_as_they_are(tmp_path):
    file = feature_file(tmp_path, soft=True)
    rows = survey.rows_of("scene", f"features:{file}", survey.SurveyPlan())
    dealt = survey.deal(rows, "full", 0)
    assert dealt.trained_on(True).unique().tolist() == pytest.approx([0.1, 0.8])
    assert set(dealt.trained_on(False).unique().tolist()) == {0.0, 1.0}
    assert dealt.facts(True).priors[0] < dealt.facts(False).priors[0] + 0.2


def test_a_second_command_trains_nothing_and_another_budget_is_refused(surveyed, call):
    before = (surveyed / "out" / "scene.full.json").read_text()
    assert call(*command(surveyed))[0] == 0
    assert (surveyed / "out" / "scene.full.json").read_text() == before
    code, said = call(*command(surveyed, "--set", "steps=3"))
    assert code
    assert "started with other data, backbone or budget" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "x.npz"], "must be SET=SOURCE"),
        (["--query", "dog"], "--query does not apply: the survey does not take it"),
        (["--set", "options.k=3"], "the survey chooses options.k itself"),
        (["--set", "cells=fool"], "the survey has no cell 'fool'; did you mean 'full'"),
        (["--root", "nowhere"], "the survey needs data"),
        (["--rows", "bcee", "--source", "scene=rows.npz"], "did you mean 'bce'"),
        (["--source", "coco=photos"], "name their backbone with --features"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, monkeypatch, call, words, message):
    monkeypatch.chdir(tmp_path)
    feature_file(tmp_path)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / label / f"{label}.png")
    code, said = call("papers", "run", "survey", "--quick", *words)
    assert code
    assert message in said


def test_tests_and_ranks_are_those_of_nadeau_bengio_and_demsar():
    values = {"a": [0.9, 0.8, 0.95], "b": [0.5, 0.6, 0.55]}
    gaps = np.array(values["a"]) - values["b"]
    gap, p = p_value(cell_of(values), "a", "b", "mAP@class")
    statistic = gaps.mean() / (gaps.std(ddof=1) * sqrt(1 / 3 + 25 / 60))
    assert gap == pytest.approx(gaps.mean())
    assert p == pytest.approx(2 * student.sf(statistic, 2))
    assert p_value(cell_of(values, "log loss after"), "a", "b", "log loss after")[0] == -gap
    assert p_value(cell_of(values), "a", "a", "mAP@class") == (0.0, 1.0)
    # Equal figures share a rank and a missing one is last.
    cell = cell_of({"a": [0.5], "b": [0.7], "c": [0.70001], "d": [0.6]})
    assert ranks_of(cell, "mAP@class", "abcd") == {"a": 4, "b": 1.5, "c": 1.5, "d": 3}
    lost = cell_of({"a": [0.5], "b": [0.7]}, "ACE before")
    assert ranks_of(lost, "ACE before", ("a", "b", "none")) == {"a": 1, "b": 2, "none": 3}
    # Oracle: Demsar's printed table of critical differences.
    for methods, sets, printed in ((10, 5, 3.164 * sqrt(110 / 30)), (2, 14, 1.960 * sqrt(6 / 84))):
        assert critical_difference(methods, sets) == pytest.approx(printed, rel=1e-3)


def test_the_page_and_its_diagram_are_made_of_the_kept_results():
    made = SCRIPT["made"]()
    assert {file: file.read_text(encoding="utf-8") for file in made} == made != {}
    for file in SCRIPT["KEPT"].glob("*.json"):
        facts = survey.SurveyCell.load(file).facts
        assert facts["command"].startswith("labelwise papers run survey ")
        assert facts["made"]["seeds"] >= 5
        assert inf > len(facts["commit"]) > 6


def slow_list(scores, right, library):
    """The longest list, every length tried: m (1 + wrong held-out above) / (n + 1) <= 0.1 L."""
    lowest = np.inf
    for length, score in enumerate(np.sort(library)[::-1], 1):
        above = (~right & (scores >= score)).sum()
        if len(library) * (1 + above) / (len(scores) + 1) <= 0.1 * length:
            lowest = score
    return lowest


def test_the_power_of_promises_is_that_of_a_slow_loop():
    random = np.random.default_rng(1)
    logits = random.normal(size=(400, 4)) * 4
    labels = random.random((400, 4)) < 1 / (1 + np.exp(-logits))
    labels[:, 3] = False
    ids, truth = [str(row) for row in range(400)], labels.astype(np.uint8)
    test = Predictions(ids, logits.astype("f4"), truth, None, tuple("abcd"), "test", None)
    half = np.random.default_rng(0).permutation(400) % 2
    power, wrong = [], []
    for scores, present in zip(test.logits.T.astype(float), labels.T, strict=True):
        for side in (0, 1):
            held, library = half != side, half == side
            cut = slow_list(scores[held], present[held], scores[library])
            listed, truth = scores[library] >= cut, present[library]
            wrong.append((~truth[listed]).mean() if listed.any() else 0.0)
            if truth.any():
                power.append(truth[listed].sum() / truth.sum())
    found = promise_power(test)
    assert found.power == pytest.approx(np.mean(power))
    assert found.wrong == pytest.approx(np.mean(wrong))
    assert 0.3 < found.power < 1

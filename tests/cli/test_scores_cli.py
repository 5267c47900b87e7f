"""The verbs for people with their own scores, run as they are typed."""

import json

import numpy as np
import pytest
from sample_scores import NAMES, sample, spec_of
from typed import must_run, run

from labelwise.decide import AtMost, Threshold
from labelwise.errors import LabelwiseError
from labelwise.evaluation import Evaluation
from labelwise.links import Sigmoid
from labelwise.scores import read_scores

APART = ("--fit-on", "val", "--report-on", "test")


def saved_scores(path, rows, *, divided=True, unknown=0.0):
    """Write logits of val and test rows, or probabilities of an undivided table."""
    own, more = sample(rows, unknown=unknown), {}
    if own.observed is not None:
        more["observed"] = own.observed
    if divided:
        more["split"] = np.repeat(["val", "test"], rows // 2)
    given = own.logits if divided else 1 / (1 + np.exp(-own.logits))
    np.savez(path, scores=given, labels=own.labels, names=np.array(NAMES), **more)
    return path


@pytest.fixture
def scores(tmp_path):
    return saved_scores(tmp_path / "scores.npz", 200, unknown=0.1)


@pytest.fixture
def undivided(tmp_path):
    return saved_scores(tmp_path / "all.npz", 200, divided=False)


def test_evaluate_says_the_numbers_and_writes_the_report(scores, tmp_path):
    words = ("--scores", "logits", "--split", "test", "-o", tmp_path / "out")
    result = must_run("evaluate", scores, *words)
    for words in ("mAP over labels", "worst labels", "<b>tree & co</b>", "equal-width bins"):
        assert words in result.stdout
    there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert {"report.html", "evaluation.json", "charts/reliability-all-entries.svg"} <= there
    saved = Evaluation.load(tmp_path / "out" / "evaluation.json")
    assert (saved.data.rows, saved.headline[0].name) == (100, "mAP over labels")


def test_evaluate_a_run_and_how_it_decides(tmp_path):
    sample(60).save(tmp_path / "predictions" / "test.parquet")
    spec_of(NAMES, Sigmoid(), AtMost(Threshold(0.4), 2)).save(tmp_path / "model.json")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 0.5}\n')
    result = must_run("evaluate", tmp_path, "-o", tmp_path / "again")
    words = "probability at least 0.4, and of these at most the 2 most probable"
    assert words in " ".join(result.stdout.split())
    page = (tmp_path / "again" / "report.html").read_text()
    assert 'id="training"' in page
    assert 'id="examples"' in page


def test_calibrate_between_splits(scores, tmp_path):
    out = tmp_path / "calibrated"
    words = ("--scores", "logits", "--calibrator", "platt", *APART)
    result = must_run("calibrate", scores, *words, "-o", out)
    stages = json.loads((out / "before-after.json").read_text())
    assert all(stage in result.stdout for stage in stages)
    assert all(stages["after"][name] < stages["before"][name] for name in ("ECE", "log loss"))
    assert len(read_scores(out / "predictions.parquet", None).predictions) == 200
    assert (out / "charts" / "reliability-all-entries.svg").exists()


def test_few_labels_print_a_table_or_json_alone(undivided, tmp_path):
    words = ("calibrate", undivided, "--scores", "probs", "--calibrator", "few")
    shown = must_run(*words, "-o", tmp_path / "few").stdout
    assert "share of all rows" in shown
    assert "wrote probabilities of all rows with 90 % intervals" in " ".join(shown.split())
    assert "ranking" in json.loads(must_run(*words, "--json", "-o", tmp_path / "json").stdout)


def test_calibrate_one_undivided_file_says_once_that_it_is_cross_fitted(undivided, tmp_path):
    words = ("calibrate", undivided, "--scores", "probs")
    for more in (("--calibrator", "platt", "-o", tmp_path / "c"), ("--rule", "best-f")):
        shown = " ".join(must_run(*words, *more).stdout.split())
        assert shown.count("One undivided table") == 1
        assert "no row is judged by a fit that saw it" in shown


def test_decide_shows_each_label_on_the_rows_it_was_fitted_on_and_on_others(undivided, scores):
    result = run("calibrate", undivided, "--scores", "probs", "--rule", "precision-0.7", "--json")
    figures = json.loads(result.stdout)["labels"]
    assert list(figures) == ["by cross-validation", "on the rows it was fitted on"]
    with np.load(undivided) as file:
        probs, labels = file["scores"], file["labels"] == 1
    thresholds = json.loads(result.stdout)["thresholds"]
    for k, row in enumerate(figures["on the rows it was fitted on"]):
        chosen = probs[:, k] >= thresholds[row["name"]]
        value, lower, upper = row["precision"]
        assert value == labels[chosen, k].mean() >= 0.7
        assert lower < value < upper
        assert row["chosen"] == chosen.sum()
    shown = run("calibrate", scores, "--scores", "logits", "--rule", "cost-1-5", *APART).stdout
    assert "per label, on other rows (95 % intervals)" in shown
    assert ("specificity" in shown, "recall" in shown) == (False, True)
    at = run("calibrate", scores, "--scores", "logits", "--rule", "sensitivity-0.8", *APART).stdout
    assert "specificity" in at


def test_decide_makes_a_promise_and_checks_it_on_other_rows(tmp_path):
    table = saved_scores(tmp_path / "many.npz", 1600)
    words = ["calibrate", table, "--scores", "logits", *APART]
    result = must_run(*words, "--guarantee", "precision=0.8", "-o", tmp_path / "p.json")
    assert "promised with 95% confidence: at least 80.0%" in result.stdout
    record = json.loads((tmp_path / "p.json").read_text())
    assert record["rule"]["kind"] == "threshold"
    assert record["promises"][0]["n"] == 640
    assert record["checks"][0]["value"] > 0.8
    assert record["checks"][0]["verdict"] in result.stdout
    words += ["--guarantee", "recall-per-label=80%", "--calibrator", "platt", "--json"]
    spoken = json.loads(run(*words, "--confidence", 0.9).stdout)
    assert spoken["promises"][0]["labels"] == ["dog"]
    assert spoken["promises"][0]["confidence"] == 0.9
    assert spoken["fitted_on"] == "400 rows of val; the calibrator was fitted on 400 others"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("calibrate LOGITS APART", "either --rule"),
        ("calibrate LOGITS --rule 0.5 --confidence 0.9", "belongs to --guarantee"),
        ("calibrate LOGITS --guarantee recall APART", "recall=0.9|like"),
        ("calibrate LOGITS --guarantee precision=0.99 APART", "299 that count would be needed"),
        ("calibrate LOGITS --rule best-f --folds 3 APART", "--folds does not apply: the rows to"),
        ("calibrate LOGITS --guarantee recall=0.5 --folds 3", "--folds does not apply: a guarant"),
        ("calibrate LOGITS --calibrator platt --folds 3 -o x APART", "does not apply: the rows"),
        ("evaluate nowhere.csv --scores logits", "does not exist"),
        ("evaluate nowhere", "nowhere does not exist; give the folder of a run, an exported"),
        ("evaluate SCORES", "--scores logits or --scores probs"),
        ("evaluate LOGITS", "has the splits test, val"),
        ("evaluate LOGITS --data x.csv", "--data does not apply"),
        ("evaluate SCORES --scores probs --split test", r"in \[0, 1\], got"),
        ("calibrate LOGITS --rule besst APART", "best-f"),
        ("calibrate LOGITS --calibrator plat -o x APART", "did you mean 'platt'"),
    ],
)
def test_a_mistake_gets_one_sentence(scores, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    words = words.replace("LOGITS", "SCORES --scores logits").replace("APART", " ".join(APART))
    result = run(*(scores if word == "SCORES" else word for word in words.split()))
    assert isinstance(result.exception, LabelwiseError)
    assert "\n" not in str(result.exception)
    with pytest.raises(LabelwiseError, match=sentence):
        raise result.exception


def test_the_splits_of_a_label_table_are_asked_about(tmp_path):
    """Oracle: of four photos two are in test, and two labels of each are known."""
    scores, labels = tmp_path / "scores.csv", tmp_path / "labels.csv"
    scores.write_text("id,score:cat,score:dog\na,.9,.1\nb,.2,.8\nc,.7,.3\nd,.1,.6\n")
    labels.write_text("path,labels,split\na,cat,train\nb,dog,train\nc,cat,test\nd,dog,test\n")
    words = ["evaluate", scores, "--scores", "probs", "--labels", labels]
    assert "has the splits test, train; name one with --split" in str(run(*words).exception)
    fitting = ["calibrate", *words[1:], "--rule", "0.5"]
    named = "has the splits test, train; name two with --fit-on and --report-on"
    assert named in str(run(*fitting).exception)
    assert run(*fitting, "--fit-on", "train", "--report-on", "test").exit_code == 0
    shown = " ".join(run(*words, "--split", "test").stdout.split())
    assert "4 known entries pooled" in shown

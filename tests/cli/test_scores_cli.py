"""The verbs for people with their own scores, run as they are typed."""

import json

import numpy as np
import pytest
from sample_scores import NAMES, sample, spec_of
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.decide import Threshold
from labelwise.errors import LabelwiseError
from labelwise.evaluate import Evaluation
from labelwise.links import Sigmoid
from labelwise.scores import read_scores

APART = ("--fit-on", "val", "--report-on", "test")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def scores(tmp_path):
    predictions = sample(200, unknown=0.1)
    np.savez(
        tmp_path / "scores.npz",
        scores=predictions.logits.numpy(),
        labels=predictions.labels.numpy(),
        observed=predictions.observed.numpy(),
        names=np.array(NAMES),
        split=np.repeat(["val", "test"], 100),
    )
    return tmp_path / "scores.npz"


@pytest.fixture
def undivided(tmp_path):
    predictions = sample(200)
    np.savez(
        tmp_path / "all.npz",
        scores=predictions.logits.sigmoid().numpy(),
        labels=predictions.labels.numpy(),
        names=np.array(NAMES),
    )
    return tmp_path / "all.npz"


def test_evaluate_says_the_numbers_and_writes_the_report(scores, tmp_path):
    result = run(
        "evaluate", scores, "--scores", "logits", "--split", "test", "-o", tmp_path / "out"
    )
    assert result.exit_code == 0, result.exception
    for words in ("mAP over labels", "worst labels", "<b>tree & co</b>", "equal-width bins"):
        assert words in result.stdout
    there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert {"report.html", "evaluation.json", "charts/reliability.png"} <= there
    saved = Evaluation.load(tmp_path / "out" / "evaluation.json")
    assert saved.data.rows == 100
    assert saved.headline[0].name == "mAP over labels"


def test_evaluate_speaks_json(undivided):
    result = run("evaluate", undivided, "--scores", "probs", "--rule", "top-2", "--json")
    evaluation = Evaluation.from_json(result.stdout)
    assert evaluation.sets.mean_size == 2
    assert evaluation.link == "sigmoid"


def test_evaluate_a_run(tmp_path):
    sample(60).save(tmp_path / "predictions" / "test.parquet")
    spec_of(NAMES, Sigmoid(), Threshold(0.4)).save(tmp_path / "model.json")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 0.5}\n')
    result = run("evaluate", tmp_path, "-o", tmp_path / "again")
    assert result.exit_code == 0, result.exception
    assert "probability at least 0.4" in result.stdout
    page = (tmp_path / "again" / "report.html").read_text()
    assert 'id="training"' in page
    assert 'id="examples"' in page


def test_calibrate_between_splits(scores, tmp_path):
    out = tmp_path / "calibrated"
    words = ["--scores", "logits", "--fit-on", "val", "--report-on", "test", "--method", "platt"]
    result = run("calibrate", scores, *words, "-o", out)
    assert result.exit_code == 0, result.exception
    assert "before" in result.stdout
    assert "after" in result.stdout
    stages = json.loads((out / "before-after.json").read_text())
    assert stages["after"]["ECE"] < stages["before"]["ECE"]
    assert stages["after"]["log loss"] < stages["before"]["log loss"]
    assert len(read_scores(out / "predictions.parquet", None).predictions) == 200
    assert (out / "charts" / "reliability.png").exists()


def test_calibrate_one_undivided_file_says_that_it_is_cross_fitted(undivided, tmp_path):
    result = run(
        "calibrate", undivided, "--scores", "probs", "--method", "platt", "-o", tmp_path / "c"
    )
    assert result.exit_code == 0, result.exception
    assert "no row is judged by a fit that saw it" in " ".join(result.stdout.split())


def test_decide_writes_thresholds_by_label(undivided, tmp_path):
    out = tmp_path / "thresholds.json"
    result = run("decide", undivided, "--scores", "probs", "--rule", "best-f", "-o", out)
    assert result.exit_code == 0, result.exception
    record = json.loads(out.read_text())
    assert list(record["thresholds"]) == list(NAMES)
    assert record["fitted_on"] == "all 200 rows"
    spoken = run("decide", undivided, "--scores", "probs", "--rule", "best-f", "--json").stdout
    assert json.loads(spoken) == record


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "nowhere.csv", "--scores", "logits"], "does not exist"),
        (["evaluate", "SCORES"], "--scores logits or --scores probs"),
        (["evaluate", "SCORES", "--scores", "logits"], "has the splits test, val"),
        (["evaluate", "SCORES", "--scores", "probs", "--split", "test"], r"in \[0, 1\], got"),
        (["decide", "SCORES", "--scores", "logits", "--rule", "besst", *APART], "best-f"),
        (
            ["calibrate", "SCORES", "--scores", "logits", "--method", "plat", "-o", "x", *APART],
            "did you mean 'platt'",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(scores, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    result = run(*(scores if word == "SCORES" else word for word in words))
    assert isinstance(result.exception, LabelwiseError)
    assert "\n" not in str(result.exception)
    with pytest.raises(LabelwiseError, match=sentence):
        raise result.exception


def test_a_wrong_kind_of_scores_is_wrong_usage(scores):
    assert run("evaluate", scores, "--scores", "logit").exit_code == 2

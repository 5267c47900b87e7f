"""Soft labels from a file to the report. Oracles: hand-made tables, autograd, the true shares."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_index import made_index
from sample_pictures import states
from search_setup import save_model
from tiny_run import tiny_settings, tiny_table
from typed import must_run

from labelwise.answers.suspects import Reviewed, repair
from labelwise.calibration import CALIBRATORS
from labelwise.errors import DataError, QuestionError, SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.papers.measures import FinishedRun, image_effects, measure
from labelwise.pictures import FileImages
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable, describe, fingerprint, flip_labels, load
from labelwise.tables.table import join
from labelwise.training.run import train
from labelwise.training.settings import read_settings

LISTS = (
    "path,labels,soft,shares,unknown\na.jpg,dog,cat|sky,0.25|0.75,\nb.jpg,,,,*\nc.jpg,,dog,0.5,*\n"
)


def table_of(labels, **columns):
    labels = np.asarray(labels)
    images = FileImages("", [f"{row}.jpg" for row in range(len(labels))])
    return LabelTable.from_arrays("abcdef"[: labels.shape[1]], images, labels, **columns)


def test_lists_of_names_and_shares(tmp_path):
    (tmp_path / "t.csv").write_text(LISTS)
    table = load(tmp_path / "t.csv", check_files=False)
    assert table.space.names == ("cat", "dog", "sky")
    np.testing.assert_array_equal(table.targets()[0], [[0.25, 1, 0.75], [0, 0, 0], [0, 0.5, 0]])
    assert states(table) == ["011", "???", "?0?"]  # above one half a label is present
    assert describe(table).notes[-1].startswith("3 labels are soft")


def test_one_column_per_label_holds_shares_if_told(tmp_path):
    (tmp_path / "t.csv").write_text("path,soft,shares\na.jpg,1,0\n")
    assert load(tmp_path / "t.csv", check_files=False).space.names == ("soft", "shares")
    (tmp_path / "t.csv").write_text("path,dog,cat\na.jpg,0.25,1\nb.jpg,,0\n")
    asked = (
        r"'0.25': shares between 0 and 1: .* `--set 'one_hot=\[\"dog\", \"cat\"\]' --set soft=true`"
    )
    with pytest.raises(QuestionError, match=asked):
        load(tmp_path / "t.csv", check_files=False)
    labels, known = load(tmp_path / "t.csv", check_files=False, soft=True).targets()
    np.testing.assert_array_equal(labels, [[0.25, 1], [0, 0]])
    np.testing.assert_array_equal(known, [[1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("path,labels,soft\na,x,y\n", {}, "need three columns"),
        ("path,labels,soft,shares\na,x,y|z,0.5\n", {}, "row 1: 'shares' .* got 1 for 2"),
        ("path,labels,soft,shares\na,x,y,1\n", {}, "row 1: a share .* got 1; certain"),
        ("path,labels,soft,shares\na,x,y,half\n", {}, "must hold numbers"),
        ("path,labels,soft,shares\na,x,x,0.5\n", {}, "'x' cannot be both present and soft"),
        (LISTS.replace("dog,cat", "dog,cat|cat").replace("0.25", "0.2|0.3"), {}, "there twice"),
        (LISTS, {"soft": True}, "soft=true is for one column per label"),
        (
            "path,dog\na,0.5\nb,2\n",
            {"soft": True, "one_hot": ["dog"]},
            "row 2: .* a share in between, got '2'",
        ),
    ],
)
def test_bad_shares_get_one_sentence(tmp_path, text, options, sentence):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises((DataError, SettingsError), match=sentence):
        load(tmp_path / "t.csv", check_files=False, **options)


def test_subsets_joins_and_facts():
    soft, hard = table_of([[0.25, 1], [0.0, 0.75], [1, 0]]), table_of([[1, 0]])
    both = join([("train", soft), ("test", hard)], name="both")
    assert both.targets()[0].tolist() == [[0.25, 1], [0, 0.75], [1, 0], [1, 0]]
    assert both.subset([1, 0]).targets()[0].tolist() == [[0, 0.75], [0.25, 1]]
    assert both.splits()["test"].soft is None
    assert soft.facts().priors == pytest.approx((1.25 / 3, 1.75 / 3))
    assert soft.facts().mean_labels == pytest.approx(1.0)
    one, other = (fingerprint(table_of([[0.25, 1], [0.0, x], [1, 0]])) for x in (0.75, 0.7))
    assert fingerprint(soft) == one != other


def test_what_needs_yes_or_no_refuses():
    with pytest.raises(DataError, match=r"1 labels are soft .* flipping labels is for those"):
        flip_labels(table_of([[0.25, 1]]), present=0.5)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        table_of([[1.25, 1]])


def test_an_answer_makes_a_soft_label_certain():
    table = table_of([[0.75, 0.25], [0.5, 1]])
    asked = [Reviewed("0.jpg", "a", "present", 0.1, answer="yes")]
    repaired, changes = repair(table, asked)
    np.testing.assert_array_equal(repaired.targets()[0], [[1, 0.25], [0.5, 1]])
    assert [(one.before, one.after) for one in changes] == [("soft", "present")]


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_calibrator_finds_the_shares(name):
    logits = torch.from_numpy(np.random.default_rng(0).normal(scale=3, size=(2000, 2)))
    shares = torch.sigmoid(logits / 2)
    link = CALIBRATORS[name](logits, shares, Sigmoid(), None)
    assert (link(logits) - shares).abs().mean() < 0.02


def softened(table):
    """Return the tiny table with the true chances of its labels, as shares, for labels."""
    x = torch.from_numpy(table.images.features[:, :4]).double()
    shares = torch.special.ndtr((x - 0.4) / 0.3).numpy()
    names = table.space.names
    return LabelTable.from_arrays(names, table.images, shares, split=table.split, name="tiny")


def test_a_run_learns_from_shares_and_is_judged_by_them(tmp_path):
    table = softened(tiny_table(rows=200))
    flags = {"data": "tiny", "features": "identity", "method": "bce", "calibrate": "temperature"}
    train(read_settings(None, flags), tmp_path / "run", table=table)
    run = RunFolder(tmp_path / "run")
    test = run.predictions("test")
    held = table.splits()["test"]
    labels = torch.from_numpy(held.targets()[0])
    assert np.array_equal(test.labels, labels)
    assert "labels are soft" in run.evaluation.notes[-1]
    # Logistic curves come near to normal ones; hard labels of so few rows do not lead there.
    deployed = torch.from_numpy(test.with_link(run.spec.made_link).probs())
    assert (deployed - labels).abs().mean() < 0.01
    features = torch.from_numpy(held.images.features).float()
    found = Predictor.load(tmp_path / "run").logits(features)
    torch.testing.assert_close(found, torch.as_tensor(test.logits))
    figures = measure(FinishedRun(tmp_path / "run"), queries=2)
    probs = torch.from_numpy(test.probs())
    loss = -(labels * probs.log() + (1 - labels) * torch.log1p(-probs)).mean().item()
    assert figures["log loss before"] == pytest.approx(loss, rel=1e-6)
    assert image_effects(FinishedRun(tmp_path / "run"))["log loss before"].shape == (len(labels),)


def test_training_in_steps_uses_shares_and_methods_that_cannot_refuse(tmp_path):
    table = softened(tiny_table())
    train(tiny_settings(method="auto", recipe__epochs=1), tmp_path / "run", table=table)
    assert RunFolder(tmp_path / "run").settings["method"] == "bce"
    with pytest.raises(DataError, match="the method 'two-way' needs labels of 0 and 1; take one"):
        train(tiny_settings(method="two-way"), tmp_path / "other", table=table)


def test_search_and_tag_count_a_soft_label_as_the_majority_does(tmp_path):
    """Oracle: the same commands on a model whose held-out labels were cut by hand."""
    answers, logits = [], np.random.default_rng(1).normal(-1, 2, (300, 4))
    for name in ("soft", "cut"):
        run = save_model(tmp_path / name)
        held = Predictions.load(run / "predictions" / "test.parquet")
        share = np.where(held.labels == 1, 0.8, 0.1) if name == "soft" else held.labels
        replace(held, labels=share).save(run / "predictions" / "test.parquet")
        index = made_index(tmp_path / f"{name}.index", run, logits)
        found = must_run("search", index, "--wrong-about", "0.4", "--json", "--", "-beach")
        tagged = must_run("tag", index, "--xmp", "--wrong-at-most", "0.4", "--dry-run")
        answers.append((found.stdout.replace(name, ""), tagged.stdout.replace(name, "")))
    assert answers[0] == answers[1]
    assert "at least 60.0% of all chosen labels together are right" in answers[1][1]

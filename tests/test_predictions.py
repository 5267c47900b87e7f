"""Prediction files. Oracles: what is read back, pyarrow's own view, and files damaged by hand."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_index import made_index
from sample_pictures import states
from search_setup import save_model
from tiny_run import tiny_settings, tiny_table
from typed import must_run

from labelwise.answers.suspects import Reviewed, repair
from labelwise.base.files import without_sum
from labelwise.calibration import CALIBRATORS, Platt
from labelwise.errors import (
    CheckpointError,
    DataError,
    LabelwiseError,
    QuestionError,
    SettingsError,
)
from labelwise.learn.methods import link_to_spec
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid, Softmax
from labelwise.models.run_folder import RunFolder
from labelwise.papers.measures import FinishedRun, image_effects, measure
from labelwise.pictures import FileImages
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable, describe, fingerprint, flip_labels, load
from labelwise.tables.table import join
from labelwise.training.run import train
from labelwise.training.settings import read_settings
from labelwise.types import matching_columns


def some(observed=True, rows=5):
    generator = torch.Generator().manual_seed(3)
    return Predictions(
        [f"a/{row}.jpg" for row in range(rows)],
        torch.randn(rows, 3, generator=generator),
        torch.randint(2, (rows, 3), generator=generator, dtype=torch.uint8),
        torch.rand(rows, 3, generator=generator) < 0.7 if observed else None,
        ("dog", 'a|b, "c"', "größe"),
        "test",
        Softmax(2.5),
    )


@pytest.mark.parametrize(
    ("observed", "rows", "share"), [(True, 0, 1), (False, 5, 1), (True, 5, 0.3)]
)
def test_a_saved_file_is_read_back_unchanged(tmp_path, observed, rows, share):
    one = some(observed, rows)
    if share < 1:
        one = replace(one, labels=one.labels * share, link=None)
    one.save(tmp_path / "sub" / "test.parquet")
    other = Predictions.load(tmp_path / "sub" / "test.parquet")
    assert (list(other.ids), other.names, other.split) == (list(one.ids), one.names, "test")
    assert (other.link and other.link.spec()) == (one.link and {"temperature": 2.5})
    for field in ("logits", "labels", "observed"):
        np.testing.assert_array_equal(getattr(other, field), getattr(one, field))


def test_rows_of_two_splits_are_joined_and_unknown_labels_stay_unknown():
    one, other = some(True, 5), some(False, 3)
    both = one.joined(other)
    assert (list(both.ids), both.split) == ([*one.ids, *other.ids], "test and test")
    for field in ("logits", "labels"):
        parts = [getattr(one, field), getattr(other, field)]
        assert np.array_equal(getattr(both, field), np.concatenate(parts))
    assert np.array_equal(both.observed, np.concatenate([one.observed, np.ones((3, 3))]))
    assert some(False).joined(some(False)).observed is None
    with pytest.raises(ValueError, match="must share their labels"):
        one.joined(replace(other, names=("dog", "cat", "row")))


def test_other_tools_see_one_fixed_size_list_a_row(tmp_path):
    some().save(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["id", "logits", "labels", "observed"]
    assert str(table.schema.field("logits").type) == "fixed_size_list<element: float>[3]"
    assert table["logits"][2].as_py() == some().logits[2].tolist()
    facts = json.loads(table.schema.metadata[b"labelwise"])
    assert facts["link"] == {"kind": "softmax", "temperature": 2.5}


def test_shapes_must_agree():
    one = some()
    with pytest.raises(ValueError, match=r"logits must have shape \(5, 3\), got \(5, 2\)"):
        Predictions(one.ids, one.logits[:, :2], one.labels, None, one.names, "test")
    with pytest.raises(ValueError, match="observed must be boolean"):
        Predictions(one.ids, one.logits, one.labels, one.labels, one.names, "test")


def test_bad_files_get_one_sentence(tmp_path):
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "other")
    for name, sentence in (
        ("none", "does not exist"),
        ("text", "not a readable predictions file"),
        ("other", "without labelwise metadata"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            Predictions.load(tmp_path / name)


def rewritten(path, change=None, **facts):
    """Write the sample file again with other columns or other metadata."""
    some().save(path)
    table = pq.read_table(path)
    stated = without_sum(json.loads(table.schema.metadata[b"labelwise"])) | facts
    table = table if change is None else change(table)
    pq.write_table(table.replace_schema_metadata({"labelwise": json.dumps(stated)}), path)
    return path


def put(name, column):
    return lambda table: table.set_column(table.column_names.index(name), name, column)


RAGGED = pa.array([[1.0, 2.0, 3.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [1.0] * 3, [1.0] * 3])
PER_LABEL = link_to_spec(Platt(Sigmoid(), [1.0, 2.0], [0.0, 0.0], 30.0))


@pytest.mark.parametrize(
    ("change", "facts", "sentence"),
    [
        (put("logits", RAGGED), {}, "row 2 must hold 3 numbers, one per label, got 2"),
        (put("logits", pa.array([None, *[[1.0] * 3] * 4])), {}, "row 1 must hold 3 numbers, one"),
        (put("logits", pa.array([[1.0, None, 2.0]] * 5)), {}, "row 1 must hold numbers, got an em"),
        (put("logits", pa.array(["a"] * 5)), {}, "must be a column of lists of numbers, got str"),
        (put("labels", pa.array([["a"] * 3] * 5)), {}, "labels must hold numbers, got string"),
        (put("observed", pa.array([[1.0] * 3] * 5)), {}, "observed must be boolean"),
        (put("id", pa.array([1, 2, 3, 4, 5])), {}, "id must be a column of text"),
        (lambda table: table.drop_columns(["labels"]), {}, "there is no column 'labels'"),
        (None, {"names": ["a", "b"]}, "must hold 2 numbers, one per label, got 3"),
        (None, {"names": "abc"}, "metadata 'names'"),
        (None, {"names": ["a", "a", "b"]}, "label names must be distinct"),
        (None, {"split": 3}, "metadata 'split'"),
        (None, {"link": "sigmoid"}, "metadata 'link'"),
        (None, {"link": {"kind": "magic"}}, "unknown link 'magic'"),
        (None, {"link": PER_LABEL}, "the link does not fit 3 labels"),
        (None, {"format": "\x1b[2J"}, "must have format 1"),
    ],
)
def test_damaged_files_are_named_and_never_shift_values(tmp_path, change, facts, sentence):
    path = rewritten(tmp_path / "p.parquet", change, **facts)
    with pytest.raises(CheckpointError, match=f"^[^\n]*{re.escape(sentence)}[^\n]*$"):
        Predictions.load(path)


def test_logits_beyond_float32_are_refused_not_made_infinite(tmp_path):
    huge = np.full((5, 3), 1e39)
    with pytest.raises(DataError, match=r"must lie in the range of float32, got 1e\+39"):
        replace(some(), logits=huge).save(tmp_path / "p.parquet")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    some().save(tmp_path / "p.parquet")
    before = (tmp_path / "p.parquet").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LabelwiseError, match=r"cannot write .*p.parquet: the disk is full"):
        some(rows=2).save(tmp_path / "p.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
    assert (tmp_path / "p.parquet").read_bytes() == before


def test_labels_are_matched_by_name_and_what_is_missing_is_named():
    """Oracle: columns found by hand."""
    match = partial(matching_columns, of="x", in_="y")
    assert match("ba", "ab") == [1, 0]
    assert match("b", "ab", others=True) == [1]
    with pytest.raises(DataError, match="y: label 'cat' of x is missing; did you mean 'cats'"):
        match(["cat"], ["cats"])
    with pytest.raises(DataError, match="x: label 'a' of y is missing"):
        match("b", "ab")
    with pytest.raises(DataError, match="y: label 'c' of x is missing"):
        match("c", "ab", others=True)


# Soft labels from a file to the report. Oracles: hand-made tables, autograd, the true shares.

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

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

from labelwise.base.files import without_sum
from labelwise.calibration import Platt
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.learn.methods import link_to_spec
from labelwise.links import Sigmoid, Softmax
from labelwise.predictions import Predictions
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

"""Compressed label sets and names. Oracles: the dense mask, and plain Python lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwise.data import LabelSets, LabelTable
from labelwise.errors import DataError
from labelwise.pictures import FeatureRows
from labelwise.system.names import Names

MASKS = st.tuples(st.integers(0, 9), st.integers(1, 7)).flatmap(lambda s: arrays(np.bool_, s))


@settings(max_examples=30, deadline=None)
@given(MASKS, st.randoms(use_true_random=False))
def test_every_view_agrees_with_the_dense_mask(mask, random):
    sets = LabelSets.from_dense(mask)
    rows = np.array([random.randrange(len(mask)) for _ in range(5)] if len(mask) else [], np.int64)
    joined = LabelSets.concatenate([sets, sets.take(rows)])
    for found, expected in (
        *((sets.dense(), mask), (sets.plain().dense(), mask)),
        *((sets.sizes(), mask.sum(1)), (sets.counts(), mask.sum(0))),
        *((sets.row(row), np.flatnonzero(mask[row])) for row in range(len(mask))),
        (joined.dense(), np.concatenate([mask, mask[rows]])),
    ):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=6))
def test_lists_may_repeat_and_be_unsorted(rows):
    sets = LabelSets.from_lists(rows, 6)
    for row, labels in enumerate(rows):
        assert sets.row(row).tolist() == sorted(set(labels))


def test_blocks_cover_all_rows(monkeypatch):
    monkeypatch.setattr("labelwise.data.table.BLOCK", 10)
    mask = np.random.default_rng(0).random((23, 4)) < 0.4
    parts = [block for _, block in LabelSets.from_dense(mask).blocks()]
    assert len(parts) > 5
    np.testing.assert_array_equal(np.concatenate(parts), mask)


def table(labels, observed=None, **columns):
    labels = np.asarray(labels)
    images = FeatureRows(np.zeros((len(labels), 1), np.float32))
    names = [f"l{column}" for column in range(labels.shape[1])]
    return LabelTable.from_arrays(names, images, labels, observed, **columns)


def test_three_states_and_two_kinds_of_empty_row():
    states = table([[1, 0], [0, 0], [1, 1], [0, 1]], [[1, 1], [1, 1], [0, 0], [0, 1]])
    labels, observed = states.targets()
    assert labels.tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]
    assert observed.tolist() == [[1, 1], [1, 1], [0, 0], [0, 1]]
    assert states.zero_label().tolist() == [False, True, False, False]
    assert states.unlabelled().tolist() == [False, False, True, False]
    assert table([[1, 0], [0, 0]]).targets()[1] is None  # everything is known
    facts = states.facts()
    assert (facts.mean_labels, facts.priors) == (2 / 4, (1 / 2, 1 / 3))


def test_splits_come_in_order_and_subset_keeps_columns():
    parted = table(np.eye(4), split=["test", "train", "test", "val"], group=["a", "b", "a", "c"])
    assert list(parted.splits()) == ["train", "val", "test"]
    test = parted.splits()["test"]
    assert list(test.group) == ["a", "a"]
    np.testing.assert_array_equal(test.targets()[0], np.eye(4)[[0, 2]])
    assert list(parted.subset(np.array([True, False, False, True])).ids) == ["000000", "000003"]
    with pytest.raises(ValueError, match="train, val or test, got 'dev'"):
        table(np.eye(2), split=["train", "dev"])
    with pytest.raises(DataError, match="labelwise data split"):
        table(np.eye(2)).splits()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "ä", ""]), max_size=9))
def test_names_are_a_sequence(strings):
    names = Names(strings)
    assert (list(names), len(names)) == (strings, len(strings))
    firsts = [strings.index(text) for text in strings]
    codes = names.codes().tolist()
    assert [codes.index(code) for code in codes] == firsts
    repeat = names.first_repeat()
    assert (repeat is None) == (len(set(strings)) == len(strings))
    assert repeat is None or firsts[repeat[1]] == repeat[0] < repeat[1]


def test_repeats_are_found_exactly_even_if_every_hash_collides(monkeypatch):
    names = Names([f"images/{row:05d}.jpg" for row in range(3000)])
    assert names.first_repeat() is None
    repeated = Names([*names, "images/00042.jpg"])
    assert repeated.first_repeat() == (42, 3000)
    monkeypatch.setattr("labelwise.system.names.hash", len, raising=False)
    assert names.first_repeat() is None
    assert repeated.take(np.arange(40, 3001)).first_repeat() == (2, 2960)

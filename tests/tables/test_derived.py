"""Label sets; labels hidden and flipped; splits. Oracles: golden vectors, dense masks, loops."""

import itertools

import numpy as np
import pytest
from golden import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwise.base.names import Names
from labelwise.errors import DataError, SettingsError
from labelwise.pictures import ArrayImages, FeatureRows
from labelwise.tables import LabelSets, LabelTable
from labelwise.tables.checks import reject_shared_content
from labelwise.tables.derived import (
    _items,
    flip_labels,
    keep_known,
    mlspl_split,
    observe_uniform,
    single_positive,
    stratified_split,
)
from labelwise.tables.official import FINE_TO_COARSE, cifar60_40_out


def make(labels, observed=None, **columns):
    labels = np.asarray(labels)
    rows = FeatureRows(np.arange(len(labels), dtype=np.float32)[:, None])
    names = [f"l{k}" for k in range(labels.shape[1])]
    return LabelTable.from_arrays(names, rows, labels, observed, **columns)


def test_golden_vectors():
    case = GOLDEN["mlspl_observed_labels"][0]
    labels = np.array(case["inputs"]["labels"])
    observed = observe_uniform(labels, **case["params"]) == 1
    for part in (observed, *single_positive(make(labels)).targets()):
        np.testing.assert_array_equal(part, case["expected"]["observed"])
    *cases, sizes = GOLDEN["mlspl_split"][:3]
    for case in cases:
        train, val = mlspl_split(case["inputs"]["n"])
        assert {"train": train.tolist(), "val": val.tolist()} == case["expected"]
    found = [tuple(map(len, mlspl_split(n))) for n in sizes["inputs"]["n"]]
    expected = sizes["expected"]
    assert found == list(zip(expected["train"], expected["val"], strict=True))
    fixed, seeded = GOLDEN["cifar60_40"]
    assert FINE_TO_COARSE.tolist() == fixed["expected"]["fine_to_coarse"]
    assert cifar60_40_out(None).tolist() == fixed["expected"]["out_fine"]
    assert cifar60_40_out(0).tolist() == seeded["expected"]["out_fine"]


def slow_observation(labels, seed):
    """The reference procedure, written out: both shuffles consume the generator."""
    random, kept = np.random.RandomState(seed), []
    for row in labels:
        positives = np.nonzero(row == 1)[0]
        random.shuffle(positives)
        kept.append(positives[0] if len(positives) else -1)
        random.shuffle(np.nonzero(row == 0)[0])
    return kept


def test_train_and_val_are_one_file_and_test_another():
    labels = (np.random.default_rng(0).random((40, 6)) < 0.5).astype(int)
    split = np.array(["train", "val", "train", "test"] * 10)
    table = single_positive(make(labels, split=split), splits=("train", "val", "test"))
    for rows in (split != "test", split == "test"):
        kept = slow_observation(labels[rows], 1200)
        for found, column in zip(table.targets()[0][rows], kept, strict=True):
            assert np.flatnonzero(found).tolist() == ([column] if column >= 0 else [])
    # Other splits stay as they are, and a photo without a label becomes unlabelled.
    table = single_positive(
        make([[1, 1, 0], [0, 0, 0], [1, 1, 1]], split=["train", "train", "val"])
    )
    assert (table.unlabelled().tolist(), table.unknown.sizes().tolist()) == ([0, 1, 0], [2, 3, 0])


def test_partial_labels_at_a_rate():
    labels, known = np.random.default_rng(1).random((2, 4000, 9)) < [[[0.4]], [[0.9]]]
    table = make(labels, known)
    given, observed = keep_known(table, 0.3, seed=5).targets()
    assert not (observed & ~known).any()
    assert abs(observed[known].mean() - 0.3) < 0.02
    np.testing.assert_array_equal(given, labels & observed)
    np.testing.assert_array_equal(keep_known(table, 0.3, seed=5).targets()[1], observed)
    assert keep_known(table, 1.0).targets()[1].sum() == known.sum()
    with pytest.raises(SettingsError, match=r"in \[0, 1\], got 1.5"):
        keep_known(table, 1.5)


def test_noise_flips_known_labels_only():
    labels, known = np.random.default_rng(2).random((2, 5000, 8)) < [[[0.5]], [[0.8]]]
    noisy, observed = flip_labels(make(labels, known), present=0.2, absent=0.05).targets()
    np.testing.assert_array_equal(observed, known)
    flipped = (noisy.astype(bool) != labels) & known
    assert abs(flipped[labels & known].mean() - 0.2) < 0.02
    assert abs(flipped[~labels & known].mean() - 0.05) < 0.01


SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
WANTED = np.array(list(SHARES.values()))


def correlated(rows=3000, labels=12, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((rows, 2)) @ rng.standard_normal((2, labels))
    level = np.linspace(0.8, 2.6, labels)
    return (rng.standard_normal((rows, labels)) + shared > 1.6 * level).astype(np.uint8)


def worst(mask, table):
    """Return by how many rows the split that is furthest off differs from its share."""
    sizes = [(mask & (table.split == name)).sum() for name in SHARES]
    return np.abs(sizes - WANTED * mask.sum()).max()


def test_labels_pairs_and_zero_label_images_are_in_proportion():
    labels = correlated()
    table = stratified_split(make(labels), SHARES, by_content=False)
    assert worst(np.ones(3000, bool), table) <= 3
    assert max(worst(present, table) for present in labels.T > 0) < 2.5
    for first, second in itertools.combinations(range(12), 2):
        pair = (labels[:, first] & labels[:, second]) > 0
        assert pair.sum() < 40 or worst(pair, table) < 6
    assert worst(table.zero_label(), table) < 2
    labels = np.zeros((50, 2), np.uint8)
    labels[7, 1] = labels[::2, 0] = 1
    assert stratified_split(make(labels), SHARES).split[7] == "train"  # of the rare one


def test_groups_stay_together_and_sizes_hold():
    labels = correlated(2000, seed=2)
    group = np.random.default_rng(1).integers(0, 300, 2000).astype(str)
    table = stratified_split(make(labels, group=group), SHARES, by_content=False)
    for name in np.unique(group):
        assert len(set(table.split[group == name])) == 1
    assert worst(np.ones(2000, bool), table) < 20
    for present in labels.T > 0:
        assert present.sum() < 50 or worst(present, table) < 0.05 * present.sum()


def test_equal_images_are_kept_in_one_split_and_reported_otherwise():
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 255, (60, 4, 4, 3), np.uint8)[rng.integers(0, 60, 200)]
    labels = rng.random((200, 3)) < 0.4
    table = LabelTable.from_arrays(["a", "b", "c"], ArrayImages(pixels), labels)
    parted = stratified_split(table, SHARES)
    seen = {}
    for row in range(200):
        assert seen.setdefault(pixels[row].tobytes(), parted.split[row]) == parted.split[row]
    reject_shared_content(parted)
    assert (stratified_split(table, SHARES, seed=5).split != parted.split).any()
    careless = stratified_split(table, SHARES, by_content=False)
    with pytest.raises(DataError, match="splits must not share images, but '0"):
        reject_shared_content(careless)


@pytest.mark.parametrize(("dense", "most"), [(3000, 10**6), (3, 10**6), (3000, 3)])
def test_the_items_of_a_split_are_labels_frequent_pairs_and_kinds_of_rows(monkeypatch, dense, most):
    """Oracle: the rows of each item, found one item at a time."""
    monkeypatch.setattr("labelwise.tables.derived.MOST_DENSE", dense)
    monkeypatch.setattr("labelwise.tables.derived.MOST_PAIRS", most)
    labels, known = np.random.default_rng(0).random((80, 6)) < 0.25, np.ones((80, 6), bool)
    known[:9] = False
    told = labels & known
    pairs = [one & other for one, other in itertools.combinations(told.T, 2)]
    frequent = [pair for pair in pairs if pair.sum() * 0.25 >= 1 and most > 3]
    rows = [known.all(1) & ~labels.any(1), ~known.any(1), np.ones(80)]
    found = _items(make(labels, known), 0.25).toarray()
    np.testing.assert_array_equal(found.T, [*told.T, *frequent, *rows])
    assert len(frequent) in (0, 5)


def test_bad_shares():
    for shares, sentence in (
        ({"train": 0.5, "val": 0.4}, "sum to 1, got 0.9"),
        ({"train": 1.2, "val": -0.2}, "above 0, got -0.2"),
        ({"train": 0.5, "dev": 0.5}, "train, val or test, got 'dev'"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            stratified_split(make(np.eye(4)), shares)


# Compressed label sets, and names

MASKS = st.tuples(st.integers(0, 9), st.integers(1, 7)).flatmap(lambda s: arrays(np.bool_, s))


@settings(max_examples=30)
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


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=6))
def test_lists_may_repeat_and_be_unsorted(rows):
    sets = LabelSets.from_lists(rows, 6)
    for row, labels in enumerate(rows):
        assert sets.row(row).tolist() == sorted(set(labels))


def test_blocks_cover_all_rows(monkeypatch):
    monkeypatch.setattr("labelwise.tables.table.BLOCK", 10)
    mask = np.random.default_rng(0).random((23, 4)) < 0.4
    parts = [block for _, block in LabelSets.from_dense(mask).blocks()]
    assert len(parts) > 5
    np.testing.assert_array_equal(np.concatenate(parts), mask)


def test_three_states_and_two_kinds_of_empty_row():
    states = make([[1, 0], [0, 0], [1, 1], [0, 1]], [[1, 1], [1, 1], [0, 0], [0, 1]])
    labels, observed = states.targets()
    assert labels.tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]
    assert observed.tolist() == [[1, 1], [1, 1], [0, 0], [0, 1]]
    assert states.zero_label().tolist() == [False, True, False, False]
    assert states.unlabelled().tolist() == [False, False, True, False]
    assert make([[1, 0], [0, 0]]).targets()[1] is None  # everything is known
    facts = states.facts()
    assert (facts.mean_labels, facts.priors) == (2 / 4, (1 / 2, 1 / 3))


def test_splits_come_in_order_and_subset_keeps_columns():
    parted = make(np.eye(4), split=["test", "train", "test", "val"], group=["a", "b", "a", "c"])
    assert list(parted.splits()) == ["train", "val", "test"]
    test = parted.splits()["test"]
    assert list(test.group) == ["a", "a"]
    np.testing.assert_array_equal(test.targets()[0], np.eye(4)[[0, 2]])
    assert list(parted.subset(np.array([True, False, False, True])).ids) == ["000000", "000003"]
    with pytest.raises(ValueError, match="train, val or test, got 'dev'"):
        make(np.eye(2), split=["train", "dev"])
    with pytest.raises(DataError, match="labelwise data split"):
        make(np.eye(2)).splits()


@settings(max_examples=25)
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
    monkeypatch.setattr("labelwise.base.names.hash", len, raising=False)
    assert names.first_repeat() is None
    assert repeated.take(np.arange(40, 3001)).first_repeat() == (2, 2960)

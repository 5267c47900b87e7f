"""Labels hidden and flipped. Oracles: golden vectors, a slow loop, and shares within chance."""

import numpy as np
import pytest
from golden import GOLDEN

from labelwise.data import LabelTable
from labelwise.data.derived import flip_labels, keep_known, observe_uniform, single_positive
from labelwise.data.official import FINE_TO_COARSE, cifar60_40_out
from labelwise.data.split import mlspl_split
from labelwise.errors import SettingsError
from labelwise.pictures import FeatureRows


def make(labels, observed=None, split=None):
    labels = np.asarray(labels)
    rows = FeatureRows(np.zeros((len(labels), 1), np.float32))
    return LabelTable.from_arrays(
        [f"l{k}" for k in range(labels.shape[1])], rows, labels, observed, split=split
    )


def test_golden_single_positive():
    case = GOLDEN["mlspl_observed_labels"][0]
    labels = np.array(case["inputs"]["labels"])
    observed = observe_uniform(labels, **case["params"])
    np.testing.assert_array_equal(observed == 1, case["expected"]["observed"])
    table = single_positive(make(labels))
    np.testing.assert_array_equal(table.targets()[0], case["expected"]["observed"])
    np.testing.assert_array_equal(table.targets()[1], case["expected"]["observed"])


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


def test_only_the_chosen_splits_are_corrupted_and_zero_label_becomes_unlabelled():
    labels = [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    table = single_positive(make(labels, split=["train", "train", "val"]))
    np.testing.assert_array_equal(table.unlabelled(), [False, True, False])
    np.testing.assert_array_equal(table.targets()[0][2], [1, 1, 1])
    np.testing.assert_array_equal(table.unknown.sizes(), [2, 3, 0])


def test_golden_split():
    for case in GOLDEN["mlspl_split"][:2]:
        train, val = mlspl_split(case["inputs"]["n"])
        assert train.tolist() == case["expected"]["train"]
        assert val.tolist() == case["expected"]["val"]
    sizes = GOLDEN["mlspl_split"][2]
    for place, n in enumerate(sizes["inputs"]["n"]):
        train, val = mlspl_split(n)
        assert len(train) == sizes["expected"]["train"][place]
        assert len(val) == sizes["expected"]["val"][place]


def test_golden_cifar60_40():
    fixed, seeded = GOLDEN["cifar60_40"]
    assert FINE_TO_COARSE.tolist() == fixed["expected"]["fine_to_coarse"]
    assert cifar60_40_out(None).tolist() == fixed["expected"]["out_fine"]
    assert cifar60_40_out(0).tolist() == seeded["expected"]["out_fine"]


def test_partial_labels_at_a_rate():
    rng = np.random.default_rng(1)
    labels, known = rng.random((4000, 9)) < 0.4, rng.random((4000, 9)) < 0.9
    table = make(labels, known)
    partial = keep_known(table, 0.3, seed=5)
    _, observed = partial.targets()
    assert not (observed & ~known).any()
    assert abs(observed[known].mean() - 0.3) < 0.02
    np.testing.assert_array_equal(partial.targets()[0], labels & observed)
    again = keep_known(table, 0.3, seed=5)
    np.testing.assert_array_equal(again.targets()[1], observed)
    assert keep_known(table, 1.0).targets()[1].sum() == known.sum()


def test_noise_flips_known_labels_only():
    rng = np.random.default_rng(2)
    labels, known = rng.random((5000, 8)) < 0.5, rng.random((5000, 8)) < 0.8
    noisy, observed = flip_labels(make(labels, known), present=0.2, absent=0.05).targets()
    np.testing.assert_array_equal(observed, known)
    flipped = (noisy.astype(bool) != labels) & known
    assert abs(flipped[labels & known].mean() - 0.2) < 0.02
    assert abs(flipped[~labels & known].mean() - 0.05) < 0.01


def test_a_rate_is_a_chance():
    with pytest.raises(SettingsError, match=r"in \[0, 1\], got 1.5"):
        keep_known(make(np.eye(2)), 1.5)

"""Generated scenes. Oracle: their stated properties, counted on the pictures themselves."""

import sys

import numpy as np
import pytest

from labelwise.data import load, scenes
from labelwise.errors import SettingsError

MODULE = sys.modules["labelwise.data.generated"]


@pytest.fixture(scope="module")
def table():
    return scenes(1200, 200, 200, seed=1)


def test_shape_and_splits(table):
    assert table.images.pixels.shape == (1600, 48, 48, 3)
    sizes = {name: len(part) for name, part in table.splits().items()}
    assert sizes == {"train": 1200, "val": 200, "test": 200}
    assert len(table.space) == 10
    assert table.images.read(0).size == (48, 48)


def test_zero_label_imbalance_and_correlation(table):
    labels, observed = table.targets()
    assert observed is None
    assert 0.12 < table.zero_label().mean() < 0.18
    assert labels.sum(1).max() <= 5
    share = labels.mean(0)
    assert share[0] > 3 * share[9]
    assert share.min() > 0.04
    together = np.corrcoef(labels.T)
    for digit, partner in enumerate(MODULE.PARTNER):
        assert together[digit, partner] > 0.25


def test_same_seed_same_scenes_and_a_longer_set_begins_with_the_shorter(table):
    again = scenes(700, 10, 0, seed=1, threads=1)
    np.testing.assert_array_equal(again.images.pixels[:700], table.images.pixels[:700])
    np.testing.assert_array_equal(again.images.pixels[700:], table.images.pixels[1200:1210])
    np.testing.assert_array_equal(again.targets()[0][:700], table.targets()[0][:700])
    other = scenes(100, 0, 0, seed=2)
    assert (other.images.pixels != table.images.pixels[:100]).mean() > 0.9


def test_no_handwriting_is_in_two_splits():
    parts = MODULE._handwriting(seed=3)
    seen = [{box.tobytes() for box in boxes[0]} for boxes, _ in parts]
    assert sum(len(boxes[0]) for boxes, _ in parts) == 1797
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]
    for _, starts in parts:
        assert (np.diff(starts) > 20).all()


def test_digits_change_the_picture_and_clutter_is_in_every_one(table):
    assert table.images.pixels.std(axis=(1, 2, 3)).min() > 5
    flat = table.images.pixels.reshape(len(table), -1)
    assert len(np.unique(flat, axis=0)) == len(table)


def test_load_by_name_with_options():
    small = load("scenes", num_train=5, num_val=1, num_test=1, size=64)
    assert small.images.pixels.shape == (7, 64, 64, 3)
    with pytest.raises(SettingsError, match="no option 'num_trian'; did you mean 'num_train'"):
        load("scenes", num_trian=5)
    with pytest.raises(SettingsError, match="at least 32, got 3"):
        load("scenes", size=3)

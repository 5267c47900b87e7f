"""Generated sets. Oracles: what they state, counted on pictures; the formula; shares of draws."""

import sys

import numpy as np
import pytest

from labelwise.errors import SettingsError
from labelwise.tables import load, posterior, scenes

MODULE = sys.modules["labelwise.tables.generated"]


@pytest.fixture(scope="module")
def table():
    return scenes(1200, 10, 10, seed=1)


def test_zero_label_imbalance_and_correlation(table):
    labels, observed = table.targets()
    assert observed is None
    assert 0.12 < table.zero_label().mean() < 0.18
    share = labels.mean(0)
    assert share[0] > 3 * share[9]
    assert share.min() > 0.04
    together = np.corrcoef(labels.T)
    for digit, partner in enumerate(MODULE.PARTNER):
        assert together[digit, partner] > 0.25


def test_same_seed_same_scenes_and_a_longer_set_begins_with_the_shorter(table):
    again, rows = scenes(300, 10, 0, seed=1, threads=1), [*range(300), *range(1200, 1210)]
    assert again.split_sizes() == {"train": 300, "val": 10}
    np.testing.assert_array_equal(again.images.pixels, table.images.pixels[rows])
    np.testing.assert_array_equal(again.targets()[0], table.targets()[0][rows])
    assert (scenes(10, 0, 0, seed=2).images.pixels != table.images.pixels[:10]).mean() > 0.9


def test_no_handwriting_is_in_two_splits():
    parts = MODULE._handwriting(seed=3)
    seen = [{box.tobytes() for box in boxes[0]} for boxes, _ in parts]
    assert sum(len(boxes[0]) for boxes, _ in parts) == 1797
    assert len(set.union(*seen)) == sum(map(len, seen))
    for _, starts in parts:
        assert (np.diff(starts) > 20).all()


def test_load_by_name_with_options():
    small = load("scenes", num_train=5, num_val=1, num_test=0, size=64)
    assert small.images.pixels.shape == (6, 64, 64, 3)
    first = posterior(50, 5, 5, seed=9).table.targets()[0]
    second = load("posterior", num_train=50, num_val=5, num_test=5, seed=9)
    np.testing.assert_array_equal(first, second.targets()[0])
    for name, options, sentence in (
        ("scenes", {"num_trian": 5}, "no option 'num_trian'; did you mean 'num_train'"),
        ("scenes", {"size": 3}, "at least 32, got 3"),
        ("posterior", {"least": 0.5, "most": 0.2}, "0 < least <= most < 1"),
        ("posterior", {"rho": 1.0}, "rho must be in"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            load(name, **options)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_labels_are_drawn_from_eta_and_rho_correlates_what_it_leaves_over(rho):
    data = posterior(20_000, 10, 10, rho=rho, num_labels=4, least=0.2, seed=2)
    labels, eta = data.table.targets()[0], data.eta
    for low, high in [(0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 1)]:
        inside = (eta >= low) & (eta < high)
        error = np.sqrt((eta * (1 - eta))[inside].sum()) / inside.sum()
        assert abs(labels[inside].mean() - eta[inside].mean()) < 5 * error * (1 + 10 * rho)
    together = np.corrcoef((labels - eta).T)[np.triu_indices(4, 1)].mean()
    assert together > 0.2 if rho else abs(together) < 0.02


def test_priors_fall_to_one_percent_and_zero_label_rows_exist():
    data = posterior(10_000, 10, 10, seed=1)
    assert np.allclose(data.eta.mean(0)[[0, -1]], [0.3, 0.01], rtol=0.1)
    assert 0.1 < data.table.zero_label().mean() < 0.5


def test_eta_is_the_stated_formula():
    data = posterior(500, 10, 10, num_labels=3, num_features=5, seed=4)
    odds = np.log(data.eta / (1 - data.eta))
    design = np.c_[np.ones(520), data.table.images.features]
    fitted, residual, *_ = np.linalg.lstsq(design, odds, rcond=None)
    assert residual.max() < 1e-8
    np.testing.assert_allclose(np.linalg.norm(fitted[1:], axis=0), 2.0, rtol=1e-5)

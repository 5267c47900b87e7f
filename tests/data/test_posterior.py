"""Labels whose true probabilities are known. Oracles: the stated formula, and shares of draws."""

import numpy as np
import pytest

from labelwise.data import load, posterior


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_labels_are_drawn_from_eta(rho):
    data = posterior(60_000, 10, 10, rho=rho, seed=3)
    labels = data.table.targets()[0][:60_000].astype(float)
    eta = data.eta[:60_000]
    for low, high in [(0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 1)]:
        inside = (eta >= low) & (eta < high)
        error = np.sqrt((eta * (1 - eta))[inside].sum()) / inside.sum()
        assert abs(labels[inside].mean() - eta[inside].mean()) < 5 * error * (1 + 10 * rho)


def test_priors_fall_to_one_percent_and_zero_label_rows_exist():
    data = posterior(40_000, 10, 10, seed=1)
    assert np.allclose(data.eta.mean(0)[[0, -1]], [0.3, 0.01], rtol=0.1)
    assert 0.1 < data.table.zero_label().mean() < 0.5
    assert (np.corrcoef(data.table.targets()[0].T) > 0.02).mean() > 0.5


def test_rho_correlates_what_eta_leaves_over():
    def residual(rho):
        data = posterior(20_000, 10, 10, rho=rho, num_labels=4, least=0.2, seed=2)
        left = data.table.targets()[0] - data.eta
        return np.corrcoef(left.T)[np.triu_indices(4, 1)].mean()

    assert abs(residual(0.0)) < 0.02
    assert residual(0.7) > 0.2


def test_eta_is_the_stated_formula():
    data = posterior(500, 10, 10, num_labels=3, num_features=5, seed=4)
    odds = np.log(data.eta / (1 - data.eta))
    design = np.c_[np.ones(520), data.table.images.features]
    fitted, residual, *_ = np.linalg.lstsq(design, odds, rcond=None)
    assert residual.max() < 1e-8
    np.testing.assert_allclose(np.linalg.norm(fitted[1:], axis=0), 2.0, rtol=1e-5)


def test_deterministic_and_loadable_by_name():
    first, second = posterior(50, 5, 5, seed=9), posterior(50, 5, 5, seed=9)
    np.testing.assert_array_equal(first.eta, second.eta)
    named = load("posterior", num_train=50, num_val=5, num_test=5, seed=9)
    np.testing.assert_array_equal(named.targets()[0], first.table.targets()[0])


def test_bad_priors_are_refused():
    with pytest.raises(ValueError, match="0 < least <= most < 1"):
        posterior(least=0.5, most=0.2)
    with pytest.raises(ValueError, match="rho must be in"):
        posterior(rho=1.0)

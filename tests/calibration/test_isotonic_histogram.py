"""Oracles: sklearn's isotonic regression, counting in bins by hand, and held-out log loss."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from sklearn.isotonic import IsotonicRegression

from labelwise.calibration import histogram, isotonic
from labelwise.calibration.entries import choose
from labelwise.links import Sigmoid

UNKNOWN = pytest.mark.parametrize("unknown", [False, True])
DECIMALS = pytest.mark.parametrize("decimals", [1, 12])  # many ties, and none


def sklearn_isotonic(u, y, at):
    fit = IsotonicRegression(out_of_bounds="clip").fit(u, y)
    floor = 0.5 / (len(u) + 1)
    return fit.predict(at).clip(floor, 1 - floor)


def test_a_strength_is_judged_on_the_part_that_it_was_not_fitted_to():
    asked = []

    def losses(train, test):
        asked.append((train, test))
        return [1.0, 0.5, 0.7]

    assert choose((10.0, 1.0, 0.1), "abc", losses) == 1.0
    assert asked == [(["b", "c"], "a"), (["a", "c"], "b"), (["a", "b"], "c")]


@UNKNOWN
@DECIMALS
def test_isotonic_is_sklearns_of_each_label_or_of_everything(decimals, unknown):
    logits, labels, observed = problem(unknown=unknown)
    logits = logits.round(decimals=decimals)
    mask = torch.ones_like(labels) if observed is None else observed
    link = isotonic(logits, labels, Sigmoid(), observed, strength=0.0)
    at = torch.linspace(-9, 12, 500, dtype=torch.float64)
    for k in range(5):
        u, y = logits[mask[:, k], k].numpy(), labels[mask[:, k], k].double().numpy()
        # Between knots both interpolate, on knots rounded to float32 in ours.
        for own in (at, logits[:, k]):
            found = link(own[:, None].expand(-1, 5))[:, k]
            np.testing.assert_allclose(found, sklearn_isotonic(u, y, own.numpy()), atol=2e-3)
    link = isotonic(logits, labels, Sigmoid(), observed, scope="shared")
    u, y = logits[mask].numpy(), labels[mask].double().numpy()
    expected = sklearn_isotonic(u, y, logits.numpy().ravel()).reshape(logits.shape)
    np.testing.assert_allclose(link(logits), expected, atol=2e-3)


def test_isotonic_labels_share_as_their_rarer_side_says():
    logits, labels, _ = problem()
    labels[:, 3], labels[:, 4] = False, True
    link = isotonic(logits, labels, Sigmoid(), strength=50.0)
    shares = torch.from_numpy(link.shares)
    present = labels.double().sum(0)
    rarer = torch.minimum(present, 400 - present)
    torch.testing.assert_close(shares.double(), 50 / (50 + rarer), rtol=1e-6, atol=0)
    own, shared = link.curves_at(logits)
    mixed = (1 - shares) * own + shares * shared
    torch.testing.assert_close(link(logits), mixed)
    alone = isotonic(logits, labels, Sigmoid(), strength=0.0)
    assert alone.shares.tolist() == [0, 0, 0, 1, 1]
    torch.testing.assert_close(shared, isotonic(logits, labels, Sigmoid(), scope="shared")(logits))


@pytest.mark.parametrize("fit", [isotonic, histogram])
def test_the_chosen_strength_beats_the_ends_on_new_images(fit):
    strengths, losses = (0.0, 1e9, None), []
    for seed in range(3):
        logits, labels, _ = problem(400, 20, seed=seed, spread=1.0)
        links = [fit(logits[:200], labels[:200], Sigmoid(), strength=one) for one in strengths]
        losses.append([log_loss(link, logits[200:], labels[200:]) for link in links])
    none, all_shared, chosen = np.mean(losses, axis=0)
    assert chosen < min(none, all_shared + 1e-3)


@UNKNOWN
def test_histogram_levels_are_shares_of_present_labels(unknown):
    logits, labels, observed = problem(unknown=unknown)
    logits = logits.float()
    mask = torch.ones_like(labels) if observed is None else observed
    link = histogram(logits, labels, Sigmoid(), observed, bins=8, strength=5.0)
    shared = histogram(logits, labels, Sigmoid(), observed, bins=8, scope="shared")
    np.testing.assert_array_equal(link.edges, shared.edges)
    edges = [-np.inf, *link.edges.tolist(), np.inf]
    for b, (low, high) in enumerate(pairwise(edges)):
        inside = (logits > low) & (logits <= high) & mask
        pooled = (labels[inside].sum() + 0.5) / (inside.sum() + 1)
        assert shared.levels[0, b].item() == pytest.approx(pooled.item(), rel=1e-5)
        for k in range(5):
            count, present = inside[:, k].sum(), (labels & inside)[:, k].sum()
            level = (present + 5 * pooled) / (count + 5)
            assert link.levels[k, b].item() == pytest.approx(level.item(), rel=1e-5)
    lowest = link(logits)[logits[:, 0] <= edges[1], 0]
    torch.testing.assert_close(lowest, torch.full_like(lowest, link.levels[0, 0].item()))


def test_histogram_gives_rare_present_entries_their_share_of_bins():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=(3000, 5)) * 1.5 - 6
    labels = torch.from_numpy(rng.random((3000, 5)) < 1 / (1 + np.exp(-odds)))
    assert labels.double().mean() < 0.02
    link = histogram(odds, labels, Sigmoid(), bins=10, scope="shared")
    inside = np.searchsorted(link.edges, odds[labels.numpy()].astype(np.float32))
    assert (np.bincount(inside, minlength=10) / int(labels.sum())).max() < 0.25


def test_empty_bins_and_constant_scores():
    labels = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]])
    flat = torch.zeros(4, 2)
    for fit in (histogram, isotonic):
        link = fit(flat, labels, Sigmoid(), strength=1.0)
        torch.testing.assert_close(link(flat), torch.full((4, 2), 0.5), atol=0.1, rtol=0)
        assert torch.isfinite(link.log_probs(torch.tensor([[1e4, -1e4]]))[0]).all()
    assert histogram(flat, labels, Sigmoid(), strength=0.0).levels.shape[1] <= 2


def test_labels_without_any_observed_entry_take_the_shared_map():
    logits, labels, _ = problem(100)
    observed = torch.ones_like(labels)
    observed[:, 2] = False
    for fit in (histogram, isotonic):
        link = fit(logits, labels, Sigmoid(), observed, strength=3.0)
        shared = fit(logits, labels, Sigmoid(), observed, scope="shared")
        torch.testing.assert_close(link(logits)[:, 2], shared(logits)[:, 2])

"""Labels that exclude each other, and other shares without labels. Oracles: Bayes' rule, counts."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import logit, softmax

from labelwise.calibration import ZeroShare, expect_zero_share, within_groups
from labelwise.learn.objectives import SoftmaxOrNoneLink
from labelwise.links import Grouped, Sigmoid
from labelwise.taxonomy import AttributeColumns

PAIR = AttributeColumns(((0, 1),), ())


def world(seed, rows, labels, none=False):
    """Return the chances of labels of which a row has one, and who has which; the last is none."""
    rng = np.random.default_rng(seed)
    truth = softmax(2 * rng.normal(size=(rows, labels + none)), axis=1)
    drawn = (truth.cumsum(1) < rng.random(rows)[:, None]).sum(1)
    return truth, np.eye(labels + none)[drawn]


def probs(link, logits):
    return link(torch.tensor(logits)).numpy()


def test_labels_that_know_the_rule_already_are_not_made_surer():
    """Each label's own probability is right here, and three of them add up to 1."""
    truth, labels = world(0, 8000, 3)
    own, three = logit(truth), AttributeColumns(((0, 1, 2),), ())
    link = within_groups(own[:4000], labels[:4000], Sigmoid(), three)
    plain = Grouped(Sigmoid(), three.exactly_one)
    assert np.abs(probs(plain, own) - truth).mean() > 0.05
    assert np.abs(probs(link, own) - truth).mean() < 0.015


@pytest.mark.parametrize("share_known", [1.0, 0.4])
def test_at_most_one_of_three_is_fitted_from_what_is_known(share_known):
    truth, labels = world(2, 8000, 3, none=True)
    truth, labels = truth[:, :3], labels[:, :3]
    rng = np.random.default_rng(3)
    observed = rng.random(labels.shape) < share_known
    own = 3 * logit(truth) + np.array([1.0, 0.0, -1.0])  # too sure, and shifted
    columns = AttributeColumns((), ((0, 1, 2),))
    link = within_groups(own, labels, Sigmoid(), columns, observed)
    plain, fitted = probs(Grouped(Sigmoid(), (), columns.at_most_one), own), probs(link, own)
    assert np.abs(fitted - truth).mean() < np.abs(plain - truth).mean() / 2
    assert fitted.mean(0) == pytest.approx(truth.mean(0), abs=0.02)


def test_labels_outside_the_groups_keep_their_probabilities():
    truth, labels = world(4, 500, 2)
    rng = np.random.default_rng(5)
    logits = np.concatenate([logit(truth), rng.normal(size=(500, 2))], axis=1)
    every = np.concatenate([labels, rng.random((500, 2)) < 0.5], axis=1).astype(float)
    found = probs(within_groups(logits, every, Sigmoid(), PAIR), logits)
    assert found[:, 2:] == pytest.approx(probs(Sigmoid(), logits)[:, 2:], abs=1e-6)
    assert found[:, :2].sum(1) == pytest.approx(np.ones(500))


def test_rows_that_say_nothing_leave_bayes_rule_as_it_is():
    """Nothing is known of the first row, all that may be of the second, and the third conflicts."""
    logits = np.array([[1.0, -2.0], [0.5, 0.2], [2.0, 1.0]])
    labels = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    observed = labels == 1
    link = within_groups(logits, labels, Sigmoid(), PAIR, observed)
    assert probs(link, logits) == pytest.approx(softmax(logits, axis=1), abs=1e-6)
    wider, two = np.array([[1.0, -2.0, 0.5]]), np.array([[1.0, 1.0, 0.0]])  # two of three: a clash
    link = within_groups(wider, two, Sigmoid(), AttributeColumns(((0, 1, 2),), ()))
    assert probs(link, wider) == pytest.approx(softmax(wider, axis=1), abs=1e-6)


def by_counting(probs, ratio):
    """Return p' of independent labels, summed over all label sets."""
    total = marginals = 0.0
    for chosen in product([False, True], repeat=len(probs)):
        chance = np.where(chosen, probs, 1 - probs).prod() * (1.0 if any(chosen) else ratio)
        total, marginals = total + chance, marginals + chance * np.array(chosen)
    return marginals / total


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_independent_labels_follow_bayes_rule(ratio):
    logits = torch.from_numpy(3 * np.random.default_rng(0).normal(size=(7, 4)))
    expected = np.array([by_counting(row.numpy(), ratio) for row in logits.sigmoid()])
    link = ZeroShare(Sigmoid(), ratio)
    log_p, log_q = link.log_probs(logits)
    torch.testing.assert_close(log_p.exp(), torch.from_numpy(expected))
    torch.testing.assert_close(log_p.exp() + log_q.exp(), torch.ones_like(log_p))
    none = ratio * (1 - logits.sigmoid()).prod(dim=1)
    some = 1 - none / ratio
    torch.testing.assert_close(link.log_none(logits).exp(), none / (some + none))


@pytest.mark.parametrize("link", [Sigmoid(), SoftmaxOrNoneLink()])
def test_rounding_never_makes_a_probability_larger_than_one(link):
    logits = 8 * torch.randn(5000, 6, generator=torch.Generator().manual_seed(2)) - 6
    logits[:3] = torch.tensor([[80.0, -80.0], [-80.0, -80.0], [800.0, 800.0]]).repeat(1, 3)
    for ratio in (1e-3, 5.0):
        shifted = ZeroShare(link, ratio)
        for values in (*shifted.log_probs(logits), shifted.log_none(logits)):
            assert (values <= 0).all()


def test_unreviewed_images_do_not_count():
    labels = torch.tensor([[1, 0], [0, 0], [0, 0], [0, 0]])
    observed = torch.tensor([[True, True], [True, False], [False, False], [False, False]])
    assert expect_zero_share(Sigmoid(), labels, 0.75, observed).ratio == pytest.approx(3.0)
    assert expect_zero_share(Sigmoid(), labels, 0.75).ratio == pytest.approx(1.0)

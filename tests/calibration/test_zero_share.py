"""Another share of images without labels. Oracles: Bayes' rule by counting, and resampled data."""

import pytest
import torch

from labelwise.calibration import ZeroShare, expect_zero_share
from labelwise.links import Sigmoid
from labelwise.objectives import SoftmaxOrNoneLink


def logits_of(rows: int = 7, columns: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def by_counting(probs: list[float], ratio: float) -> list[float]:
    """Return p' of independent labels, summed over all label sets."""
    total, marginals = 0.0, [0.0] * len(probs)
    for chosen in range(1 << len(probs)):
        chance = ratio if chosen == 0 else 1.0
        for label, p in enumerate(probs):
            chance *= p if chosen >> label & 1 else 1 - p
        total += chance
        for label in range(len(probs)):
            marginals[label] += chance if chosen >> label & 1 else 0.0
    return [marginal / total for marginal in marginals]


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_independent_labels_follow_bayes_rule(ratio):
    logits = logits_of()
    expected = [by_counting(row.tolist(), ratio) for row in logits.sigmoid()]
    link = ZeroShare(Sigmoid(), ratio)
    log_p, log_q = link.log_probs(logits)
    torch.testing.assert_close(log_p.exp(), torch.tensor(expected, dtype=torch.float64))
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

"""The distribution-balanced loss; oracles: its formulas entry by entry, risks on a grid."""

from math import exp, log, log1p

import pytest
import torch

from labelwise.methods import make_objective
from labelwise.objectives import DistributionBalanced, distribution_balanced_loss
from labelwise.types import DatasetFacts, Outputs, Targets

SHARES = (0.5, 0.1, 0.01)


def sigmoid(x):
    return 1 / (1 + exp(-x))


def slow(logits, labels, observed):
    """The loss as the authors' code has it, with the constants of its MS-COCO configuration."""
    total, count = 0.0, 0
    for v, y, seen in zip(logits, labels, observed, strict=True):
        repeated = sum(1 / s for s, here in zip(SHARES, y, strict=True) if here)
        for k, share in enumerate(SHARES):
            if not seen[k]:
                continue
            ratio = (1 / share) / repeated if repeated else float("inf")
            weight = 0.1 + (1.0 if ratio == float("inf") else sigmoid(10 * (ratio - 0.2)))
            z = v[k] - 0.05 / 2 * log(1 / share - 1)
            if y[k]:
                total += 2 * weight * (1 - sigmoid(z)) ** 2 * log1p(exp(-z))
            else:
                total += 2 * weight * sigmoid(2 * z) ** 2 * log1p(exp(2 * z)) / 2
            count += 1
    return total / count


def test_is_the_formula_entry_by_entry():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 3, generator=generator, dtype=torch.float64)
    labels = (torch.rand(7, 3, generator=generator) < 0.4).double()
    labels[0] = 0
    observed = torch.rand(7, 3, generator=generator) < 0.8
    labels = torch.where(observed, labels, 0.0)
    expected = slow(logits.tolist(), labels.tolist(), observed.tolist())
    objective = make_objective("db", DatasetFacts(7, 3, 1.0, SHARES))
    found = objective(Outputs(logits), Targets(labels, observed))
    assert found.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("truth", "read"), [(0.1, 0.38), (0.5, 0.50), (0.9, 0.66)])
def test_what_a_sigmoid_makes_of_true_probabilities(truth, read):
    z = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    ones = torch.ones_like(z)
    halves = [distribution_balanced_loss(z, y * ones, ones, scale=2.0, gamma=2.0) for y in (1, 0)]
    risk = truth * halves[0] + (1 - truth) * halves[1]
    assert torch.sigmoid(z[risk.argmin()]).item() == pytest.approx(read, abs=0.0051)


def test_labels_without_images_and_senseless_settings():
    objective = DistributionBalanced((0.0, 1.0))
    assert torch.isfinite(objective(torch.zeros(2, 2), torch.eye(2)))
    with pytest.raises(ValueError, match="scale must be positive"):
        DistributionBalanced(SHARES, scale=0.0)

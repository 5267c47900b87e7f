"""Terms that ask for calibration; oracles: double loops, expected risks on a grid."""

from math import comb

import pytest
import torch
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.methods import METHODS, make_objective
from labelwise.objectives import BCE, MMCE, LogitMargin, MeanDifference, kernel_calibration_error
from labelwise.types import DatasetFacts, Outputs, Targets

FACTS = DatasetFacts(8, 3, 1.0, (0.3,) * 3)


def batch(rows=8, labels=3):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, labels, generator=generator, dtype=torch.float64)
    truth = (torch.rand(rows, labels, generator=generator) < 0.4).double()
    observed = torch.rand(rows, labels, generator=generator) < 0.7
    return logits, truth, observed


def value(term, logits, labels, observed=None):
    return term(Outputs(logits), Targets(labels, observed), Sigmoid())


@pytest.mark.parametrize("width", [0.4, 0.1])
def test_mmce_is_the_sum_over_all_pairs(width):
    logits, labels, observed = batch()
    probs, truth = torch.sigmoid(logits)[observed], labels[observed]
    total = 0.0
    for p, y in zip(probs, truth, strict=True):
        for q, z in zip(probs, truth, strict=True):
            total += (y - p) * (z - q) * torch.exp(-(p - q).abs() / width)
    expected = total / len(probs) ** 2
    torch.testing.assert_close(value(MMCE(width), logits, labels, observed), expected)
    everything = kernel_calibration_error(probs, truth, torch.ones_like(probs), width)
    torch.testing.assert_close(everything, expected)


def test_mdca_is_the_mean_gap_of_labels_that_were_seen():
    logits, labels, observed = batch()
    observed[:, 1] = False
    gaps = []
    for column in (0, 2):
        seen = observed[:, column]
        probs = torch.sigmoid(logits[seen, column])
        gaps.append((probs.mean() - labels[seen, column].mean()).abs())
    expected = torch.stack(gaps).mean()
    torch.testing.assert_close(value(MeanDifference(), logits, labels, observed), expected)


def test_mbls_is_what_exceeds_the_margin():
    logits, labels, observed = batch()
    excess = [max(0.0, abs(v.item()) - 2.0) for v in logits[observed]]
    found = value(LogitMargin(2.0), logits, labels, observed)
    assert found.item() == pytest.approx(sum(excess) / len(excess))


def optimum(risk):
    """The probability at which a risk of one logit is least, on a fine grid."""
    grid = torch.linspace(-14, 14, 280_001, dtype=torch.float64)
    return torch.sigmoid(grid[risk(grid).argmin()]).item()


@pytest.mark.parametrize("truth", [0.0005, 0.05, 0.5, 0.9995])
def test_mbls_clips_probabilities_at_its_margin_and_leaves_the_others(truth):
    margin, weight = 6.0, METHODS["bce+mbls"].options["term_weight"]

    def risk(v):
        beyond = (v.abs() - margin).clamp(min=0)
        return truth * softplus(-v) + (1 - truth) * softplus(v) + weight * beyond

    ends = torch.sigmoid(torch.tensor([-margin, margin], dtype=torch.float64)).tolist()
    assert optimum(risk) == pytest.approx(min(max(truth, ends[0]), ends[1]), abs=1e-4)


def test_mdca_calls_rare_labels_rarer():
    """Of 32 images with a label of 1 in 100, all read by one logit, the batch mean is mostly 0."""
    truth, size, weight = 0.01, 32, 1.0

    def risk(v):
        p = torch.sigmoid(v)
        chances = [comb(size, n) * truth**n * (1 - truth) ** (size - n) for n in range(size + 1)]
        gap = sum(chance * (p - n / size).abs() for n, chance in enumerate(chances))
        return truth * softplus(-v) + (1 - truth) * softplus(v) + weight * gap

    assert optimum(risk) == pytest.approx(0.0069, abs=1e-4)


def test_mmce_leaves_the_optimum_where_it_is():
    """The expectation over all label vectors of two images, by hand, as a function of both p."""
    chances = torch.tensor([0.03, 0.4], dtype=torch.float64)
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    vectors = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 2)
    weights = torch.where(vectors == 1, chances, 1 - chances).prod(dim=1)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")
    objective = make_objective("bce+mmce", FACTS, term_weight=6.0)

    def closure():
        optimizer.zero_grad()
        losses = [objective(Outputs(logits[:, None]), Targets(y[:, None])) for y in vectors]
        risk = (weights * torch.stack(losses)).sum()
        risk.backward()
        return risk

    for _ in range(4):
        optimizer.step(closure)
    torch.testing.assert_close(torch.sigmoid(logits.detach()), chances, atol=1e-5, rtol=0)


def test_weights_are_options_and_reach_the_term():
    logits, labels, _ = batch()
    plain = BCE()(logits, labels)
    for name, term in (("mmce", MMCE()), ("mdca", MeanDifference()), ("mbls", LogitMargin())):
        found = make_objective(f"bce+{name}", FACTS, term_weight=0.7)(logits, labels)
        torch.testing.assert_close(found, plain + 0.7 * value(term, logits, labels))


def test_senseless_settings_are_refused():
    with pytest.raises(ValueError, match="width must be above"):
        MMCE(0.0)
    with pytest.raises(ValueError, match="margin must not be negative"):
        LogitMargin(-1.0)

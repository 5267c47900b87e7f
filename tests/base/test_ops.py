"""Stable primitives and draws. Oracles: torch on the kept entries, float64, SplitMix64."""

import pytest
import torch
from scipy.stats import kstest

from labelwise.base.array_api import log1mexp, log_softmax_and_rest, log_softplus
from labelwise.learn.objectives.base import (
    masked_logsumexp,
    masked_mean,
    normals,
    split_labels,
    uniforms,
)


def test_masked_logsumexp_is_logsumexp_of_the_kept():
    values = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, 6) < 0.5
    mask[0], mask[1:, 0] = False, True
    found = masked_logsumexp(values, mask, 1)
    for row in range(1, 4):
        torch.testing.assert_close(found[row], values[row][mask[row]].logsumexp(dim=0))
    assert found.isfinite().all()
    found.sum().backward()
    assert values.grad.isfinite().all()
    assert (values.grad[~mask] == 0).all()


def test_masked_mean_of_nothing_is_zero_with_a_gradient():
    values = torch.full((2, 2), float("inf"), requires_grad=True)
    found = masked_mean(values, torch.zeros(2, 2, dtype=torch.bool))
    found.backward()
    assert found == 0 == values.grad.abs().max()


def test_split_labels_leaves_the_unobserved_out_of_both():
    labels = torch.tensor([0.0, 1.0, 0.7, 0.5, 1.0, 0.0])
    present, absent = split_labels(labels, torch.arange(6) < 4)
    assert present.tolist() == [False, True, True, False, False, False]
    assert absent.tolist() == [True, False, False, True, False, False]


def test_logs_keep_their_digits():
    x = torch.tensor([-1e-7, -1e-3, -0.5, -0.8, -20.0, -100.0])
    expected = torch.log(-torch.expm1(x.double()))
    torch.testing.assert_close(log1mexp(x).double(), expected, rtol=1e-6, atol=1e-30)
    x = torch.tensor([-90.0, -31.0, -29.0, 0.0, 50.0])
    expected = torch.log(torch.log1p(x.double().exp()))
    torch.testing.assert_close(log_softplus(x).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_softmax_keeps_both_logs_where_p_rounds_to_one(spread):
    draws = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    values = (spread * draws).double().requires_grad_()
    log_p, log_rest = log_softmax_and_rest(values)
    total = values.logsumexp(dim=1)
    for k in range(5):
        others = values[:, [j for j in range(5) if j != k]].logsumexp(dim=1)
        torch.testing.assert_close(log_p[:, k], values[:, k] - total)
        torch.testing.assert_close(log_rest[:, k], others - total)
    log_rest.sum().backward()
    assert values.grad.isfinite().all()


MASK = (1 << 64) - 1


def split_mix(state):
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_it_is_split_mix():
    assert split_mix(0) == 0xE220A8397B1DCDAF  # the first number of the published generator
    positions = torch.tensor([0, 1, 2, 10**12])
    for seed in (0, 1, -5):
        start = split_mix(seed & MASK)
        slow = [split_mix(start ^ position) >> 40 for position in positions.tolist()]
        expected = torch.tensor(slow, dtype=torch.float64) / 2**24
        torch.testing.assert_close(uniforms(positions, seed).double(), expected, rtol=0, atol=0)


def test_distributions():
    positions = torch.arange(4000)
    for draw, law in ((uniforms, "uniform"), (normals, "norm")):
        chances = [kstest(draw(positions, seed).double(), law).pvalue for seed in range(20)]
        assert kstest(chances, "uniform").pvalue > 0.01

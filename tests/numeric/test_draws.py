"""Draws by position against SplitMix64 in Python's integers, and against their distributions."""

import torch
from scipy.stats import kstest

from labelwise.objectives.base import normals, uniforms

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
        draws = [draw(positions, seed).double().numpy() for seed in range(30)]
        chances = [kstest(numbers, law).pvalue for numbers in draws]
        assert kstest(chances, "uniform").pvalue > 0.01
    many = uniforms(torch.arange(200_000), 0)
    assert many.min() >= 0
    assert many.max() < 1


def test_neighbours_in_seed_and_place_are_unrelated():
    noise = normals(torch.arange(20_000), 7)
    assert noise.isfinite().all()
    both = torch.stack([noise, normals(torch.arange(20_000), 8), noise.roll(1)])
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.03

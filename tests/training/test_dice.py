"""The dice of augmentation: SplitMix64, the same wherever an image travels, evenly spread."""

import numpy as np
import torch
from scipy import stats

from labelwise.training.augment import Dice

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def scramble(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def splitmix(seed: int, draw: int) -> int:
    """Return the numbered output of SplitMix64, in whole Python numbers."""
    return scramble((seed + draw * GAMMA) & MASK)


def test_splitmix_is_the_published_generator():
    # The first outputs for seed 1234567, as in the test vectors of other implementations.
    assert splitmix(1234567, 1) == 6457827717110365317
    assert splitmix(1234567, 2) == 3203168211198807973


def test_draws_are_those_of_splitmix_for_every_place():
    key, places = (1 << 62) + 12345, [0, 1, 7, 10**12]
    dice = Dice(key, torch.tensor(places))
    streams = [scramble((key + place * GAMMA) & MASK) for place in places]
    shares = [splitmix(stream, 1) / 2**64 for stream in streams]
    torch.testing.assert_close(dice.uniform(), torch.tensor(shares), atol=2**-24, rtol=0)
    assert dice.integers(-3, 8).tolist() == [(splitmix(s, 2) >> 1) % 11 - 3 for s in streams]
    assert dice.coin().tolist() == [splitmix(s, 3) >= 1 << 63 for s in streams]


def test_an_images_numbers_do_not_depend_on_its_batch():
    whole, part = Dice(3, torch.arange(100)), Dice(3, torch.arange(40, 60))
    for _ in range(3):
        assert torch.equal(whole.uniform()[40:60], part.uniform())


def test_draws_are_even_and_unrelated():
    dice = Dice(11, torch.arange(20_000))
    first, second = dice.uniform().numpy(), dice.uniform().numpy()
    faces = np.bincount(dice.integers(0, 9).numpy(), minlength=9)
    other = Dice(12, torch.arange(20_000)).uniform().numpy()
    assert stats.kstest(first, "uniform").pvalue > 1e-4
    assert stats.chisquare(faces).pvalue > 1e-4
    assert 0 <= first.min() < first.max() < 1
    for one, two in ((first, second), (first, other), (first[1:], first[:-1])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 4 / np.sqrt(20_000)

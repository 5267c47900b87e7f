"""The dice of augmentation: the same wherever an image travels, evenly spread, unrelated."""

import numpy as np
import torch
from scipy import stats

from labelwise.draws import uniforms
from labelwise.training.augment import Dice, mix


def test_draws_are_those_of_key_draw_and_place():
    dice, places = Dice(7, torch.tensor([5, 2, 2])), torch.tensor([5, 2, 2])
    assert torch.equal(dice.uniform(-1, 3), uniforms(places, mix(7, 1)) * 4 - 1)
    assert torch.equal(dice.integers(-3, 8), (uniforms(places, mix(7, 2)) * 11).long() - 3)
    assert torch.equal(dice.coin(), uniforms(places, mix(7, 3)) < 0.5)


def test_an_images_numbers_do_not_depend_on_its_batch():
    whole, part = Dice(3, torch.arange(100)), Dice(3, torch.arange(40, 60))
    for _ in range(3):
        assert torch.equal(whole.uniform()[40:60], part.uniform())


def test_draws_are_even_and_unrelated():
    dice = Dice(11, torch.arange(20_000))
    first, second = dice.uniform().numpy(), dice.uniform().numpy()
    faces = np.bincount(dice.integers(0, 9).numpy(), minlength=9)
    other = Dice(12, torch.arange(20_000)).uniform().numpy()
    assert stats.chisquare(faces).pvalue > 1e-4
    assert len(faces) == 9
    for one, two in ((first, second), (first, other), (second, other)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 4 / np.sqrt(20_000)

"""Batched augmentation against torchvision, one image at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import functional as tv
from torchvision.transforms.autoaugment import RandAugment as PeerRand
from torchvision.transforms.autoaugment import TrivialAugmentWide, _apply_op
from torchvision.transforms.functional import InterpolationMode

from labelwise.errors import SettingsError
from labelwise.training.augment import (
    AUGMENTATIONS,
    OPERATIONS,
    TRIVIAL,
    ImageDraws,
    amounts,
    apply,
    cut_out,
    draw_windows,
    make_augment,
    mix,
    rand_ranges,
    shift,
    zoom,
)

THEIRS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
PEER_NAMES = dict(zip(OPERATIONS, THEIRS, strict=True))
AMOUNTS = {
    "shear-x": (-0.7, 0.3),
    "shear-y": (-0.4, 0.9),
    "translate-x": (-7.6, 3.2),
    "translate-y": (-2.9, 11.0),
    "rotate": (-33.3, 121.0),
    "posterise": (2.0, 8.0),
    "solarise": (0.0, 127.5),
}


def pixels(rows: int = 2, height: int = 20, width: int = 28, seed: int = 0) -> torch.Tensor:
    """Smooth pictures with a little noise, so that histograms and edges are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(rows, 3, 4, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = 0.1 * torch.rand(rows, 3, height, width, generator=generator)
    return (255 * (0.9 * smooth + noise)).to(torch.uint8)


def draws(key: int, rows: int) -> ImageDraws:
    return ImageDraws(key, torch.arange(rows))


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchvisions(name):
    images = pixels()
    amounts = torch.tensor(AMOUNTS.get(name, (-0.8, 0.6)))
    ours = apply(images, torch.full((2,), OPERATIONS.index(name)), amounts)
    for image, amount, result in zip(images, amounts.tolist(), ours, strict=True):
        peer = _apply_op(image, PEER_NAMES[name], amount, InterpolationMode.NEAREST, None)
        same = (peer == result).float().mean().item()
        geometric = name in ("shear-x", "shear-y", "rotate")
        # A sampling place half way between two pixels may go either way in the last bit.
        assert same >= (0.99 if geometric else 1.0), (name, amount, same)


def test_equalise_leaves_a_flat_channel():
    flat = torch.full((1, 3, 8, 8), 77, dtype=torch.uint8)
    for name in ("equalise", "autocontrast"):
        operation = torch.tensor([OPERATIONS.index(name)])
        assert torch.equal(apply(flat, operation, torch.zeros(1)), flat)


SPACES = (
    (TRIVIAL, TrivialAugmentWide()._augmentation_space(31)),
    (rand_ranges(20, 28), PeerRand()._augmentation_space(31, (20, 28))),
)


@pytest.mark.parametrize(("ranges", "space"), SPACES, ids=["trivial", "rand"])
def test_strengths_are_torchvisions(ranges, space):
    levels = torch.arange(31.0)
    for place, name in enumerate(OPERATIONS):
        magnitudes, signed = space[PEER_NAMES[name]]
        expected = magnitudes if magnitudes.ndim else torch.zeros(31)
        operation = torch.full((31,), place)
        ours = amounts(operation, levels, torch.ones(31), ranges)
        torch.testing.assert_close(ours, expected.float(), msg=name)
        turned = amounts(operation, levels, -torch.ones(31), ranges)
        torch.testing.assert_close(turned, -ours if signed else ours, msg=name)


@given(down=st.integers(-4, 4), right=st.integers(-4, 4))
@settings(max_examples=10, deadline=None)
def test_shift_is_a_crop_of_the_padded_image(down, right):
    images, by = pixels(), (torch.tensor([down, 0]), torch.tensor([right, 0]))
    for repeats, mode in ((False, "constant"), (True, "edge")):
        ours = shift(images, *by, repeat_edge=repeats)
        padded = tv.pad(images[0], [4, 4, 4, 4], padding_mode=mode)
        assert torch.equal(ours[0], padded[:, 4 + down :, 4 + right :][:, :20, :28])
        assert torch.equal(ours[1], images[1])


@given(box=st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(10, 20), st.integers(9, 28)))
@settings(max_examples=10, deadline=None)
def test_zoom_is_a_resized_crop(box):
    top, left, bottom, right = box[0], box[1], max(box[2], box[0] + 3), max(box[3], box[1] + 3)
    images = pixels()
    shares = torch.tensor([[left / 28, top / 20, right / 28, bottom / 20]] * 2)
    ours = zoom(images, shares)[0].float()
    window = images[0, :, top:bottom, left:right].float()
    peer = tv.resize(window, [20, 28], antialias=False)
    # Half a pixel from a window's border we see the pixels beside it; torchvision repeats the edge.
    rows, columns = math.ceil(10 / (bottom - top)), math.ceil(14 / (right - left))
    inner = (ours - peer).abs()[:, rows:-rows, columns:-columns]
    assert inner.max() <= 1.01


def test_windows_have_the_stated_area_shape_and_place():
    windows = draw_windows(draws(3, 4000))
    left, top, right, bottom = windows.boxes(aspect=1.5).unbind(1)
    wide, high = right - left, bottom - top
    assert ((left >= 0) & (top >= 0) & (right <= 1.0001) & (bottom <= 1.0001)).all()
    free = (wide < 1) & (high < 1)
    area, shape = (wide * high)[free], 1.5 * (wide / high)[free]
    assert area.min() > 0.079
    assert 0.749 < shape.min() < 0.78
    assert 1.28 < shape.max() < 1.334
    torch.testing.assert_close(windows.area.mean(), torch.tensor(0.54), atol=0.02, rtol=0)


@given(aspect=st.floats(0.4, 2.5), seed=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_a_scaled_decode_still_fills_the_window(aspect, seed):
    windows = draw_windows(draws(seed, 1))
    side = windows.one(0).at_least(224)
    width, height = (side * aspect, side) if aspect >= 1 else (side, side / aspect)
    left, top, right, bottom = windows.boxes(width / height)[0].tolist()
    assert min((right - left) * width, (bottom - top) * height) >= 224 * 0.999


def test_cutout_covers_the_square_around_its_centre():
    images = torch.full((2, 3, 10, 12), 9, dtype=torch.uint8)
    cut = cut_out(images, torch.tensor([4, 0]), torch.tensor([5, 11]), length=4)
    holes = cut[:, 0] == 0
    assert holes[0, 2:6, 3:7].all()
    assert holes.sum((1, 2)).tolist() == [16, 2 * 3]


def augmented(recipe, images, draws):
    for step in make_augment(recipe):
        images = step(images, draws)
    return images


@pytest.mark.parametrize("recipe", [*AUGMENTATIONS, "crop-flip+trivial+cutout"])
def test_recipes_keep_shape_and_repeat_with_the_seed(recipe):
    images = pixels(rows=6, height=24, width=24)
    once, again, other = (augmented(recipe, images, draws(mix(1, 2, k), 6)) for k in (3, 3, 4))
    assert once.shape == images.shape
    assert once.dtype == torch.uint8
    assert torch.equal(once, again)
    assert torch.equal(once, other) == (recipe == "none")
    share = ImageDraws(mix(1, 2, 3), torch.arange(2, 4))  # of another process
    assert torch.equal(augmented(recipe, images[2:4], share), once[2:4])


def test_flip_mirrors_half_of_the_images():
    images = pixels(rows=1, height=8, width=8).expand(400, -1, -1, -1)
    flipped = augmented("flip", images, draws(0, 400))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert abs(mirrored.float().mean() - 0.5) < 4 * math.sqrt(0.25 / 400)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(SettingsError, match="'crop-flp'; did you mean 'crop-flip'"):
        make_augment("none+crop-flp")

"""Pillow's resize on tensors. Oracle: Pillow, to the bit."""

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

import labelwise.pictures.transform as transform_module
from labelwise.pictures import Transform, resample

SIZES = [(64, 64), (63, 65), (100, 75), (31, 200), (641, 427), (40, 30), (20, 900), (900, 20)]


def noise(width, height):
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_planes_are_resized_as_pillow_does(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    for size in SIZES:
        image = noise(*size)
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        assert transform.resizes_planes(*size)
        found = transform.resize_planes(planes[None])[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(found, np.asarray(transform.resize(image)), err_msg=str(size))


def test_a_tall_picture_is_averaged_down_before_it_is_squashed(monkeypatch):
    """Rows that come three times are one row of a third of the picture, which is within limits."""
    monkeypatch.setattr(transform_module, "MAX_SCALED", 1 << 12)
    transform, small = Transform(16), np.asarray(noise(5, 230))
    tall = Image.fromarray(small.repeat(3, axis=0))
    assert transform.resizes_planes(5, 230)
    assert not transform.resizes_planes(*tall.size)
    found, expected = transform.resize(tall), transform.resize(Image.fromarray(small))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_a_side_shrunk_far_is_summed_exactly():
    """White and black at full weight: the largest sums there are, of the largest number of taps."""
    transform = Transform(8, interpolation="lanczos")
    for image in (noise(4000, 30), Image.fromarray(np.asarray(noise(4000, 30)) // 128 * 255)):
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        found = transform.resize_planes(planes).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(found, np.asarray(transform.resize(image)))


def test_the_kernel_of_a_gpu_gives_the_same_levels(monkeypatch):
    """Its program run by Triton's interpreter. Oracle: the same axis tap by tap, tried above."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(resample, "_kernel", cache(resample._kernel.__wrapped__))
    rng = np.random.default_rng(0)
    planes = torch.from_numpy(rng.choice([0, 3, 255], (2, 19, 300)).astype(np.uint8))
    for axis, vertical in (((300, 150, 3, 140), False), ((19, 10, 1, 9), True)):
        taps = resample._taps(axis, "bicubic", torch.device("cpu"))
        found = resample._by_kernel(planes, *taps, vertical=vertical)
        assert torch.equal(found, resample._by_taps(planes, *taps, vertical=vertical))


def test_what_planes_cannot_do_is_said():
    assert not Transform(64, interpolation="nearest").resizes_planes(100, 80)
    assert not Transform(64).resizes_planes(10, 1 << 21)
    assert Transform(64, interpolation="nearest").resizes_planes(64, 64)

"""Pillow's resize as matrix products. Oracle: Pillow, to the bit."""

import numpy as np
import pytest
import torch
from PIL import Image

import labelwise.pictures.transform as transform_module
from labelwise.pictures import Transform, resample
from labelwise.pictures.resample import _on_device

SIZES = [
    (64, 64),
    (63, 65),
    (100, 75),
    (75, 100),
    (31, 200),
    (641, 427),
    (40, 30),
    (20, 900),
    (900, 20),
]


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


def test_a_side_shrunk_far_is_summed_in_float64():
    """White at full weight: the largest sums there are, of the largest number of taps."""
    transform = Transform(8, interpolation="lanczos")
    weights, _, _ = _on_device((4000, 8, 0, 8), "lanczos", torch.device("cpu"))
    assert weights.dtype == torch.float64
    image = noise(4000, 300)
    planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    found = transform.resize_planes(planes).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found, np.asarray(transform.resize(image)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_parts_of_weights_are_exact_in_eleven_bits(interpolation):
    """So that TF32, which keeps eleven bits, changes nothing; and float32 sums stay exact."""
    for length in (30, 64, 100, 500, 1080):
        weights, _, _ = _on_device((length, 64, 0, 64), interpolation, torch.device("cpu"))
        if weights.dtype == torch.float32:
            assert weights.abs().max() <= 2**11
            assert 255 * weights.abs().sum(2).max() < 2**24


def rounded_to_half(left, right, *, out_dtype):
    """What a GPU's product does: float16 in, float32 sums."""
    assert left.dtype == right.dtype == torch.float16
    return left.to(out_dtype) @ right.to(out_dtype)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_products_of_float16_are_exact_too(interpolation, monkeypatch):
    monkeypatch.setattr(resample, "_half_is_exact", lambda device: True)
    monkeypatch.setattr(torch, "mm", rounded_to_half)
    monkeypatch.setattr(torch, "bmm", rounded_to_half)
    transform = Transform(64, interpolation=interpolation, crop=0.875)
    _on_device.cache_clear()
    try:
        for size in SIZES:
            image = noise(*size)
            planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            found = transform.resize_planes(planes.expand(2, -1, -1, -1))
            expected = np.asarray(transform.resize(image))
            for picture in found:
                np.testing.assert_array_equal(picture.permute(1, 2, 0).numpy(), expected, str(size))
        weights, first, last = _on_device((500, 73, 4, 64), interpolation, torch.device("cpu"))
        assert weights.dtype == torch.float16
        assert (last - first) % 8 == 0
    finally:
        _on_device.cache_clear()


def test_a_device_that_rounds_is_not_given_float16(monkeypatch):
    """By stand-ins for a GPU's products: an exact one, one that rounds, one that is missing."""

    class Cuda(str):
        type = "cuda"

    tried = resample._half_is_exact.__wrapped__
    monkeypatch.setattr(resample, "_half_product", lambda a, b: a.float() @ b.float())
    assert tried(Cuda("cpu"))
    monkeypatch.setattr(resample, "_half_product", lambda a, b: (a.float() @ b.float()).half())
    assert not tried(Cuda("cpu"))
    monkeypatch.undo()
    assert not tried(Cuda("cpu"))  # whose products of float16 have float16 sums
    assert not tried(torch.device("cpu"))


def test_what_planes_cannot_do_is_said():
    assert not Transform(64, interpolation="nearest").resizes_planes(100, 80)
    assert not Transform(64).resizes_planes(10, 1 << 21)
    assert Transform(64, interpolation="nearest").resizes_planes(64, 64)

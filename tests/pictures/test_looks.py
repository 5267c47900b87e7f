"""Oracle: the fingerprint of the same picture as a file, which Pillow and SciPy make."""

import io

import numpy as np
import torch
from PIL import Image

from labelwise.pictures.duplicates import NEAR, WIDTH, fingerprint, looks_of


def photo(seed):
    """Return a smooth picture (64, 96, 3), as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((96, 64), Image.Resampling.BICUBIC))


def encoded(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def inputs(*pictures):
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def test_pixels_look_as_their_file_does():
    pictures = [photo(seed) for seed in range(4)]
    looks = looks_of(inputs(*pictures)).numpy()
    files = np.stack([fingerprint(encoded(one), "") for one in pictures])
    assert looks.shape == (4, WIDTH)
    assert (looks * files).sum(axis=1).min() > 0.999
    others = looks @ files.T - 2 * np.eye(4)
    assert others.max() < NEAR


def test_plain_pictures_look_like_nothing():
    plain = np.full((64, 96, 3), 200, np.uint8)
    assert not looks_of(inputs(plain)).any()
    assert not looks_of(inputs(plain).float()).any()


def test_bands_look_alike_in_any_unit():
    """Reflectances between 0 and 1 and the same as counts: one look."""
    bands = inputs(photo(1), photo(2)).float()
    torch.testing.assert_close(looks_of(bands), looks_of(bands / 10_000), atol=1e-4, rtol=0)
    assert (looks_of(bands).norm(dim=1) - 1).abs().max() < 1e-5

"""Copies of photos. Oracles: the copies that were made, photos that look alike from afar."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from labelwise.pictures.copies import (
    LINE,
    Pattern,
    alike_by_looks,
    copied_groups,
    copied_pairs,
    evidence,
    mirrored,
)
from labelwise.pictures.duplicates import NEAR, look_of


def scene(seed, size=240):
    """Return a picture of blobs at many scales."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((size, size, 3))
    for cells in (4, 8, 16, 32, 64):
        noise = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        layer = Image.fromarray(noise).resize((size, size), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, float) / 5
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def recompressed(picture):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=25)
    return Image.open(file)


MADE = {
    "recompressed": recompressed,
    "smaller": lambda picture: picture.resize((90, 90)),
    "brighter and grey": lambda picture: ImageEnhance.Brightness(picture).enhance(1.3).convert("L"),
    "mirrored": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "cropped": lambda picture: picture.crop((50, 15, 50 + 168, 15 + 168)),
    "mirrored and cropped": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop(
        (10, 60, 178, 228)
    ),
    "turned": lambda picture: picture.rotate(5, Image.Resampling.BICUBIC).crop((17, 17, 223, 223)),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_copy_is_found_whichever_of_both_comes_first(kind):
    whole = Pattern.of(scene(1))
    copy = Pattern.of(MADE[kind](scene(1)))
    other = Pattern.of(MADE[kind](scene(2)))
    assert min(evidence(whole, copy), evidence(copy, whole)) >= LINE
    assert max(evidence(whole, other), evidence(other, whole)) < LINE - 1


def smooth(seed):
    """Return a slope of light with fine detail of its own, such as fog over hills."""
    rows, columns = np.mgrid[:240, :240] / 240
    detail = np.asarray(scene(seed).convert("L"), float) - 128
    pixels = 40 + 160 * rows + 10 * columns + 0.15 * detail
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def test_smooth_photos_that_look_alike_from_afar_are_not_copies():
    """Two slopes of light have one fingerprint: the second kind of evidence tells them apart."""
    one, other = smooth(3), smooth(4)
    assert look_of(one) @ look_of(other) >= NEAR
    assert evidence(Pattern.of(one), Pattern.of(other)) < LINE
    again = Pattern.of(recompressed(one))
    assert evidence(Pattern.of(one), again) >= LINE


def test_pictures_of_few_pixels_are_too_small_to_tell_and_small_copies_are_found():
    # Oracle: noise drawn anew. In 48 pixels something agrees by chance (evidence up to 13 once).
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)) for _ in range(12)]
    patterns = [Pattern.of(picture) for picture in noise]
    assert max(evidence(one, two) for one in patterns for two in patterns if one is not two) < LINE
    small = scene(3).resize((32, 32))
    assert evidence(Pattern.of(small), Pattern.of(recompressed(small))) >= LINE


def test_a_picture_of_one_colour_is_a_copy_of_nothing():
    plain = Pattern.of(Image.new("RGB", (60, 40), (90, 90, 90)))
    assert evidence(plain, plain) == 0
    assert evidence(plain, Pattern.of(scene(1))) == 0


def test_groups_join_copies_and_mirror_images_and_leave_look_alikes_apart():
    """Oracle: how the pictures were made; 5 and 6 look alike from afar, 7 is of one colour."""
    flip = Image.Transpose.FLIP_LEFT_RIGHT
    pictures = [scene(1), scene(2), recompressed(scene(1)), scene(2).transpose(flip), scene(5)]
    pictures += [smooth(3), smooth(4), Image.new("RGB", (50, 50))]
    looks = np.stack([look_of(picture) for picture in pictures])
    pairs = alike_by_looks(looks)
    assert [5, 6] in pairs.tolist()
    sure, _ = copied_pairs(pairs, lambda row: Pattern.of(pictures[row]))
    groups = copied_groups(len(pictures), sure)
    assert groups.tolist() == [0, 1, 0, 1, 4, 5, 6, 7]
    assert mirrored(looks)[1] @ looks[3] > 0.99

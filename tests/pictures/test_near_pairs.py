"""Looks. Oracles: fingerprints of files by Pillow and SciPy; all pairs compared, in a loop."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from tiny_predictor import encoded

from labelwise.pictures import duplicates as module
from labelwise.pictures.copies import (
    LINE,
    Pattern,
    alike_by_looks,
    copied_groups,
    copied_pairs,
    evidence,
    mirrored,
)
from labelwise.pictures.duplicates import (
    NEAR,
    compared_groups,
    fingerprint,
    first_near,
    look_of,
    looks_of,
)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def with_copies(rng, count, width=40, noise=0.03):
    """Vectors at random, and a copy of every tenth that is turned a little."""
    plain = unit(rng.standard_normal((count, width)))
    copies = unit(plain[::10] + noise * rng.standard_normal((len(plain[::10]), width)))
    return np.concatenate([plain, copies]).astype(np.float32)


def series(rng, count, step=0.5, width=40):
    """Unit vectors that turn slowly: neighbours are near each other, the ends are not."""
    walk = np.cumsum(step * rng.standard_normal((count, width)), axis=0)
    return unit(walk + 4 * rng.standard_normal(width)).astype(np.float32)


def test_each_vector_goes_with_the_earliest_that_leads():
    rng = np.random.default_rng(3)
    vectors = np.concatenate([series(rng, 60), with_copies(rng, 100)])
    vectors[80] = 0
    expected: list[int] = []
    for row, vector in enumerate(vectors):
        leaders = (one for one in range(row) if expected[one] == one)
        expected.append(next((one for one in leaders if vectors[one] @ vector >= 0.95), row))
    assert first_near(vectors, 0.95).tolist() == expected
    assert 2 < len(set(expected[:60])) < 30  # the series is several pictures
    known = first_near(vectors[:90], 0.95)
    assert known.tolist() == expected[:90]
    assert first_near(vectors, 0.95, known).tolist() == expected
    assert first_near(vectors[:0], 0.95).tolist() == []


@pytest.fixture
def listed(monkeypatch):
    """How many pairs each comparison of vectors lists."""
    numbers = []

    def counted(*given, compare=module._compared):
        found = compare(*given)
        numbers.append(len(found))
        return found

    monkeypatch.setattr(module, "_compared", counted)
    return numbers


def test_thousands_that_are_all_near_each_other_are_one_without_their_pairs(listed):
    """4,000 vectors of one direction have 8 million pairs; hardly any is listed."""
    rng = np.random.default_rng(4)
    alike = unit(np.ones(40) + 0.05 * rng.standard_normal((4000, 40)))
    vectors = np.concatenate([with_copies(rng, 1000), alike]).astype(np.float32)
    firsts = first_near(vectors, 0.95)
    assert sum(listed) < 10_000
    own = firsts == np.arange(len(vectors))
    assert own[firsts].all()  # who is followed leads
    assert np.einsum("ij,ij->i", vectors, vectors[firsts]).min() >= 0.95 - 1e-6
    assert own[1100:].sum() <= 5
    assert abs(own[:1100].sum() - 1000) <= 8


def grouped_slowly(vectors, least):
    """Return the earliest row of each group, found by walking from row to near row."""
    near, earliest = vectors @ vectors.T >= least, {}
    for start in range(len(vectors)):
        waiting = [] if start in earliest else [start]
        while waiting:
            row = waiting.pop()
            if row not in earliest:
                earliest[row] = start
                waiting += np.flatnonzero(near[row]).tolist()
    return [earliest[row] for row in range(len(vectors))]


def test_compared_groups_are_chains_of_all_pairs(monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    vectors = unit(np.random.default_rng(0).standard_normal((40, 3)))
    vectors[5] = 0  # near nothing
    expected = grouped_slowly(vectors, 0.95)
    assert 10 < len(set(expected)) < 35
    assert compared_groups(vectors, 0.95).tolist() == expected
    assert compared_groups(vectors[:0], 0.95).tolist() == []


# The looks that are compared.


def photo(seed):
    """Return a smooth picture (64, 96, 3), as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((96, 64), Image.Resampling.BICUBIC))


def inputs(*pictures):
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def test_pixels_look_as_their_file_does():
    pictures = [photo(seed) for seed in range(4)]
    looks = looks_of(inputs(*pictures)).numpy()
    files = np.stack([fingerprint(encoded(Image.fromarray(one), "PNG"), "") for one in pictures])
    assert looks.shape == (4, module.WIDTH)
    assert (looks * files).sum(axis=1).min() > 0.999
    others = looks @ files.T - 2 * np.eye(4)
    assert others.max() < module.NEAR


def test_plain_pictures_look_like_nothing():
    plain = np.full((64, 96, 3), 200, np.uint8)
    assert not looks_of(inputs(plain)).any()
    assert not looks_of(inputs(plain).float()).any()


def test_bands_look_alike_in_any_unit():
    """Reflectances between 0 and 1 and the same as counts: one look."""
    bands = inputs(photo(1), photo(2)).float()
    torch.testing.assert_close(looks_of(bands), looks_of(bands / 10_000), atol=1e-4, rtol=0)
    assert (looks_of(bands).norm(dim=1) - 1).abs().max() < 1e-5


# Copies of photos. Oracles: the copies that were made, photos that look alike from afar.


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

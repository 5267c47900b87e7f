"""Features are computed once for each photo, whatever table it is in."""

import numpy as np
import pytest
from PIL import Image

from labelwise.base.progress import Silent
from labelwise.errors import ImageError
from labelwise.eyes import Eye, features
from labelwise.pictures import ArrayImages, PictureImages
from labelwise.pictures.memory import MappedFeatures


class Counting(Silent):
    """Counts the photos that were computed."""

    def __init__(self):
        self.computed = 0

    def advance(self, count):
        self.computed += count


@pytest.fixture(scope="module")
def eye():
    return Eye.open()


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(6)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    return paths


def computed(eye, paths, cache, **options):
    watch = Counting()
    return features(eye, PictureImages(paths), cache, watch=watch, **options), watch.computed


def test_one_more_photo_or_another_order_computes_one_photo(eye, photos, tmp_path):
    cache = tmp_path / "cache"
    plain = features(eye, PictureImages(photos))
    first, count = computed(eye, photos[:5], cache)
    assert count == 5
    assert np.array_equal(first, plain[:5])
    again, count = computed(eye, [photos[5], *photos[:5], photos[0]], cache)
    assert count == 1
    assert np.array_equal(again, plain[[5, 0, 1, 2, 3, 4, 0]])
    means, count = computed(eye, photos[:2], cache, outputs=["middle", "means"])
    assert count == 0
    assert np.array_equal(means, np.hstack([plain[:2, 2560:], plain[:2, :1280]]))


def test_equal_photos_are_computed_once_and_another_transform_is_another_file(eye, tmp_path):
    images = ArrayImages(np.zeros((3, 20, 20, 3), np.uint8))
    watch = Counting()
    values = features(eye, images, tmp_path, watch=watch)
    assert watch.computed == 1
    assert np.ptp(values, axis=0).max() == 0
    squashed = eye.with_transform(type(eye.transform)(192, (0.5,) * 3, (0.5,) * 3))
    features(squashed, images, tmp_path)
    assert len(list(tmp_path.glob("features-*.bin"))) == 2


def test_a_record_that_a_killed_process_left_half_written_is_computed_again(eye, photos, tmp_path):
    cache = tmp_path / "cache"
    expected, _ = computed(eye, photos, cache)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 100])
    values, count = computed(eye, photos, cache)
    assert count == 3
    assert np.array_equal(values, expected)
    assert file.stat().st_size == len(content)


def test_more_features_than_memory_should_hold_stay_in_the_file(eye, photos, tmp_path, monkeypatch):
    expected, _ = computed(eye, photos, tmp_path / "cache")
    monkeypatch.setattr("labelwise.eyes.feature_cache.IN_MEMORY", 100)
    values, _ = computed(eye, photos[::-1], tmp_path / "cache")
    assert isinstance(values, MappedFeatures)
    assert np.array_equal(values[:], expected[::-1])


def test_a_photo_that_cannot_be_read_is_named_and_what_was_computed_is_kept(eye, photos, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    cache = tmp_path / "cache"
    with pytest.raises(ImageError, match="broken"):
        computed(eye, [*photos[:4], broken], cache)
    assert computed(eye, photos, cache)[1] == 2

"""Cached features: the backbone's own numbers, computed once for each content."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from patience import PATIENCE

from labelwise.data import LabelTable
from labelwise.errors import DataError
from labelwise.networks.backbones import create_backbone
from labelwise.pictures import ArrayImages
from labelwise.pictures import memory as mapped
from labelwise.pictures.memory import moments_of, scaled
from labelwise.system.progress import Silent
from labelwise.training import features
from labelwise.training.features import compute, content_key
from labelwise.training.loader import Loader


def table(rows: int = 5, seed: int = 0) -> LabelTable:
    rng = np.random.default_rng(seed)
    images = ArrayImages(rng.integers(0, 256, (rows, 16, 16, 3), dtype=np.uint8))
    return LabelTable.from_arrays(["a", "b"], images, rng.random((rows, 2)) < 0.5, name="tiny")


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return create_backbone("small-cnn", image_size=16)


@pytest.mark.parametrize("pooled", [True, False])
def test_features_are_the_backbones_in_eval_mode(backbone, pooled, tmp_path):
    data = table()
    cached = compute(data, backbone, tmp_path, pooled=pooled, batch_size=2)
    assert backbone.training
    images = next(Loader(data, backbone.transform, batch_size=5).epoch(0)).images
    with torch.no_grad():
        expected = backbone.eval()(images)
    expected = expected.mean(dim=(2, 3)) if pooled else expected
    np.testing.assert_allclose(cached.images.features, expected.numpy(), atol=1e-5)
    assert list(cached.ids) == list(data.ids)
    assert np.array_equal(cached.targets()[0], data.targets()[0])
    rows = next(Loader(cached, backbone.transform, batch_size=5).epoch(0)).images
    identity = create_backbone("identity", channels=backbone.channels)
    assert identity(rows).shape[:2] == (5, backbone.channels)


def test_progress_is_counted_in_images(backbone, tmp_path):
    class Counting(Silent):
        def __init__(self):
            self.told = []

        def start(self, task, total, done=0):
            self.told.append((task, total))

        def advance(self, images):
            self.told.append(images)

        def finish(self):
            self.told.append("finished")

    watch = Counting()
    compute(table(), backbone, tmp_path, batch_size=2, watch=watch)
    assert watch.told == [("features of small-cnn", 5), 2, 2, 1, "finished"]


def test_a_second_time_nothing_is_computed(backbone, tmp_path, monkeypatch):
    first = compute(table(), backbone, tmp_path)
    monkeypatch.setattr(features, "_Computation", None)
    again = compute(table(), backbone, tmp_path)
    assert np.array_equal(first.images.features, again.images.features)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]


def test_the_key_changes_with_weights_transform_pixels_and_kind(backbone):
    data = table()
    keys = {content_key(data.images, backbone, True), content_key(data.images, backbone, False)}
    keys.add(content_key(table(seed=1).images, backbone, True))
    keys.add(content_key(table(rows=4).images, backbone, True))
    backbone.transform = replace(backbone.transform, crop=0.9)
    keys.add(content_key(data.images, backbone, True))
    with torch.no_grad():
        next(backbone.parameters()).view(-1)[0] += 1e-3
    keys.add(content_key(data.images, backbone, True))
    assert len(keys) == 6


def test_a_failed_computation_leaves_no_file(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(backbone, "forward", lambda images: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compute(table(), backbone, tmp_path)
    assert not list(tmp_path.rglob("*.npy"))


def test_a_killed_computation_goes_on_after_the_last_whole_part(backbone, tmp_path, monkeypatch):
    # Oracle: the features of a computation that was not interrupted.
    monkeypatch.setattr(features, "PART", 8)
    data = table(rows=40)
    whole = compute(data, backbone, tmp_path / "whole").images.features
    cache = tmp_path / "killed"
    child = os.fork()
    if child == 0:
        forward = backbone.forward

        def until_killed(images):
            if len(list(cache.glob("*.parts/0*.npy"))) == 2:
                time.sleep(PATIENCE)
            return forward(images)

        backbone.forward = until_killed
        compute(data, backbone, cache, batch_size=3)
        os._exit(0)
    while len(list(cache.glob("*.parts/0*.npy"))) < 2:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it was killed"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not list(cache.glob("features-*.npy"))
    done = 8 * len(list(cache.glob("*.parts/0*.npy")))
    assert done == 16

    class Counting(Silent):
        rows = 0

        def start(self, task, total, done=0):
            self.first = (total, done)

        def advance(self, images):
            self.rows += images

    watch = Counting()
    resumed = compute(data, backbone, cache, batch_size=3, watch=watch).images.features
    assert watch.first == (40, done)
    assert watch.rows == 40 - done
    np.testing.assert_allclose(resumed, whole, atol=1e-6)
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


@pytest.mark.parametrize("pooled", [True, False])
def test_many_features_stay_shards_and_are_mapped(backbone, tmp_path, monkeypatch, pooled):
    """Oracle: numpy on the same features in one array."""
    data = table(rows=11)
    whole = compute(data, backbone, tmp_path / "one", pooled=pooled).images.features
    monkeypatch.setattr(features, "PART", 4)
    monkeypatch.setattr(features, "JOINED", 0)
    monkeypatch.setattr(mapped, "AT_ONCE", 100)
    made = compute(data, backbone, tmp_path / "shards", pooled=pooled, batch_size=3).images
    assert isinstance(made.features, mapped.MappedFeatures)
    assert len(list(tmp_path.glob("shards/*.parts/*.npy"))) == 3
    monkeypatch.setattr(features, "infer", None)  # a second time nothing is computed
    made = compute(data, backbone, tmp_path / "shards", pooled=pooled).images
    assert made.features.shape == whole.shape
    assert (made.features.ndim, made.features.nbytes) == (whole.ndim, whole.nbytes)
    np.testing.assert_allclose(np.asarray(made.features), whole, atol=1e-6)
    whole = np.asarray(made.features)
    rows = np.array([9, 0, 5, 5])
    part = made.subset(rows).subset(np.array([3, 0]))
    assert np.array_equal(np.asarray(part.features), whole[[5, 9]])
    assert np.array_equal(part.features[1], whole[9])
    assert np.array_equal(made.features[2:7], whole[2:7])
    assert np.array_equal(made.features[np.arange(11) % 2 == 0], whole[::2])
    for one, other in zip(moments_of(made.features), moments_of(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    mean, spread = moments_of(whole)[0], np.arange(1.0, whole.shape[1] + 1)
    shape = (-1, 1, 1) if whole.ndim == 4 else (-1,)
    expected = ((whole - mean.reshape(shape)) / spread.reshape(shape)).astype(np.float32)
    for one in (made.features, whole):
        assert np.array_equal(np.asarray(scaled(one, mean, spread)), expected)


def test_a_damaged_part_is_computed_again(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "PART", 2)
    data = table()
    key = content_key(data.images, backbone, True)
    parts = tmp_path / f"features-{key}.parts"
    parts.mkdir()
    (parts / "000000002.npy").write_bytes(b"broken")
    np.save(parts / "000000000.npy", np.zeros((2, backbone.channels), np.float32))
    found = compute(data, backbone, tmp_path).images.features
    whole = compute(data, backbone, tmp_path / "other").images.features
    assert not found[:2].any()  # the whole part was believed
    np.testing.assert_allclose(found[2:], whole[2:], atol=1e-6)


def test_features_of_features_are_refused(backbone, tmp_path):
    cached = compute(table(), backbone, tmp_path)
    with pytest.raises(DataError, match="tiny already holds features"):
        compute(cached, backbone, tmp_path)


def test_a_foreign_file_under_the_name_is_reported(backbone, tmp_path):
    compute(table(), backbone, tmp_path)
    next(tmp_path.iterdir()).write_bytes(b"broken")
    with pytest.raises(DataError, match="delete it"):
        compute(table(), backbone, tmp_path)

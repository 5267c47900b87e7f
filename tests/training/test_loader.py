"""The loader: every row where it belongs, the same batches again, the transform's own pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_predictor import encoded, make, pictures

from labelwise.errors import ImageError
from labelwise.models.scoring import Scored, score
from labelwise.pictures import ArrayImages, BytesImages, FileImages, Transform
from labelwise.pictures.batches import BatchRows
from labelwise.tables import LabelTable
from labelwise.training import loader as pixels
from labelwise.training.augment import ImageDraws, draw_windows
from labelwise.training.loader import DecodingStore, KeptStore, Loader, kept_in_memory

TRANSFORM = Transform(16, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def table(rows: int = 23, side: int = 16, unknown: bool = False) -> LabelTable:
    rng = np.random.default_rng(0)
    images = ArrayImages(rng.integers(0, 256, (rows, side, side, 3), dtype=np.uint8))
    labels = rng.random((rows, 4)) < 0.4
    observed = rng.random((rows, 4)) < 0.7 if unknown else None
    return LabelTable.from_arrays(list("abcd"), images, labels, observed, name="tiny")


def photos(folder, count: int = 9) -> LabelTable:
    rng = np.random.default_rng(1)
    names = []
    for number in range(count):
        size = (40 + 3 * number, 30 + 5 * (number % 4), 3)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize(size[:2]).save(folder / f"{number}.jpg", quality=95)
        names.append(f"{number}.jpg")
    labels = rng.random((count, 4)) < 0.4
    return LabelTable.from_arrays(list("abcd"), FileImages(folder, names), labels, name="photos")


def rows_of(loader: Loader, epoch: int = 0) -> list[list[int]]:
    return [batch.targets.index.tolist() for batch in loader.epoch(epoch)]


@given(rows=st.integers(1, 40), size=st.integers(1, 9), world=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_unshuffled_processes_share_out_every_row_once(rows, size, world):
    data = table(rows)
    seen: list[int] = []
    for rank in range(world):
        loader = Loader(data, TRANSFORM, batch_size=size, rank=rank, world=world)
        batches = rows_of(loader)
        assert len(batches) == len(loader)
        assert all(len(batch) <= size for batch in batches)
        seen += [row for batch in batches for row in batch]
    assert seen == list(range(rows))


@given(rows=st.integers(2, 40), size=st.integers(2, 9), world=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_shuffled_processes_together_are_one_with_the_joined_batch(rows, size, world):
    data = table(rows)
    options = {"seed": 3, "shuffle": True, "augment": "crop-flip"}
    one = list(Loader(data, TRANSFORM, batch_size=size * world, **options).epoch(2))
    parts = [
        list(Loader(data, TRANSFORM, batch_size=size, rank=rank, world=world, **options).epoch(2))
        for rank in range(world)
    ]
    assert len({len(part) for part in parts}) == 1
    for step, batch in enumerate(zip(*parts, strict=True)):
        images = torch.cat([part.images for part in batch])
        index = torch.cat([part.targets.index for part in batch])
        assert len({len(part.images) for part in batch}) == 1
        kept = len(index)
        assert torch.equal(index, one[step].targets.index[:kept])
        if kept == len(one[step].images):
            assert torch.equal(images, one[step].images)
        labels = torch.from_numpy(data.targets(index.numpy())[0]).float()
        assert torch.equal(torch.cat([part.targets.labels for part in batch]), labels)
    everything = torch.cat([batch.targets.index for batch in one]).tolist()
    assert len(set(everything)) == len(everything)
    assert len(everything) == (rows if rows < size * world else rows - rows % (size * world))


def test_an_epoch_shuffles_again_and_a_resumed_one_goes_on_bit_for_bit():
    loader = Loader(table(24), TRANSFORM, batch_size=4, seed=7, shuffle=True, augment="trivial")
    first, second = list(loader.epoch(0)), list(loader.epoch(1))
    assert rows_of(loader, 0) != rows_of(loader, 1)
    assert sorted(row for batch in rows_of(loader, 1) for row in batch) == list(range(24))
    for start in range(len(loader) + 1):
        rest = list(loader.epoch(1, start))
        assert len(rest) == len(second) - start
        for again, before in zip(rest, second[start:], strict=True):
            assert torch.equal(again.images, before.images)
            assert torch.equal(again.targets.labels, before.targets.labels)
    assert not torch.equal(first[0].images, second[0].images)


def ramps(folder) -> LabelTable:
    """Pictures of several shapes, red growing to the right and green downwards."""
    names = []
    for number, (width, height) in enumerate([(90, 60), (60, 90), (64, 64), (120, 50)]):
        across = np.broadcast_to(np.linspace(0, 255, width), (height, width))
        down = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
        ramp = np.stack([across, down, 0 * down], axis=2).round().astype(np.uint8)
        Image.fromarray(ramp).save(folder / f"{number}.png")
        names.append(f"{number}.png")
    return LabelTable.from_arrays(["a"], FileImages(folder, names), np.ones((4, 1)))


def test_windows_of_kept_pictures_are_those_of_streamed_ones(tmp_path, monkeypatch):
    data = ramps(tmp_path)

    def epoch() -> tuple[Loader, torch.Tensor]:
        loader = Loader(data, Transform(24), batch_size=4, seed=3, augment="resized-crop")
        mean, std = loader.transform.statistics(torch.device("cpu"))
        return loader, torch.cat([b.images * std + mean for b in loader.epoch(1)])

    kept, here = epoch()
    monkeypatch.setattr(pixels, "CPU_LIMIT", 0)
    streaming, there = epoch()
    assert isinstance(kept._store, KeptStore)
    assert kept._store.values.shape == (4, 36, 36, 3)
    assert isinstance(streaming._store, DecodingStore)
    assert here.shape == there.shape == (4, 3, 24, 24)
    assert (here - there).abs()[:, :, 2:-2, 2:-2].max() < 4  # of 255; the border pixels blend less
    assert (here - there.roll(1, 0)).abs().max() > 50


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("dense", [True, False])
def test_targets_are_the_tables(unknown, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("labelwise.training.loader.DENSE_LIMIT", 0)
    data = table(unknown=unknown)
    for batch in Loader(data, TRANSFORM, batch_size=5, shuffle=True).epoch(0):
        labels, observed = data.targets(batch.targets.index.numpy())
        assert torch.equal(batch.targets.labels, torch.from_numpy(labels).float())
        assert (batch.targets.observed is None) == (not unknown)
        if observed is not None:
            assert torch.equal(batch.targets.observed, torch.from_numpy(observed))


def test_decoded_once_or_streamed_files_give_the_same_pixels(tmp_path, monkeypatch):
    data = photos(tmp_path)
    kept = list(Loader(data, TRANSFORM, batch_size=4, workers=2).epoch(0))
    monkeypatch.setattr(pixels, "CPU_LIMIT", 0)
    streaming = Loader(data, TRANSFORM, batch_size=4, workers=2)
    assert isinstance(streaming._store, DecodingStore)
    for before, batch in zip(kept, streaming.epoch(0), strict=True):
        assert torch.equal(before.images, batch.images)
    for row, image in enumerate(kept[0].images):
        picture = data.images.read(row, TRANSFORM.at_least())
        assert torch.equal(image, TRANSFORM(picture))


def test_streamed_windows_are_cut_from_the_whole_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "CPU_LIMIT", 0)
    data = photos(tmp_path)
    loader = Loader(
        data, TRANSFORM, batch_size=4, seed=2, augment="resized-crop", shuffle=True, workers=2
    )
    windows = draw_windows(ImageDraws(5, torch.arange(2)))
    job = BatchRows(np.array([3, 1]), windows.one)
    values = next(loader._store.batches([job]))
    for at, row in enumerate((3, 1)):
        picture = data.images.read(row, TRANSFORM.at_least(windows.one(at)))
        box = windows.one(at).box(*picture.size)
        expected = np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR, box))
        assert np.array_equal(values[at].permute(1, 2, 0).numpy(), expected)
    once, again = list(loader.epoch(1)), list(loader.epoch(1, 1))
    assert torch.equal(once[1].images, again[0].images)


# Pictures kept in memory for the looks after each epoch. Oracle: scores of the same pictures.


@pytest.mark.parametrize("crop", [None, 0.875])
def test_kept_images_answer_as_before_and_are_read_once(crop):
    predictor = make()
    source = BytesImages([encoded(one, "PNG") for one in pictures(5)], list("abcde"))
    predictor.model.backbone.transform = replace(predictor.transform, crop=crop)
    kept = kept_in_memory(source, predictor.transform)
    assert isinstance(kept, ArrayImages)
    assert list(kept.ids) == list("abcde")
    one, other = (Scored.join(list(score(predictor, images))) for images in (source, kept))
    assert np.array_equal(one.logits, other.logits)
    assert kept_in_memory(source, predictor.transform, limit=100) is source
    with pytest.raises(ImageError, match="b: this is not an image file"):
        kept_in_memory(BytesImages([source.content(0), b"no"], ["a", "b"]), predictor.transform)

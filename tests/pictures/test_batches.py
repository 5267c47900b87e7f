"""Inputs made on the device (here the CPU; libjpeg for nvJPEG). Oracle: one at a time by Pillow."""

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from labelwise.pictures import ArrayImages, BytesImages, JoinedImages, Transform, device, loading
from labelwise.pictures import device as gpu_decoder
from labelwise.pictures.batches import read_ahead
from labelwise.pictures.decode import by_pillow
from labelwise.pictures.device import DeviceFeeder, GpuDecoder
from labelwise.pictures.loading import PictureLoader, decodes_on_gpu

CPU = torch.device("cpu")


def encoded(size, seed, kind="JPEG", **options):
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
    buffer = io.BytesIO()
    coarse.resize(size, Image.Resampling.BICUBIC).save(buffer, kind, **options)
    return buffer.getvalue()


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


BLOBS = [
    encoded((60, 40), 0),
    encoded((40, 60), 1),
    encoded((60, 40), 2, "PNG"),
    b"not an image",
    *(encoded((60, 40), 10 + turn, exif=rotated(turn)) for turn in range(1, 9)),
    encoded((60, 40), 3),
    encoded((400, 300), 4),  # decoded at a fraction of its size
    encoded((900, 20), 5),  # its ends are cut off
    encoded((31, 30), 6, progressive=True),
    encoded((60, 40), 8, keep_rgb=True),  # whose colours a device's decoder may take for others
    encoded((60, 40), 7)[:-80],
]
SOURCE = BytesImages(BLOBS, [f"p{row}" for row in range(len(BLOBS))])
BROKEN = [3, len(BLOBS) - 1]


def fed(images, transform, *, decodes=False, batch=5, processes=False):
    rows = np.arange(len(images))
    parts = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    feeder = DeviceFeeder(PictureLoader(images, transform, CPU, decodes, processes))
    return list(feeder.batches(parts, workers=2))


def by_hand(transform, *, whole=False):
    at_least = None if whole else transform.at_least()
    rows = [row for row in range(len(BLOBS)) if row not in BROKEN]
    images = [by_pillow(BLOBS[row], "x", at_least) for row in rows]
    return rows, np.stack([np.asarray(transform.resize(image)) for image in images])


def joined(parts):
    rows = np.concatenate([part.rows for part in parts])
    return rows.tolist(), torch.cat([part.values for part in parts]).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(
    "transform",
    [
        Transform(24, interpolation="bicubic", crop=0.875),
        Transform(24),
        Transform(24, interpolation="nearest"),  # which planes cannot do
    ],
)
def test_pixels_made_on_the_device_are_pillows(transform):
    expected_rows, expected = by_hand(transform)
    for parts in (
        fed(SOURCE, transform),
        fed(SOURCE, transform, processes=True),
        list(read_ahead(SOURCE, transform, [np.arange(len(BLOBS))], device=CPU)),
    ):
        rows, pixels = joined(parts)
        assert rows == expected_rows
        np.testing.assert_array_equal(pixels, expected)
        failures = [failure for part in parts for failure in part.failures]
        assert [failure.row for failure in failures] == BROKEN
        assert all(failure.reason.startswith(failure.id) for failure in failures)


def test_pictures_too_large_to_send_are_resized_before(monkeypatch):
    transform = Transform(24, interpolation="bicubic", crop=0.875)
    monkeypatch.setattr(loading, "MAX_SENT", 3000)
    monkeypatch.setattr(device, "RESIZED_VALUES", 1)
    _, pixels = joined(fed(SOURCE, transform))
    np.testing.assert_array_equal(pixels, by_hand(transform)[1])


@pytest.mark.parametrize("portion", [1, 3, 7, 100])
def test_batches_are_cut_from_portions_of_any_size(portion, monkeypatch):
    transform = Transform(24, interpolation="bicubic", crop=0.875)
    monkeypatch.setattr(device, "PORTION", portion)
    monkeypatch.setattr(gpu_decoder, "decode_by_torchvision", whole_by_libjpeg)
    order = np.random.default_rng(portion).permutation(len(BLOBS))
    cuts = [order[:2], order[2:2], order[2:9], np.array([BROKEN[0]]), order[9:]]
    rows, pixels = by_hand(transform, whole=True)
    expected = dict(zip(rows, pixels, strict=True))
    feeder = DeviceFeeder(PictureLoader(SOURCE, transform, CPU, decodes=True))
    found = list(feeder.batches(cuts, workers=2))
    for cut, part in zip(cuts, found, strict=True):
        assert part.rows.tolist() == [row for row in cut.tolist() if row not in BROKEN]
        assert [one.row for one in part.failures] == [row for row in cut.tolist() if row in BROKEN]
        assert len(part.values) == len(part.rows)
        for row, values in zip(part.rows.tolist(), part.values, strict=True):
            np.testing.assert_array_equal(values.permute(1, 2, 0).numpy(), expected[row])
    assert list(feeder.batches([], workers=2)) == []


def test_an_error_of_any_thread_is_raised_and_the_threads_end(monkeypatch):
    before = threading.active_count()
    feeder = DeviceFeeder(PictureLoader(SOURCE, Transform(24), CPU, decodes=True))

    def broken(*given):
        raise MemoryError("no room")

    for owner, name in (
        (PictureLoader, "_load"),
        (GpuDecoder, "decode"),
        (DeviceFeeder, "_inputs"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(gpu_decoder, "decode_by_torchvision", whole_by_libjpeg)
            patched.setattr(owner, name, broken)
            with pytest.raises(MemoryError, match="no room"):
                list(feeder.batches([np.arange(4), np.arange(4, 8)], workers=2))
    monkeypatch.setattr(gpu_decoder, "decode_by_torchvision", whole_by_libjpeg)
    batches = feeder.batches([np.arange(4), np.arange(4, 8)], workers=2)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_sources_without_files_are_fed_too():
    transform = Transform(24, crop=0.875)
    array = np.random.default_rng(0).integers(0, 256, (3, 50, 40, 3), np.uint8)
    images = JoinedImages([ArrayImages(array, ["a", "b", "c"]), SOURCE])
    expected = [np.asarray(transform.resize(Image.fromarray(picture))) for picture in array]
    _, pixels = joined(fed(images, transform, decodes=True)[:1])
    np.testing.assert_array_equal(pixels[:3], np.stack(expected))


def whole_by_libjpeg(contents, device):
    return [decode_jpeg(content, mode=ImageReadMode.RGB) for content in contents]


def test_jpegs_decoded_by_the_device_are_turned_and_resized(monkeypatch):
    transform = Transform(24, interpolation="bicubic", crop=0.875)
    taken = []

    def decode(contents, device):
        taken.extend(contents)
        return whole_by_libjpeg(contents, device)

    monkeypatch.setattr(gpu_decoder, "decode_by_torchvision", decode)
    expected_rows, expected = by_hand(transform, whole=True)
    for at_once in (device.DECODED_VALUES, 20_000, 1):
        monkeypatch.setattr(device, "DECODED_VALUES", at_once)
        rows, pixels = joined(fed(SOURCE, transform, decodes=True))
        assert rows == expected_rows
        np.testing.assert_array_equal(pixels, expected)
        assert len(taken) == len(BLOBS) - 4  # but not the PNG, RGB and those that are broken
        taken.clear()


def test_a_picture_that_the_device_refuses_spoils_no_other(monkeypatch):
    transform = Transform(24, crop=0.875)

    def refuse(contents, device):
        raise RuntimeError("nvJPEG error")

    monkeypatch.setattr(gpu_decoder, "decode_by_torchvision", refuse)
    _, pixels = joined(fed(SOURCE, transform, decodes=True))
    np.testing.assert_array_equal(pixels, by_hand(transform)[1])


def test_the_device_decodes_where_there_is_one():
    cuda = torch.device("cuda")
    found = [decodes_on_gpu(*pair) for pair in (("auto", cuda), ("cuda", cuda), ("cpu", cuda))]
    assert found == [True, True, False]
    assert not decodes_on_gpu("auto", CPU)
    with pytest.raises(ValueError, match="decode=cuda needs a model on a CUDA device"):
        decodes_on_gpu("cuda", CPU)
    with pytest.raises(ValueError, match="decode must be auto, cpu or cuda, got 'gpu'"):
        decodes_on_gpu("gpu", CPU)

"""Inputs made on the device (here the CPU; libjpeg for nvJPEG). Oracle: one at a time by Pillow."""

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from labelwise.pictures import ArrayImages, BytesImages, JoinedImages, Transform, batches, loading
from labelwise.pictures.batches import (
    DeviceFeeder,
    GpuDecoder,
    borrowed_decoder,
    decode_by_torchvision,
    read_ahead,
)
from labelwise.pictures.decode import by_pillow, plain_header
from labelwise.pictures.loading import Jpeg, PictureLoader, decodes_on_gpu
from labelwise.pictures.prefetch import started_ahead
from labelwise.pictures.worker import Entry, Kind

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


TRANSFORMS = (
    Transform(24, interpolation="bicubic", crop=0.875),
    Transform(24),
    Transform(24, interpolation="nearest"),  # which planes cannot do
)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_pixels_made_on_the_device_are_pillows(transform):
    expected_rows, expected = by_hand(transform)
    for parts in (
        fed(SOURCE, transform),
        list(read_ahead(SOURCE, transform, [np.arange(len(BLOBS))], device=CPU)),
    ):
        rows, pixels = joined(parts)
        assert rows == expected_rows
        np.testing.assert_array_equal(pixels, expected)
        failures = [failure for part in parts for failure in part.failures]
        assert [failure.row for failure in failures] == BROKEN
        assert all(failure.reason.startswith(failure.id) for failure in failures)


def test_pictures_too_large_to_send_are_resized_before(monkeypatch):
    transform = TRANSFORMS[0]
    monkeypatch.setattr(loading, "MAX_SENT", 3000)
    monkeypatch.setattr(batches, "RESIZED_VALUES", 1)
    _, pixels = joined(fed(SOURCE, transform))
    np.testing.assert_array_equal(pixels, by_hand(transform)[1])


@pytest.mark.parametrize("portion", [1, 3, 7, 100])
def test_batches_are_cut_from_portions_of_any_size(portion, monkeypatch):
    transform = Transform(24, interpolation="bicubic", crop=0.875)
    monkeypatch.setattr(batches, "PORTION", portion)
    monkeypatch.setattr(batches, "decode_by_torchvision", whole_by_libjpeg)
    order = np.random.default_rng(portion).permutation(len(BLOBS))
    cuts = [order[:2], order[2:2], order[2:9], np.array([BROKEN[0]]), order[9:]]
    expected = dict(zip(*by_hand(transform, whole=True), strict=True))
    feeder = DeviceFeeder(PictureLoader(SOURCE, transform, CPU, decodes=True))
    found = list(feeder.batches(cuts, workers=2))
    for cut, part in zip(cuts, found, strict=True):
        assert part.rows.tolist() == [row for row in cut.tolist() if row not in BROKEN]
        assert [one.row for one in part.failures] == [row for row in cut.tolist() if row in BROKEN]
        for row, values in zip(part.rows.tolist(), part.values, strict=True):
            np.testing.assert_array_equal(values.permute(1, 2, 0).numpy(), expected[row])
    assert list(feeder.batches([], workers=2)) == []


def test_an_error_of_any_thread_is_raised_and_the_threads_end(monkeypatch):
    before = threading.active_count()
    feeder = DeviceFeeder(PictureLoader(SOURCE, Transform(24), CPU, decodes=True))

    def broken(*given):
        raise MemoryError("no room")

    monkeypatch.setattr(batches, "decode_by_torchvision", whole_by_libjpeg)
    cuts = [np.arange(4), np.arange(4, 8)]
    for owner, name in (
        (PictureLoader, "_load"),
        (GpuDecoder, "decode"),
        (DeviceFeeder, "_inputs"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, broken)
            with pytest.raises(MemoryError, match="no room"):
                list(feeder.batches(cuts, workers=2))
    made = feeder.batches(cuts, workers=2)
    next(made)
    made.close()
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

    monkeypatch.setattr(batches, "decode_by_torchvision", decode)
    expected_rows, expected = by_hand(transform, whole=True)
    for at_once in (batches.DECODED_VALUES, 20_000, 1):
        monkeypatch.setattr(batches, "DECODED_VALUES", at_once)
        rows, pixels = joined(fed(SOURCE, transform, decodes=True))
        assert rows == expected_rows
        np.testing.assert_array_equal(pixels, expected)
        assert len(taken) == len(BLOBS) - 4  # but not the PNG, RGB and those that are broken
        taken.clear()


def test_one_more_is_started_before_one_is_used():
    order = []
    for used in started_ahead("abc", lambda item: order.append(item) or item, 1):
        order.append(used.upper())
    assert "".join(order) == "abAcBC"


def test_the_device_decodes_where_there_is_one():
    cuda = torch.device("cuda")
    pairs = (("auto", cuda), ("cuda", cuda), ("cpu", cuda), ("auto", CPU))
    assert [decodes_on_gpu(*pair) for pair in pairs] == [True, True, False, False]
    for asked, words in (("cuda", "needs a model on a CUDA device"), ("gpu", "must be auto, cpu")):
        with pytest.raises(ValueError, match=words):
            decodes_on_gpu(asked, CPU)


# nvJPEG, by torchvision. Oracles: torchvision's decoder and Pillow.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_a_decoder_that_is_given_back_is_lent_again_and_no_other():
    with borrowed_decoder(CPU) as first, borrowed_decoder(CPU) as second:
        assert first is not second
    with borrowed_decoder(CPU) as third, borrowed_decoder(CPU) as fourth:
        assert {third, fourth} == {first, second}


def as_jpeg(place, content):
    header = plain_header(content)
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    facts = header.height, header.width, header.orientation
    return Jpeg(place, place, data, Entry(Kind.JPEG, 0, len(content), *facts))


@needs_gpu
def test_pictures_are_those_of_torchvision():
    device = torch.device("cuda")
    kinds = ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True})
    sizes = ((500, 375), (333, 251), (64, 48), (500, 375))
    contents = [encoded(size, 1, **kind) for size in sizes for kind in kinds]
    files = [as_jpeg(place, content) for place, content in enumerate(contents)]
    with borrowed_decoder(device) as decoder:
        for _ in range(3):
            pictures, refused = decoder.decode(files)
            assert refused == []
            found = {}
            for one in pictures:
                found.update(zip(one.places, one.values.cpu(), strict=True))
            expected = decode_by_torchvision([file.content for file in files], device)
            for place, content in enumerate(contents):
                theirs = expected[place].permute(1, 2, 0).cpu()
                assert torch.equal(found[place], theirs)
                pixels = np.asarray(by_pillow(content, "x", None)).astype(int)
                # nvJPEG doubles colours without smoothing; another photo differs by some 85 levels.
                assert np.abs(found[place].numpy() - pixels).mean() < 10


@needs_gpu
def test_a_broken_file_spoils_no_other():
    whole = [encoded((60, 40), seed) for seed in range(4)]
    torn = whole[0][: -len(whole[0]) // 4] + b"\xff\xd9"  # its header is whole
    files = [
        as_jpeg(place, content) for place, content in enumerate([*whole[:2], torn, *whole[2:]])
    ]
    with borrowed_decoder(torch.device("cuda")) as decoder:
        pictures, refused = decoder.decode(files)
    places = sorted(place for one in pictures for place in one.places)
    assert {0, 1, 3, 4} <= set(places)
    assert [file.place for file in refused] == [2] * (2 not in places)

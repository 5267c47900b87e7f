"""Pictures to a network's inputs. Oracle: one at a time, by Pillow."""

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.errors import SettingsError
from labelwise.pictures import ArrayImages, BytesImages, JoinedImages, Transform, batches
from labelwise.pictures.batches import (
    HostResizer,
    decode_by_torchvision,
    decoded_inputs,
    decodes_on_gpu,
    read_ahead,
    resized_inputs,
)
from labelwise.pictures.decode import decode
from labelwise.pictures.prefetch import started_ahead

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
HOSTED = [2, len(BLOBS) - 2, *BROKEN]  # which no GPU is given: a PNG, a JPEG that is stored as RGB
REFUSED = len(BLOBS[12])


def fed(images, transform, *, processes=False, batch=5):
    rows = np.arange(len(images))
    parts = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    resizer = HostResizer(images, transform, CPU, 2, processes=processes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "HostResizer", lambda *given: resizer)
        patch.setattr(batches, "are_worth_it", lambda *given: True)
        return list(resized_inputs(images, transform, parts, 2, CPU))


def by_hand(transform):
    rows = [row for row in range(len(BLOBS)) if row not in BROKEN]
    images = [decode(BLOBS[row], "x", transform.at_least()) for row in rows]
    return rows, np.stack([np.asarray(transform.resize(image)) for image in images])


def joined(parts):
    rows = np.concatenate([part.rows for part in parts])
    return rows.tolist(), torch.cat([p.values for p in parts]).permute(0, 2, 3, 1).cpu().numpy()


TRANSFORMS = (
    Transform(24, interpolation="bicubic", crop=0.875),
    Transform(24),
    Transform(24, interpolation="nearest"),  # which planes cannot do
)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_pixels_made_on_the_host_are_pillows(transform):
    expected_rows, expected = by_hand(transform)
    parts = list(read_ahead(SOURCE, transform, [np.arange(len(BLOBS))], device=CPU))
    rows, pixels = joined(parts)
    assert rows == expected_rows
    np.testing.assert_array_equal(pixels, expected)
    failures = [failure for part in parts for failure in part.failures]
    assert [failure.row for failure in failures] == BROKEN
    assert all(failure.reason.startswith(failure.id) for failure in failures)


def test_jpegs_are_decoded_by_torchvision_and_scaled_by_torch(monkeypatch):
    """On the CPU, whose decoder is libjpeg: only the rounding of torch's resize is different."""
    taken = []

    def decode_jpegs(contents, device):
        taken.extend(map(len, contents))
        if REFUSED in map(len, contents):
            raise RuntimeError("nvJPEG error")
        return decode_by_torchvision(contents, device)

    monkeypatch.setattr(batches, "decode_by_torchvision", decode_jpegs)
    order = np.random.default_rng(0).permutation(len(BLOBS))
    cuts = [order[:2], order[2:2], order[2:9], np.array([BROKEN[0]]), order[9:]]
    for transform in (Transform(24, interpolation="bicubic", crop=0.875), Transform(24)):
        expected = dict(zip(*by_hand(transform), strict=True))
        found = list(decoded_inputs(SOURCE, transform, cuts, 2, CPU))
        for cut, part in zip(cuts, found, strict=True):
            assert part.rows.tolist() == [row for row in cut.tolist() if row not in BROKEN]
            rows = [failure.row for failure in part.failures]
            assert rows == [row for row in cut.tolist() if row in BROKEN]
            for row, values in zip(part.rows.tolist(), part.values, strict=True):
                apart = values.permute(1, 2, 0).numpy().astype(int) - expected[row]
                assert np.abs(apart).max() <= 2  # Pillow also rounds between rows and columns
                assert np.abs(apart).mean() < 0.3
        # but not the PNG, what is stored as RGB, and those that are broken; the refused one alone
        assert set(taken) == {len(BLOBS[row]) for row in range(len(BLOBS)) if row not in HOSTED}
        assert taken[-1] != REFUSED or len(taken) > len(BLOBS)
        taken.clear()
    assert list(decoded_inputs(SOURCE, Transform(24), [], 2, CPU)) == []


def test_an_error_of_any_thread_is_raised_and_the_threads_end(monkeypatch):
    before = threading.active_count()
    cuts = [np.arange(4), np.arange(4, 8)]
    for make in (resized_inputs, decoded_inputs):
        made = make(SOURCE, Transform(24), cuts, 2, CPU)
        next(made)
        made.close()
    monkeypatch.setattr(batches, "decode_by_torchvision", lambda *given: [][1])
    with pytest.raises(IndexError):
        list(decoded_inputs(SOURCE, Transform(24), cuts, 2, CPU))
    assert threading.active_count() == before


def test_sources_without_files_are_fed_too():
    transform = Transform(24, crop=0.875)
    array = np.random.default_rng(0).integers(0, 256, (3, 50, 40, 3), np.uint8)
    images = JoinedImages([ArrayImages(array, ["a", "b", "c"]), SOURCE])
    expected = [np.asarray(transform.resize(Image.fromarray(picture))) for picture in array]
    for make in (resized_inputs, decoded_inputs):
        _, pixels = joined(list(make(images, transform, [np.arange(len(images))], 2, CPU)))
        np.testing.assert_array_equal(pixels[:3], np.stack(expected))


def test_one_more_is_started_before_one_is_used():
    order = []
    for used in started_ahead("abc", lambda item: order.append(item) or item, 1):
        order.append(used.upper())
    assert "".join(order) == "abAcBC"


def test_the_device_decodes_where_there_is_one():
    cuda, plain = torch.device("cuda"), Transform(24)
    pairs = (("auto", cuda), ("cuda", cuda), ("cpu", cuda), ("auto", CPU))
    assert [decodes_on_gpu(*pair, plain) for pair in pairs] == [True, True, False, False]
    lanczos = Transform(24, interpolation="lanczos")
    assert not decodes_on_gpu("auto", cuda, lanczos)
    for asked, device, transform, words in (
        ("cuda", CPU, plain, "needs a model on a CUDA device"),
        ("gpu", CPU, plain, "must be auto, cpu"),
        ("cuda", cuda, lanczos, "cannot scale by lanczos"),
    ):
        with pytest.raises((ValueError, SettingsError), match=words):
            decodes_on_gpu(asked, device, transform)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_gives_nearly_the_same_pixels():
    transform = Transform(24, interpolation="bicubic", crop=0.875)
    expected_rows, expected = by_hand(transform)
    cuts = [np.arange(len(BLOBS))]
    for _ in range(3):
        rows, pixels = joined(
            list(decoded_inputs(SOURCE, transform, cuts, 2, torch.device("cuda")))
        )
        assert rows == expected_rows
        # nvJPEG doubles colours without smoothing; another photo differs by some 85 levels.
        assert np.abs(pixels.astype(int) - expected).mean() < 10

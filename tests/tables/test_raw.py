"""Oracle: the colours that the photos were made of, through the transfer curve of BT.709."""

import numpy as np
import pytest
from PIL import Image
from raw_photos import dng

from labelwise.errors import ImageError
from labelwise.pictures.decode import IMAGE_SUFFIXES, decode, is_raw, one_per_photo
from labelwise.tables import load

rawpy = pytest.importorskip("rawpy")

WHITE, RED, DARK, BLUE = (1.0, 1.0, 1.0), (0.8, 0.1, 0.1), (0.05, 0.05, 0.05), (0.1, 0.2, 0.7)


def quarters(width=96, height=64, colours=(WHITE, RED, DARK, BLUE)):
    """White and red above, dark and blue below."""
    pixels = np.empty((height, width, 3))
    for (top, left), colour in zip(((0, 0), (0, 1), (1, 0), (1, 1)), colours, strict=True):
        rows = slice(top * height // 2, (top + 1) * height // 2)
        pixels[rows, left * width // 2 : (left + 1) * width // 2] = colour
    return pixels


def shown(linear):
    """LibRaw's curve: linear near black, then a power, as in BT.709."""
    value = np.asarray(linear)
    return 255 * np.where(value < 0.018, 4.5 * value, 1.099 * value**0.45 - 0.099)


def corners(image):
    """The colours in the middle of the quarters, row by row."""
    width, height = image.size
    return [image.getpixel((x * width // 4, y * height // 4)) for y in (1, 3) for x in (1, 3)]


@pytest.mark.parametrize(("at_least", "size"), [(None, (48, 32)), (32, (48, 32)), (33, (96, 64))])
def test_a_sensor_has_the_colours_of_its_scene(at_least, size):
    image = decode(dng(quarters()), "x", at_least)
    assert (image.mode, image.size) == ("RGB", size)
    for found, colour in zip(corners(image), (WHITE, RED, DARK, BLUE), strict=True):
        np.testing.assert_allclose(found, shown(colour), atol=4)


TURNED = {3: (BLUE, DARK, RED, WHITE), 6: (DARK, WHITE, BLUE, RED), 8: (RED, BLUE, WHITE, DARK)}


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("with_preview", [False, True])
def test_photos_stand_upright(orientation, with_preview):
    preview = Image.fromarray(np.uint8(shown(quarters(48, 32)))) if with_preview else None
    image = decode(dng(quarters(), orientation=orientation, preview=preview), "x")
    assert image.size == ((48, 32) if orientation == 3 else (32, 48))
    for found, colour in zip(corners(image), TURNED[orientation], strict=True):
        np.testing.assert_allclose(found, shown(colour), atol=8)


def test_a_preview_that_is_large_enough_is_what_the_camera_meant():
    green = Image.new("RGB", (72, 48), (0, 200, 0))
    content = dng(quarters(), preview=green)
    for at_least in (None, 48):
        image = decode(content, "x", at_least)
        assert image.size == (72, 48)
        np.testing.assert_allclose(image.getpixel((5, 5)), (0, 200, 0), atol=4)
    np.testing.assert_allclose(corners(decode(content, "x", 49))[1], shown(RED), atol=4)
    small = dng(quarters(), preview=green.resize((42, 28)))
    np.testing.assert_allclose(corners(decode(small, "x"))[1], shown(RED), atol=4)


def test_a_preview_that_stands_is_not_turned_and_a_broken_one_not_used():
    upright = Image.fromarray(np.uint8(shown(quarters(32, 48))))  # was turned already
    content = dng(quarters(), orientation=6, preview=upright)
    np.testing.assert_allclose(corners(decode(content, "x"))[0], shown(WHITE), atol=8)
    broken = content.replace(b"\xff\xda", b"\xff\xd9")  # ends before its pixels
    np.testing.assert_allclose(corners(decode(broken, "x"))[0], shown(DARK), atol=8)


def test_raw_photos_are_known_by_their_content(tmp_path):
    small = Image.new("RGB", (48, 32))
    assert is_raw(dng(quarters()))
    assert is_raw(dng(quarters(), preview=small))
    for kind in ("PNG", "JPEG", "TIFF"):
        small.save(tmp_path / "x", kind)
        assert not is_raw((tmp_path / "x").read_bytes())
    whole = dng(quarters())
    for length in range(0, 200, 7):  # cut anywhere
        assert isinstance(is_raw(whole[-length:]) | is_raw(whole[:length]), bool)


def test_what_cannot_be_read_is_said(monkeypatch):
    with pytest.raises(ImageError, match=r"a.raf: the image cannot be read \(LibRaw: "):
        decode(b"FUJIFILMCCD-RAW" + bytes(4000), "a.raf")
    monkeypatch.setattr("labelwise.pictures.decode.MAX_PIXELS", 3_000)
    with pytest.raises(ImageError, match="more than 6,000 pixels"):
        decode(dng(quarters()), "a.dng")
    monkeypatch.setattr("labelwise.pictures.decode.HAS_RAW", False)
    with pytest.raises(ImageError, match=r"pip install 'labelwise\[photos\]'"):
        decode(dng(quarters()), "a.dng")


def test_a_raw_file_beside_a_picture_is_the_same_photo(tmp_path):
    for name in ("cat/a.dng", "cat/b.dng", "dog/c.dng"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(dng(quarters()))
    Image.new("RGB", (48, 32)).save(tmp_path / "cat/a.JPG")
    table = load(tmp_path)
    assert list(table.ids) == ["cat/a.JPG", "cat/b.dng", "dog/c.dng"]
    assert table.images.read(1).size == (48, 32)
    names = ["a.b.jpg", "a.jpg", "a.nef", "b.nef", "b.xmp", "c/a.nef"]
    assert list(one_per_photo(names)) == ["a.b.jpg", "a.jpg", "b.nef", "b.xmp", "c/a.nef"]
    assert {".nef", ".dng"} <= IMAGE_SUFFIXES

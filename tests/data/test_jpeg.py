"""Plain JPEGs by libjpeg alone. Oracle: Pillow, whose pixels and refusals they are to the bit."""

import io
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from labelwise.errors import ImageError
from labelwise.pictures import decode as jpeg
from labelwise.pictures.decode import (
    MAX_PIXELS,
    by_pillow,
    decode,
    decode_pixels,
    draft_scale,
    plain_header,
    plain_pixels,
)


@pytest.fixture(autouse=True, scope="module")
def many_cores():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jpeg, "MANY_CORES", True)
        yield


def photo(width, height, mode="RGB"):
    rng = np.random.default_rng(width * 1000 + height)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 85, **options})
    return buffer.getvalue()


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "maker"
    return exif


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def pixels_of_pillow(content):
    """Return the pixels of a plain file, which are those of Pillow."""
    pixels = plain_pixels(content, MAX_PIXELS)
    assert pixels is not None
    np.testing.assert_array_equal(pixels, np.asarray(by_pillow(content, "x")))
    return pixels


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (33, 17), (101, 167)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_pixels_are_those_of_pillow(size, subsampling):
    for mode in ("RGB", "L"):
        content = saved(photo(*size, mode), progressive=True, subsampling=subsampling)
        assert plain_pixels(content, MAX_PIXELS) is None
        content = saved(photo(*size, mode), subsampling=subsampling)
        pixels = pixels_of_pillow(content)
        np.testing.assert_array_equal(np.asarray(decode(content, "x")), pixels)
        np.testing.assert_array_equal(decode_pixels(content, "x"), pixels)


@pytest.mark.parametrize(
    "options",
    [
        *({"exif": rotated(orientation)} for orientation in range(1, 9)),
        {"icc_profile": PROFILE},
        {"restart_marker_blocks": 3},
        {"optimize": True},
        {"comment": "a comment"},
        {"quality": 100},
        {"keep_rgb": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_plain_files_are_decoded_as_pillow_does(options):
    pixels_of_pillow(saved(photo(101, 67), **options))


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xd8\xff\xd9",
        saved(photo(40, 24, "CMYK")),
        saved(photo(40, 24))[:-100],
        saved(photo(40, 24)) + b"more",
        saved(photo(40, 24), xmp=XMP),
        saved(photo(40, 24), exif=b"Exif\0\0broken"),
        saved(photo(40, 24)).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
    ],
    ids=["empty", "no frame", "CMYK", "cut off", "more bytes", "XMP", "broken EXIF", "12 bits"],
)
def test_whatever_is_not_plain_is_left_to_pillow(content):
    assert plain_header(content) is None
    assert outcome(decode, content) == outcome(by_pillow, content)


def test_the_coding_is_what_the_file_was_saved_with():
    for options, rgb, usual in (
        *(({"subsampling": number}, False, True) for number in range(3)),
        ({"progressive": True}, False, False),
        ({"keep_rgb": True}, True, True),
    ):
        header = plain_header(saved(photo(40, 24), **options))
        assert (header.width, header.height, header.layers) == (40, 24, 3)
        assert (header.rgb, header.usual_coding) == (rgb, usual), options
    content = bytearray(saved(photo(40, 24), subsampling=2))
    frame = content.index(b"\xff\xc0")
    content[frame + 11] = 0x41  # 4:1:1
    assert not plain_header(bytes(content)).usual_coding
    content[frame + 11] = 0x22
    assert plain_header(bytes(content)).usual_coding
    content[content.index(b"\xff\xda") + 4] = 1  # the first scan holds the brightness alone
    assert not plain_header(bytes(content)).usual_coding


def test_too_many_pixels_are_refused_before_anything_is_decoded(monkeypatch):
    content = bytearray(saved(photo(16, 16)))
    frame = content.index(b"\xff\xc0")
    struct.pack_into(">HH", content, frame + 5, 60_000, 60_000)
    monkeypatch.setattr(jpeg, "_decoder", lambda: 1 / 0)
    with pytest.raises(ImageError, match=r"more than .* pixels"):
        decode(bytes(content), "x")


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 600))
@settings(deadline=None, max_examples=30)
def test_the_scale_is_that_of_pillows_draft(width, height, at_least):
    image = Image.open(io.BytesIO(saved(Image.new("L", (width, height)))))
    image.draft(None, (at_least, at_least))
    header = plain_header(saved(Image.new("L", (width, height))))
    assert header is not None
    scale = draft_scale(header, at_least)
    assert image.size == (-(-width // scale), -(-height // scale))


def test_pillow_decodes_with_few_cores_and_where_the_libraries_disagree(monkeypatch):
    content = saved(photo(40, 24))
    expected = outcome(by_pillow, content)
    jpeg._decoder.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(jpeg, "_agrees", lambda decoder: False)
        assert plain_pixels(content, MAX_PIXELS) is None
        assert outcome(decode, content) == expected
    jpeg._decoder.cache_clear()
    monkeypatch.setattr(jpeg, "MANY_CORES", False)
    monkeypatch.setattr(jpeg, "plain_pixels", lambda *given: 1 / 0)
    assert outcome(decode, content) == expected


SAMPLES = [
    saved(photo(width, height, mode), progressive=progressive, **options)
    for width, height in ((40, 24), (17, 33))
    for mode in ("RGB", "L", "CMYK")
    for progressive in (False, True)
    for options in ({}, {"restart_marker_blocks": 2}, {"exif": rotated(6)}, {"icc_profile": b"x"})
]
DAMAGE = st.tuples(
    st.sampled_from(["set", "cut", "drop", "add"]), st.integers(0), st.binary(max_size=4)
)


def outcome(decoder, content, at_least=None):
    try:
        image = decoder(content, "x", at_least)
    except ImageError as error:
        return str(error)
    return image.size, image.tobytes()


@pytest.mark.filterwarnings("ignore")  # Pillow's, about broken metadata
@settings(deadline=None, max_examples=80)
@example(SAMPLES[39], [("drop", 1369, b"-")], None)  # libjpegs smooth it differently
@given(st.sampled_from(SAMPLES), st.lists(DAMAGE, max_size=4), st.sampled_from([None, 8, 30]))
def test_damaged_files_have_pillows_pixels_or_pillows_refusal(content, damage, at_least):
    broken = bytearray(content)
    for kind, number, some in damage:
        place = number % (len(broken) + 1)
        if kind == "set":
            broken[place : place + len(some)] = some
        elif kind == "cut":
            del broken[place:]
        elif kind == "drop":
            del broken[place : place + len(some)]
        else:
            broken[place:place] = some
    found = outcome(decode, bytes(broken), at_least)
    assert found == outcome(by_pillow, bytes(broken), at_least)

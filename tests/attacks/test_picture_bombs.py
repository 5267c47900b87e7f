"""Small files of pictures that claim or become much: HEIC and DICOM, held to memory and to a size.

Oracles: the same pixels in a plain file, and how many bytes Python has asked for at most.
"""

import io
import struct
import tracemalloc
import zlib
from contextlib import nullcontext

import numpy as np
import pydicom
import pytest
from band_files import dicom
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import DeflatedExplicitVRLittleEndian, RLELossless

from labelwise.errors import ImageError
from labelwise.pictures.decode import decode
from labelwise.pictures.multiband import open_cube

GREY = np.arange(20, dtype=np.uint16).reshape(4, 5)
HEAD = 144  # bytes up to the end of the length of the file's own facts, the last four of these


def deflated(more: int) -> bytes:
    """Return a deflated DICOM file of GREY, with a private field of so many zeros behind it."""
    file, stream = pydicom.dcmread(io.BytesIO(dicom(GREY))), io.BytesIO()
    file.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    file.save_as(stream, enforce_file_format=True)
    whole = stream.getvalue()
    start = HEAD + struct.unpack("<I", whole[HEAD - 4 : HEAD])[0]
    fields = zlib.decompress(whole[start:], -zlib.MAX_WBITS)
    fields += struct.pack("<HH2sHI", 0x7FE3, 0x10, b"OB", 0, more) + bytes(more)
    deflating = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return whole[:start] + deflating.compress(fields) + deflating.flush()


def rle(rows: int, columns: int) -> bytes:
    """Return a DICOM file that says it has so many values, and holds next to none."""
    file, stream = pydicom.dcmread(io.BytesIO(dicom(GREY))), io.BytesIO()
    file.Rows, file.Columns = rows, columns
    file.file_meta.TransferSyntaxUID = RLELossless
    frame = struct.pack("<16I", 2, *(64 + 2 * n for n in range(15))) + b"\x81\x00" * 2
    file.PixelData = encapsulate([frame])
    file["PixelData"].is_undefined_length = True
    file.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def heic(*claimed: int) -> bytes:
    """Return a HEIC photo of 64 x 64 that claims another size."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "HEIF")
    head, field, rest = stream.getvalue().partition(b"ispe")
    assert struct.unpack(">4xII", rest[:12]) == (64, 64)
    return head + field + rest[:4] + struct.pack(">II", *claimed) + rest[12:]


def most_memory(read, content, name, sentence=None) -> int:
    """Return the most memory asked for until a file was read, or refused in this sentence."""
    tracemalloc.start()
    try:
        refused = pytest.raises(ImageError, match=sentence) if sentence else nullcontext()
        with refused:
            read(content, name)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_deflated_dicom_is_read_as_the_plain_one_or_refused_before_it_is_too_large(monkeypatch):
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "1000000")
    for more in (0, 2_900_000):
        assert np.array_equal(open_cube(deflated(more), "a.dcm").values[:, :, 0], GREY)
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "1000000")
    bomb = deflated(40_000_000)
    assert len(bomb) < 100_000
    sentence = "inflated, it has more than 3,000,000 bytes"
    assert most_memory(open_cube, bomb, "a.dcm", sentence) < 10_000_000


def test_dicom_that_holds_less_than_it_says_is_refused():
    most = 5 * 3000 * 3000  # as a true one of that size
    assert most_memory(open_cube, rle(3000, 3000), "a.dcm", r"a\.dcm") < most
    most_memory(open_cube, rle(60_000, 60_000), "a.dcm", "more than 89,478,485 pixels")


def test_a_heic_photo_that_lies_about_its_size_is_refused():
    assert decode(heic(64, 64), "a.heic").size == (64, 64)
    for sentence, sizes in (
        ("more than 89,478,485 pixels", ((60_000, 60_000), (2**31 - 1, 2))),
        ("cannot be read", ((9000, 9000), (1, 1))),
        ("not an image", ((0, 0), (2**32 - 1, 2**32 - 1))),
    ):
        for claimed in sizes:
            assert most_memory(decode, heic(*claimed), "a.heic", sentence) < 10_000_000


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_alpha_is_laid_on_white_in_strips_as_in_one_piece(mode):
    """Pictures higher than a strip; the layers of a whole one took 12 bytes a pixel more."""
    values = np.random.default_rng(0).integers(0, 256, (1100, 7, 4), np.uint8)
    image, stream = Image.fromarray(values).convert(mode), io.BytesIO()
    image.save(stream, "PNG", **({"transparency": 3} if mode == "P" else {}))
    layer = Image.open(stream).convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    assert np.array_equal(np.asarray(decode(stream.getvalue(), "a.png")), np.asarray(whole))


def test_deep_grey_takes_few_bytes_a_pixel():
    stream = io.BytesIO()
    Image.fromarray(np.full((1000, 1000), 4096, np.uint16)).save(stream, "PNG")
    decode(stream.getvalue(), "a.png")  # what is loaded once
    assert most_memory(decode, stream.getvalue(), "a.png") < 8e6
    assert np.asarray(decode(stream.getvalue(), "a.png"))[0, 0].tolist() == [16] * 3

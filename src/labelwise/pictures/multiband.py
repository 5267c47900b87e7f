"""Files of any depth and number of bands to arrays (height, width, bands), in the file's units.

    .npy             (H, W) or (H, W, bands); nothing else is read of NumPy's formats
    TIFF, GeoTIFF    by tifffile; bands are samples of a pixel, planes, or pages of one size
    DICOM            by pydicom
    a folder         of single-band TIFFs, PATCH_B02.tif, ...: each named by what follows the last _
    PNG, JPEG, ...   by Pillow: 8 bit colour, grey of 8 or 16 bit

A pixel without data, by the file's own GDAL_NODATA or because it is NaN, is NaN. Bands of a folder
that are smaller than its largest are enlarged by repeating pixels. Where a picture lies (its
coordinate reference system) is not read, so an unknown one changes nothing.
"""

import io
import json
import logging
import os
import re
import warnings
import zlib
from contextlib import suppress
from functools import cache, lru_cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from labelwise.base.arrays import Values
from labelwise.errors import ImageError
from labelwise.pictures.decode import (
    HAS_DICOM,
    TIFF,
    check_size,
    decode,
    is_dicom,
    max_pixels,
    open_picture,
)
from labelwise.pictures.transform import Bands, parse_window

if TYPE_CHECKING:
    from pydicom import Dataset

# DICOM files by pydicom; nothing but pixels leaves the file.
#
#     modality     value = stored * RescaleSlope + RescaleIntercept, or the modality's table
#     window       share = ((value - (c - 1/2)) / (w - 1) + 1/2, cut to 0..1   (PS3.3 C.11.2.1.2)
#                  LINEAR_EXACT without the halves, SIGMOID as 1 / (1 + exp(-4 (value - c) / w))
#     VOI LUT      share = table[value] / (2^bits - 1), where a file has one and no window
#     MONOCHROME1  is stored dark for bright: low + high - value, of the range that is stored; of a
#                  window 1 - share
#
# Brighter is always more. pydicom's errors quote values, any of which may be a patient's; ours name
# the element at most.

GREY = ("MONOCHROME1", "MONOCHROME2")
ELEMENT = re.compile(r"\([0-9A-Fa-f]{4}, ?[0-9A-Fa-f]{4}\)")
MORE_DECODERS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"


def read_dicom(content: bytes, name: str, window: str, max_pixels: int) -> Values:
    """Return the values (H, W, 1 or 3) of the one picture of a file, or raise an ImageError."""
    if not HAS_DICOM:
        raise ImageError(f"{name}: DICOM files need `pip install 'labelwise[dicom]'`")
    try:
        return _values(content, name, window, max_pixels)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # of a dozen kinds
        element = ELEMENT.search(str(error))
        at = f", element {element[0]}" if element is not None else ""
        reason = f"{type(error).__name__}{at}; values of a DICOM file are not shown"
        if "pixel data is less than expected" in str(error):
            reason = "its pixels end early"
        raise ImageError(f"{name}: the image cannot be read ({reason})") from None


def _values(content: bytes, name: str, window: str, max_pixels: int) -> Values:
    from pydicom import dcmread
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which quote values of the file
        facts = dcmread(_Inflatable(content, name, max_pixels))
        if not any(key in facts for key in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
            raise ImageError(f"{name}: this DICOM file holds no pixels")
        if int(facts.get("Rows", 0)) * int(facts.get("Columns", 0)) > max_pixels:
            raise ImageError(f"{name}: the image has more than {max_pixels:,} pixels")
        frames = int(facts.get("NumberOfFrames") or 1)
        if frames != 1:
            raise ImageError(f"{name}: holds {frames} frames, and a picture has one; split it")
        try:
            stored: Values = pixel_array(facts)
        except (RuntimeError, NotImplementedError):
            syntax = facts.file_meta.get("TransferSyntaxUID")
            known = syntax is not None and syntax.name != str(syntax)  # one of the standard's
            raise ImageError(
                f"{name}: its pixels ({syntax.name if known else 'an unknown syntax'}) are not "
                f"read by what is installed; `{MORE_DECODERS}` reads more"
            ) from None
        kind = str(facts.get("PhotometricInterpretation", ""))
        if kind not in GREY:
            if window != "none":
                raise ImageError(f"{name}: is in colour ({kind}), and windows are for grey ones")
            return apply_color_lut(stored, facts) if kind == "PALETTE COLOR" else stored
        values = np.asarray(apply_modality_lut(stored, facts))
        if window != "none":
            shares = _shares(values, facts, window, name)
            return (1 - shares if kind == "MONOCHROME1" else shares)[:, :, None]
        if kind == "MONOCHROME1":
            ends = np.array([stored.min(), stored.max()])  # smallest and largest that can be stored
            if stored.dtype.kind != "f":
                most, signed = 1 << int(facts.BitsStored), int(facts.PixelRepresentation)
                low = -most // 2 if signed else 0
                ends = np.array([low, low + most - 1], stored.dtype)
            ends = np.asarray(apply_modality_lut(ends, facts))
            values = ends.sum(dtype=np.float64) - values
        return values[:, :, None]


class _Inflatable(io.BytesIO):
    """The bytes of a file, for pydicom, which inflates the rest of a deflated one as a whole.

    It asks for such a rest by no size, and for nothing else: what would be too large is refused.
    """

    def __init__(self, content: bytes, name: str, max_pixels: int) -> None:
        super().__init__(content)
        self.file, self.max_pixels = name, max_pixels

    def read(self, size: int | None = -1) -> bytes:
        some = super().read(size)
        if (size is None or size < 0) and not _inflates_within(some, 3 * self.max_pixels):
            raise ImageError(
                f"{self.file}: inflated, it has more than {3 * self.max_pixels:,} bytes; set "
                "LABELWISE_MAX_PIXELS to a third of what to read"
            )
        return some


def _inflates_within(content: bytes, most: int) -> bool:
    """Return whether a deflated stream inflates to at most ``most`` bytes, or is broken."""
    with suppress(zlib.error):
        return len(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, most + 1)) <= most
    return True


def _shares(values: Values, facts: "Dataset", window: str, name: str) -> NDArray[np.float64]:
    """Return the share (0 to 1) of a window, or of a VOI LUT where the file has only that."""
    if window == "file" and facts.get("WindowCenter") is None and facts.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        most = (1 << int(facts.VOILUTSequence[0].LUTDescriptor[2])) - 1
        return np.asarray(apply_voi(values, facts), np.float64) / most
    given = parse_window(window)
    if given is not None:
        center, width, function = *given, "LINEAR_EXACT"
    elif facts.get("WindowCenter") is None or facts.get("WindowWidth") is None:
        raise ImageError(f"{name}: states no window; train with --window none, or CENTER,WIDTH")
    else:
        center, width = (
            float(facts[key].value[0] if facts[key].VM > 1 else facts[key].value)
            for key in ("WindowCenter", "WindowWidth")
        )
        function = str(facts.get("VOILUTFunction") or "LINEAR").upper()
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise ImageError(f"{name}: its window has an unknown shape (VOI LUT Function)")
    if width < 1 if function == "LINEAR" else width <= 0:
        raise ImageError(f"{name}: the width of its window must be at least 1, got {width:g}")
    levels = values.astype(np.float64)
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (levels - center) / width)))
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width == 0:
        return (levels > center).astype(np.float64)
    return ((levels - center) / width + 0.5).clip(0, 1)


HAS_TIFF = find_spec("tifffile") is not None
BAND_SUFFIXES = frozenset({".npy"})  # that are pictures to a model of bands alone
TIFF_SUFFIXES = (".tif", ".tiff")
PACKED = b"LABELWISE-BANDS\n"
DESCRIPTION = re.compile(r'<Item name="DESCRIPTION" sample="(\d+)" role="description">([^<]*)<')
NODATA, GDAL_METADATA, ORIENTATION = KEPT_TAGS = 42113, 42112, 274
RGB = ("red", "green", "blue")
COMPRESSIONS = (None, "deflate", "lzw", "packbits", "lzma", "zstd", "jpeg2000", "lerc", "webp")


class Cube(NamedTuple):
    """Values (H, W, bands) of a file, the names it gives its bands, and the value of no data."""

    values: Values
    names: tuple[str, ...] | None = None
    missing: float | None = None
    usual: tuple[str, ...] | None = None  # names where the file gives none

    @property
    def found_names(self) -> tuple[str, ...]:
        """The names of the bands: the file's own, the usual ones, or their numbers."""
        count = self.values.shape[2]
        usual = self.usual or (("grey",) if count == 1 else None)
        return self.names or usual or tuple(map(str, range(1, count + 1)))


def chosen_bands(cube: Cube, name: str, bands: Bands) -> Values:
    """Return the bands (H, W, n) of a cube in the order of a model."""
    values, wanted, names = cube.values, bands.names, cube.names
    if names is not None:
        absent = [band for band in wanted if band not in names]
        if absent:
            raise ImageError(f"{name}: has no band {absent[0]!r}; its bands are {', '.join(names)}")
        places = [names.index(band) for band in wanted]
        if places != list(range(values.shape[2])):
            values = values[:, :, places]
    elif values.shape[2] != len(wanted):
        raise ImageError(
            f"{name}: has {values.shape[2]} bands without names, and {len(wanted)} are wanted "
            f"({', '.join(wanted)}); every picture must have the same bands"
        )
    with_gaps = _with_gaps(cube._replace(values=values))
    if values.dtype.kind == "f" and np.isinf(with_gaps).any():
        raise ImageError(f"{name}: holds infinite values; write NaN where there is no data")
    return with_gaps


def _with_gaps(cube: Cube) -> Values:
    """Return the values of a cube, NaN where it has no data; as they are if it has all."""
    values, missing = cube.values, cube.missing
    if missing is None or np.isnan(missing):
        return values
    gaps = values == missing
    return np.where(gaps, np.float32(np.nan), values.astype(np.float32)) if gaps.any() else values


def open_cube(content: bytes, name: str, window: str = "none") -> Cube:
    """Return what a file holds, or raise an ImageError with ``name`` and what is wrong."""
    if not content:
        raise ImageError(f"{name}: the image is empty (0 bytes)")
    try:
        if content.startswith(PACKED):
            return _from_folder(content, name)
        if content.startswith(npy.MAGIC_PREFIX):
            return Cube(_npy_values(content, name))
        if is_dicom(content):
            values = read_dicom(content, name, window, max_pixels())
            return Cube(values, usual=RGB if values.shape[2] == 3 else None)
        if content.startswith(TIFF):
            return _tiff(content, name)
        with open_picture(content) as image:
            check_size(name, *image.size)
            if content.startswith(b"\x89PNG") and content[24] == 16 and content[25] not in (0, 4):
                raise ImageError(f"{name}: 16-bit colour PNGs are not read; save a 16-bit TIFF")
            if image.mode in ("I;16", "I;16B", "I", "F", "L"):
                return Cube(_with_bands(np.asarray(image)))
        return Cube(np.asarray(decode(content, name)), usual=RGB)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # decoders raise a dozen kinds for broken bytes
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ImageError(f"{name}: the image cannot be read ({reason})") from error


def _npy_values(content: bytes, name: str) -> Values:
    start = 10 if content[6:7] == b"\1" else 12  # version 1 says how long it is in two bytes
    end = start + int.from_bytes(content[8:start], "little")
    shape, by_columns, dtype = _npy_head(content[:end])
    if dtype.kind not in "uif":
        raise ImageError(f"{name}: a cube must hold numbers, got {dtype}")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise ImageError(f"{name}: a cube must be (height, width) or (..., bands), got {shape}")
    check_size(name, shape[1], shape[0])
    count = int(np.prod(shape))
    if len(content) - end < count * dtype.itemsize:
        raise ImageError(f"{name}: the file ends early; it should hold {count:,} values")
    values = np.frombuffer(content, dtype, count, end)
    return _with_bands(values.reshape(shape, order="F" if by_columns else "C"))


@lru_cache(maxsize=64)  # NumPy takes as long to parse it as to read a tile, and tiles are alike
def _npy_head(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether columns come first, and type."""
    stream = io.BytesIO(head)
    if npy.read_magic(stream) == (1, 0):
        return npy.read_array_header_1_0(stream)
    return npy.read_array_header_2_0(stream)


def _with_bands(values: Values) -> Values:
    return values[:, :, None] if values.ndim == 2 else values


def _tiff(content: bytes, name: str) -> Cube:
    if not HAS_TIFF:
        raise ImageError(f"{name}: bands of TIFF files need `pip install 'labelwise[bands]'`")
    from tifffile import COMPRESSION, PHOTOMETRIC, TiffFile

    _keep_quiet()
    with TiffFile(io.BytesIO(content)) as file:
        page: Any = file.pages.first
        check_size(name, page.imagewidth, page.imagelength)
        facts = {tag.code: tag.value for tag in page.tags if tag.code in KEPT_TAGS}
        if facts.get(ORIENTATION, 1) != 1:
            raise ImageError(f"{name}: is stored turned; save it upright (TIFF orientation 1)")
        if page.photometric == PHOTOMETRIC.PALETTE:
            raise ImageError(f"{name}: holds colours by number (a palette), not bands; save RGB")
        try:
            values = _tiff_values(file, page, name)
        except ValueError as error:
            if "imagecodecs" not in str(error):
                raise
            kind = COMPRESSION(page.compression).name
            raise ImageError(
                f"{name}: is compressed by {kind}, which needs `pip install 'labelwise[bands]'`"
            ) from None
        missing = float(facts[NODATA]) if NODATA in facts else None
        if page.photometric == PHOTOMETRIC.MINISWHITE and values.dtype.kind == "u":
            white = np.iinfo(str(values.dtype)).max
            values = white - values
            if missing is not None:  # the mark is one of stored values
                missing = white - missing
        is_rgb = page.photometric in (PHOTOMETRIC.RGB, PHOTOMETRIC.YCBCR) and values.shape[2] == 3
    text = facts.get(GDAL_METADATA)
    told = DESCRIPTION.findall(text) if isinstance(text, str) else []
    descriptions = {int(at): unescape(words).strip() for at, words in told}
    names = tuple(descriptions.get(at, "") for at in range(values.shape[2]))
    is_named = all(names) and len(set(names)) == len(names)  # each band has a name of its own
    return Cube(values, names if is_named else None, missing, RGB if is_rgb else None)


@cache
def _keep_quiet() -> None:
    """Keep a damaged TIFF from filling the terminal, where no program asked for tifffile's log."""
    logging.getLogger("tifffile").addHandler(logging.NullHandler())


def _tiff_values(file: Any, page: Any, name: str) -> Values:
    if len(file.pages) > 1:
        firsts = ((series, series.pages[0]) for series in file.series)
        whole = [series for series, first in firsts if not (first.is_reduced or first.is_mask)]
        if len(whole) != 1:
            raise ImageError(f"{name}: holds {len(whole)} pictures of different sizes, not one")
        page = whole[0]
    axes, values = page.axes, page.asarray()
    if values.dtype.kind not in "uif":
        raise ImageError(f"{name}: bands must hold numbers, got {values.dtype}")
    if not {"Y", "X"} <= set(axes) or sum(axis not in "YX" for axis in axes) > 1:
        raise ImageError(f"{name}: must have height, width and bands, got the axes {''.join(axes)}")
    return _with_bands(np.moveaxis(values, [axes.index("Y"), axes.index("X")], [0, 1]))


def is_band_folder(path: str | Path) -> bool:
    """Return whether a path is a folder that holds TIFF files."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(name.lower().endswith(TIFF_SUFFIXES) for name in names)


def pack_folder(folder: Path, name: str) -> bytes:
    """Return the files of a folder of single-band TIFFs as one block of bytes."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in TIFF_SUFFIXES)
    if not files:
        raise ImageError(f"{name}: the image cannot be opened (it is a folder)")
    blobs = [file.read_bytes() for file in files]
    facts = [
        [file.stem.rpartition("_")[2], len(blob)] for file, blob in zip(files, blobs, strict=True)
    ]
    return PACKED + json.dumps(facts).encode() + b"\n" + b"".join(blobs)


def _from_folder(content: bytes, name: str) -> Cube:
    end = content.index(b"\n", len(PACKED))
    parts: list[tuple[str, Values]] = []
    at = end + 1
    for band, size in json.loads(content[len(PACKED) : end]):
        cube = _tiff(content[at : at + size], f"{name}/{band}")
        at += size
        if (count := cube.values.shape[2]) != 1:
            raise ImageError(f"{name}: files of a folder hold one band each, {band} has {count}")
        parts.append((band, _with_gaps(cube)[:, :, 0]))
    height, width = max(values.shape for _, values in parts)
    planes = []
    for band, values in parts:
        tall, wide = values.shape
        if height % tall or width % wide:
            raise ImageError(
                f"{name}: the band {band} has {wide} x {tall} pixels, which do not divide the "
                f"{width} x {height} of the largest"
            )
        planes.append(values.repeat(height // tall, axis=0).repeat(width // wide, axis=1))
    return Cube(np.stack(planes, axis=-1), tuple(band for band, _ in parts))


@cache
def load_band_readers() -> None:
    """Read one file of each kind, so that the code for it is loaded: for those who open no file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if HAS_TIFF:
            from tifffile import imwrite

            for compression in COMPRESSIONS:
                stream = io.BytesIO()
                with suppress(Exception):  # what cannot be written here cannot be read either
                    imwrite(stream, np.zeros((32, 32), np.uint16), compression=compression)
                    open_cube(stream.getvalue(), "")
        if HAS_DICOM:
            from pydicom.pixels.decoders.base import get_decoder
            from pydicom.uid import AllTransferSyntaxes

            for syntax in AllTransferSyntaxes:
                with suppress(NotImplementedError):
                    _ = get_decoder(syntax).is_available  # which imports the decoders

"""DICOM files to values (height, width, bands), by pydicom; nothing but pixels leaves the file.

    modality     value = stored * RescaleSlope + RescaleIntercept, or the modality's table
    window       share = ((value - (c - 1/2)) / (w - 1) + 1/2, cut to 0..1   (PS3.3 C.11.2.1.2)
                 LINEAR_EXACT without the halves, SIGMOID as 1 / (1 + exp(-4 (value - c) / w))
    VOI LUT      share = table[value] / (2^bits - 1), where a file has one and no window. Of both
                 the window is taken; the standard allows either, pydicom prefers the table
    MONOCHROME1  is stored dark for bright: low + high - value, of the range that is stored; of a
                 window 1 - share

So brighter is always more. Colours (RGB, YBR, a palette) come as red, green and blue as stored.
What pydicom says of a damaged file quotes its values, any of which may be a patient's; so errors
name the element at most.
"""

import io
import re
import warnings
import zlib
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError
from labelwise.pictures.transform import parse_window

HAS_DICOM = find_spec("pydicom") is not None
MARK = slice(128, 132)
PIECE = 1 << 16
GREY = ("MONOCHROME1", "MONOCHROME2")
ELEMENT = re.compile(r"\([0-9A-Fa-f]{4}, ?[0-9A-Fa-f]{4}\)")
MORE_DECODERS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"


def is_dicom(content: bytes) -> bool:
    """Return whether a file says it is DICOM, by the mark behind its preamble."""
    return content[MARK] == b"DICM"


def read_dicom(content: bytes, name: str, window: str, max_pixels: int) -> NDArray[Any]:
    """Return the values (H, W, 1 or 3) of the one picture of a file, or raise an ImageError."""
    if not HAS_DICOM:
        raise ImageError(f"{name}: DICOM files need `pip install 'labelwise[dicom]'`")
    try:
        return _values(content, name, window, max_pixels)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # of a dozen kinds
        raise ImageError(f"{name}: the image cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """Return why pydicom failed, without a value of the file."""
    text = str(error)
    if "pixel data is less than expected" in text:
        return "its pixels end early"
    element = ELEMENT.search(text)
    at = f", element {element[0]}" if element is not None else ""
    return f"{type(error).__name__}{at}; values of a DICOM file are not shown"


def _values(content: bytes, name: str, window: str, max_pixels: int) -> NDArray[Any]:
    from pydicom import dcmread
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which quote values of the file
        facts = dcmread(_Inflatable(content, name, max_pixels))
        if not any(key in facts for key in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
            raise ImageError(f"{name}: this DICOM file holds no pixels")
        rows, columns = int(facts.get("Rows", 0)), int(facts.get("Columns", 0))
        if rows * columns > max_pixels:
            raise ImageError(f"{name}: the image has more than {max_pixels:,} pixels")
        frames = int(facts.get("NumberOfFrames") or 1)
        if frames != 1:
            raise ImageError(f"{name}: holds {frames} frames, and a picture has one; split it")
        stored = _pixels(facts, name, pixel_array)
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
            ends = np.asarray(apply_modality_lut(_ends(facts, stored), facts))
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
        """Return the next bytes, or raise ImageError."""
        some = super().read(size)
        if (size is None or size < 0) and not _inflates_within(some, 3 * self.max_pixels):
            raise ImageError(
                f"{self.file}: inflated, it has more than {3 * self.max_pixels:,} bytes; set "
                "LABELWISE_MAX_PIXELS to a third of what to read"
            )
        return some


def _inflates_within(content: bytes, most: int) -> bool:
    """Return whether a deflated stream inflates to at most ``most`` bytes; none are kept."""
    inflating = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    with suppress(zlib.error):
        for start in range(0, len(content), PIECE):
            rest = content[start : start + PIECE]
            while rest and size <= most and not inflating.eof:
                size += len(inflating.decompress(rest, PIECE))
                rest = inflating.unconsumed_tail
    return size <= most


def _pixels(facts: Any, name: str, pixel_array: Any) -> NDArray[Any]:
    try:
        stored: NDArray[Any] = pixel_array(facts)
    except (RuntimeError, NotImplementedError):
        syntax = facts.file_meta.get("TransferSyntaxUID")
        known = syntax is not None and syntax.name != str(syntax)  # one that the standard names
        raise ImageError(
            f"{name}: its pixels ({syntax.name if known else 'an unknown syntax'}) are not read by "
            f"what is installed; `{MORE_DECODERS}` reads more"
        ) from None
    return stored


def _ends(facts: Any, stored: NDArray[Any]) -> NDArray[Any]:
    """Return the smallest and the largest value that can be stored."""
    if stored.dtype.kind == "f":
        return np.array([stored.min(), stored.max()])
    bits = int(facts.BitsStored)
    if int(facts.PixelRepresentation):
        return np.array([-(1 << (bits - 1)), (1 << (bits - 1)) - 1], stored.dtype)
    return np.array([0, (1 << bits) - 1], stored.dtype)


def _shares(values: NDArray[Any], facts: Any, window: str, name: str) -> NDArray[np.float64]:
    """Return the share (0 to 1) of a window, or of a VOI LUT where the file has only that."""
    if window == "file" and facts.get("WindowCenter") is None and facts.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        most = (1 << int(facts.VOILUTSequence[0].LUTDescriptor[2])) - 1
        return np.asarray(apply_voi(values, facts), np.float64) / most
    return _windowed(values.astype(np.float64), *_window_of(facts, window, name))


def _window_of(facts: Any, window: str, name: str) -> tuple[float, float, str]:
    given = parse_window(window)
    if given is not None:
        return (*given, "LINEAR_EXACT")
    if facts.get("WindowCenter") is None or facts.get("WindowWidth") is None:
        raise ImageError(
            f"{name}: states no window; train with --window none, or --window CENTER,WIDTH"
        )
    center, width = (
        float(value[0] if facts[key].VM > 1 else value)
        for key in ("WindowCenter", "WindowWidth")
        for value in (facts[key].value,)
    )
    function = str(facts.get("VOILUTFunction") or "LINEAR").upper()
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise ImageError(f"{name}: its window has an unknown shape (VOI LUT Function)")
    if width < 1 if function == "LINEAR" else width <= 0:
        raise ImageError(f"{name}: the width of its window must be at least 1, got {width:g}")
    return center, width, function


def _windowed(
    values: NDArray[np.float64], center: float, width: float, function: str
) -> NDArray[np.float64]:
    """Return the share (0 to 1) of a window that each value reaches."""
    if function == "SIGMOID":
        shares: NDArray[np.float64] = 1 / (1 + np.exp(-4 * (values - center) / width))
        return shares
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width == 0:
        return (values > center).astype(np.float64)
    return ((values - center) / width + 0.5).clip(0, 1)


def load_dicom_readers() -> None:
    """Import what reads DICOM files, with the decoders that are installed."""
    if HAS_DICOM:
        from pydicom.pixels.decoders.base import get_decoder
        from pydicom.uid import AllTransferSyntaxes

        for syntax in AllTransferSyntaxes:
            with suppress(NotImplementedError):
                _ = get_decoder(syntax).is_available

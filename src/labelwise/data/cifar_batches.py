"""The files of CIFAR: binary records, and pickled batches read without running anything.

The official python version is pickled. It is read by an unpickler that knows only arrays, bytes,
text, numbers, lists and dictionaries; any other name in the file is an error.
"""

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError

__all__ = ["Batch", "as_text", "read_binary", "read_python", "unpickled"]

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # pixels (n, 3072), classes (n,)
PIXELS = 3 * 32 * 32
REBUILD = np.empty(0).__reduce__()[0]  # what makes an array out of its pickled parts
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays and plain containers; any other name in the file is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here")
        return ALLOWED[module, name]


def read_binary(path: Path, files: list[str], width: int, column: int) -> Batch:
    """Return records of ``width`` class bytes and 3,072 pixel bytes; one byte is the class."""
    rows = []
    for file in files:
        content = np.frombuffer(_content(path / file), np.uint8)
        if not len(content) or len(content) % (width + PIXELS):
            raise DataError(f"{path / file}: must be records of {width + PIXELS} bytes")
        rows.append(content.reshape(-1, width + PIXELS))
    whole = np.concatenate(rows)
    return whole[:, width:], whole[:, column].astype(np.int64)


def read_python(path: Path, files: list[str], key: str) -> Batch:
    """Return the pixels and the classes under ``key`` of pickled batches."""
    pixels, codes = [], []
    for file in files:
        content = unpickled(path / file)
        data, labels = content.get("data"), content.get(key)
        if (
            not isinstance(data, np.ndarray)
            or data.dtype != np.uint8
            or data.ndim != 2
            or data.shape[1] != PIXELS
            or not isinstance(labels, list)
            or len(labels) != len(data)
            or not all(isinstance(label, int) for label in labels)
        ):
            raise DataError(f"{path / file}: must have 'data' (n, {PIXELS}) and {key!r}")
        pixels.append(data)
        codes.append(np.array(labels, np.int64))
    return np.concatenate(pixels), np.concatenate(codes)


def unpickled(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary of arrays and plain values, its keys as text."""
    try:
        with path.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path}: the file is missing") from None
    except Exception as error:  # a broken pickle raises a dozen kinds
        raise DataError(f"{path}: not an official CIFAR batch ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not an official CIFAR batch")
    return {as_text(key): value for key, value in content.items()}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: the file is missing") from None


def as_text(value: object) -> str:
    """Return bytes or text as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

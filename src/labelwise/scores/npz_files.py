"""Archives of numpy's arrays from strangers: whole, without Python objects, or refused."""

from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from labelwise.errors import DataError

Table = dict[str, NDArray[Any]]


def npz_arrays(path: Path) -> Table:
    """Return the arrays of the archive; each must be as long as its header says."""
    arrays: Table = {}
    try:
        with ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise DataError(f"{path}: array {name!r} stands there twice")
                with archive.open(member) as stream:
                    dtype, size = _header(stream)
                    if dtype.hasobject:
                        raise DataError(
                            f"{path}: array {name!r} holds Python objects, which are never read; "
                            "store text as numpy text, for example np.array(names, dtype=str)"
                        )
                    if size != member.file_size - stream.tell():
                        raise DataError(f"{path}: array {name!r} is cut off or damaged")
                with archive.open(member) as stream:
                    arrays[name] = npy.read_array(stream, allow_pickle=False)
    # What a damaged archive raises is up to zipfile, zlib and numpy.
    except (OSError, BadZipFile, ZlibError, EOFError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise DataError(f"{path}: not a readable .npz file ({reason})") from None
    except (AttributeError, KeyError, TypeError, SyntaxError, TokenError, MemoryError):
        raise DataError(f"{path}: not a readable .npz file (damaged)") from None
    return arrays


def _header(stream: Any) -> tuple[np.dtype[Any], int]:
    """Return the type of a stored array and how many bytes it takes."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"numpy's format {version[0]}.{version[1]} is not read")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return dtype, prod(shape) * dtype.itemsize


def npz_matrix(path: Path, arrays: Table, name: str) -> NDArray[np.float64] | None:
    """Return a matrix of numbers by name, None where there is none."""
    value = arrays.get(name)
    if value is None:
        return None
    if value.ndim != 2 or value.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: {name} must be a matrix of numbers (rows, labels), "
            f"got {value.dtype} {value.shape}"
        )
    return value.astype(np.float64)


def npz_texts(path: Path, arrays: Table, name: str, length: int) -> tuple[str, ...] | None:
    """Return an array of texts by name, None where there is none."""
    value = arrays.get(name)
    if value is None:
        return None
    if value.shape != (length,) or value.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: {name} must be {length} texts or integers, got {value.dtype} {value.shape}"
        )
    return tuple(str(item) for item in value.tolist())

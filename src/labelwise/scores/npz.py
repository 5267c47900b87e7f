"""Score files of numpy: one .npz with the arrays

scores (N, K)    labels (N, K): 1, 0, or NaN for unknown
names (K,)       text; left out, labels are called label-0, label-1, ...
ids (N,)         text or integers; left out, rows are called 0, 1, ...
observed (N, K)  boolean; False is unknown
split (N,)       text
"""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.scores.raw import Raw
from labelwise.types import nearest

__all__ = ["read_npz"]

ARRAYS = ("scores", "labels", "observed", "names", "ids", "split")


def read_npz(path: Path) -> Raw:
    """Return the numbers of a .npz file; nothing pickled is ever read."""
    arrays = _load(path)
    for name in arrays:
        if name not in ARRAYS:
            raise DataError(f"{path}: unknown array {name!r}{nearest(name, ARRAYS)}")
    matrices = [_matrix(path, arrays, name) for name in ("scores", "labels")]
    first = next((matrix for matrix in matrices if matrix is not None), None)
    if first is None:
        raise DataError(f"{path}: there is no array 'scores'{nearest('scores', arrays)}")
    rows, columns = first.shape
    scores, labels = matrices
    for name, value in (("labels", labels), ("observed", arrays.get("observed"))):
        if value is not None and value.shape != first.shape:
            raise DataError(f"{path}: {name} must have shape {first.shape}, got {value.shape}")
    observed = arrays.get("observed")
    if observed is not None:
        if observed.dtype != np.bool_ or labels is None:
            raise DataError(f"{path}: observed must be boolean beside labels, got {observed.dtype}")
        labels = np.where(observed, labels, np.nan)
    names = _texts(path, arrays, "names", columns)
    ids = _texts(path, arrays, "ids", rows)
    split = _texts(path, arrays, "split", rows)
    raw = Raw(
        str(path),
        names or tuple(f"label-{column}" for column in range(columns)),
        ids or tuple(str(row) for row in range(rows)),
        scores,
        labels,
        split,
    )
    raw.check_names()
    return raw


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise DataError(
                f"{path}: an array holds Python objects, which are never read; "
                "store text as numpy text, for example np.array(names, dtype=str)"
            ) from None
        raise DataError(f"{path}: not a readable .npz file ({error})") from None
    except (OSError, BadZipFile, EOFError, AttributeError, TypeError) as error:
        raise DataError(f"{path}: not a readable .npz file ({error})") from None


def _matrix(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[np.float64] | None:
    value = arrays.get(name)
    if value is None:
        return None
    if value.ndim != 2 or value.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: {name} must be a matrix of numbers (rows, labels), "
            f"got {value.dtype} {value.shape}"
        )
    return value.astype(np.float64)


def _texts(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, length: int
) -> tuple[str, ...] | None:
    value = arrays.get(name)
    if value is None:
        return None
    if value.shape != (length,) or value.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: {name} must be {length} texts or integers, got {value.dtype} {value.shape}"
        )
    return tuple(str(item) for item in value.tolist())

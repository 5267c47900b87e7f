"""Products of 8-bit integers, exact: by ``numkong`` where it is installed, otherwise by NumPy.

NumPy multiplies integers one by one, so they are made single precision first, in which the sums are
whole numbers up to 2^24 and exact. ``numkong``, of the extra ``words``, takes them as they are.
"""

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

WIDEST = 1024  # numbers in a row: 128 * 128 times as much is what single precision holds
AT_ONCE = 4  # columns that numkong multiplies together; fewer take longer
WIDENED = 1 << 11  # rows that are single precision at once


class SmallColumns:
    """Columns (C, W) of small integers that rows are multiplied with."""

    def __init__(self, columns: NDArray[np.int8]) -> None:
        count, width = columns.shape
        if width > WIDEST:
            raise ValueError(f"small integers must be at most {WIDEST:,} in a row, got {width:,}")
        self._columns, self._packed = columns, None
        if find_spec("numkong") is not None:
            import numkong

            padded = np.zeros((-(-count // AT_ONCE) * AT_ONCE, width), np.int8)
            padded[:count] = columns
            self._packed = numkong.dots_pack(padded, dtype="int8")

    def products(self, rows: NDArray[np.int8]) -> NDArray[np.int32]:
        """Return the products (n, C) of rows (n, W) with the columns."""
        if self._packed is None:
            return _by_numpy(rows, self._columns)
        import numkong

        found: NDArray[np.int32] = np.asarray(numkong.dots_packed(rows, self._packed))
        return found[:, : len(self._columns)]


def _by_numpy(rows: NDArray[np.int8], columns: NDArray[np.int8]) -> NDArray[np.int32]:
    found = np.empty((len(rows), len(columns)), np.int32)
    wide = columns.T.astype(np.float32)
    for start in range(0, len(rows), WIDENED):
        part = slice(start, start + WIDENED)
        found[part] = rows[part].astype(np.float32) @ wide
    return found

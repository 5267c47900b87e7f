"""When photos were taken: times in tables, days that photos span, and bursts.

A burst is a run of photos of one camera in which no photo was taken more than ``gap`` seconds after
the one before it. Times stand as ISO 8601 (``2024-05-01T06:30:00``, ``2024-05-01 06:30``) or as
EXIF writes them (``2024:05:01 06:30:00``). A time zone is taken to UTC; times with and without a
zone do not mix.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError

EXIF = re.compile(r"(\d{4}):(\d{2}):(\d{2})(.*)", re.S)


def read_times(texts: Sequence[str], source: str, column: str) -> NDArray[np.datetime64]:
    """Return the times (N,) of a column, to the microsecond.

    >>> read_times(["2024:05:01 06:30:00", "2024-05-01T06:30"], "table.csv", "time").tolist()
    [datetime.datetime(2024, 5, 1, 6, 30), datetime.datetime(2024, 5, 1, 6, 30)]
    """
    found: list[datetime] = []
    zoned: bool | None = None
    for row, text in enumerate(texts):
        where = f"{source}: row {row + 1}: {column!r}"
        try:
            moment = datetime.fromisoformat(EXIF.sub(r"\1-\2-\3\4", text.strip()))
        except ValueError:
            raise DataError(
                f"{where} must be a time such as 2024-05-01T06:30:00, got {text!r}; correct it, or "
                "leave the row out"
            ) from None
        if zoned is None:
            zoned = moment.tzinfo is not None
        if zoned != (moment.tzinfo is not None):
            raise DataError(
                f"{where} must have a time zone in every row or in none, got {text!r} unlike row 1"
            )
        found.append(moment.astimezone(UTC).replace(tzinfo=None) if zoned else moment)
    return np.array(found, dtype="datetime64[us]")


def days_spanned(times: NDArray[np.datetime64]) -> int:
    """Return on how many different dates there are photos."""
    return len(np.unique(times.astype("datetime64[D]")))


def bursts(
    times: NDArray[np.datetime64], cameras: Sequence[str], gap: float = 60.0
) -> NDArray[np.int64]:
    """Return the burst (N,) of each photo, numbered by camera and then by time.

    >>> times = np.array(["2024-05-01T06:30:00", "2024-05-01T06:31:00", "2024-05-01T07:00:00"],
    ...                  dtype="datetime64[us]")
    >>> bursts(times, ["a", "a", "a"]).tolist(), bursts(times, ["a", "b", "a"]).tolist()
    ([0, 0, 1], [0, 2, 1])
    """
    if not gap >= 0:
        raise DataError(f"the gap between two bursts must be at least 0 seconds, got {gap:g}")
    codes = np.unique(np.asarray(list(cameras), dtype=str), return_inverse=True)[1]
    order = np.lexsort((times, codes))
    pause = np.diff(times[order]) > np.timedelta64(round(gap * 1e6), "us")
    starts = np.append(True, pause | (np.diff(codes[order]) != 0))[: len(order)]
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(starts) - 1
    return found

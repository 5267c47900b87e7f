"""Long bytes in pieces, so that other threads can run between two of them.

A call of C code such as a search, a copy or base64 holds the interpreter's lock until it is done,
in whichever thread it runs; 64 KiB take it less than a millisecond.
"""

from collections.abc import Iterator

__all__ = ["PIECE", "copied", "piece_starts"]

PIECE = 1 << 16


def piece_starts(start: int, end: int) -> range:
    """Return where the pieces from ``start`` to ``end`` begin."""
    return range(start, end, PIECE)


def copied(content: bytes | memoryview, start: int, end: int) -> bytes:
    """Return ``content[start:end]``."""
    return b"".join(_pieces(content, start, min(end, len(content))))


def _pieces(content: bytes | memoryview, start: int, end: int) -> Iterator[bytes]:
    # As bytes, of which many are joined without the lock; views would keep it.
    for begin in piece_starts(start, end):
        yield bytes(content[begin : min(begin + PIECE, end)])

"""Patches: how a file was before it was changed, told by what it is now.

A patch is a list of steps: copy ``(offset, length)`` of the file as it is, or write bytes that are
not in it. Metadata programs leave nearly all bytes as they are, or move them as a whole, so that a
patch is about as large as what they changed. It is tried on the file when it is made.
"""

import json
import zlib

BLOCK = 4096
SEARCHES = 64  # each may go through the whole file; what is not found by then is stored

Step = tuple[int, int] | bytes


def make_patch(now: bytes, before: bytes) -> bytes:
    """Return the patch that makes ``before`` of ``now``.

    >>> photo = bytes(range(256)) * 500
    >>> len(make_patch(photo[:9000] + b"keywords" + photo[9000:], photo)) < 100
    True
    """
    steps: list[Step] = []
    at, place, searches = 0, 0, SEARCHES  # where we are in `before`, and perhaps in `now`
    while at < len(before):
        block = before[at : at + BLOCK]
        if not now.startswith(block, place):
            place = now.find(block) if searches else -1
            searches -= searches > 0
        if place < 0:
            steps.append(block)
            at, place = at + len(block), 0
            continue
        length = _same_bytes(now, place, before, at)
        steps.append((place, length))
        at, place = at + length, place + length
    literal = b"".join(step for step in steps if isinstance(step, bytes))
    plan = [len(step) if isinstance(step, bytes) else step for step in steps]
    patch = zlib.compress(json.dumps(plan).encode() + b"\n" + literal)
    if apply_patch(now, patch) != before:
        raise ValueError("a patch must give back the bytes that it was made of")
    return patch


def apply_patch(now: bytes, patch: bytes) -> bytes:
    """Return the bytes that ``now`` was made from."""
    plan, _, literal = zlib.decompress(patch).partition(b"\n")
    parts, at = [], 0
    for step in json.loads(plan):
        if isinstance(step, int):
            parts.append(literal[at : at + step])
            at += step
        else:
            start, length = step
            parts.append(now[start : start + length])
    return b"".join(parts)


def _same_bytes(one: bytes, at: int, other: bytes, there: int) -> int:
    """Return how many bytes are the same from these places on."""
    most = min(len(one) - at, len(other) - there)
    same, step = 0, BLOCK
    while step:
        end = min(same + step, most)
        if one[at + same : at + end] == other[there + same : there + end]:
            if end == most:
                return most
            same, step = end, 2 * step
        else:
            step //= 2
    return same

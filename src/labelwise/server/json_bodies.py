"""JSON from strangers, read at a bounded cost; and answers in JSON, written piece by piece.

A parser holds the interpreter's lock until it is done, in whichever thread it runs, so what it may
cost is counted before, piece by piece. A unit is about 40 ns, as a small number takes; long strings
cost next to nothing, so pictures in base64 may fill the body.

    cost = commas + backslashes + 2 quotes + 5 brackets + 10 braces + 5 runs of 19 digits
         <= 450,000     a picture of 224 x 224 in lists of lists takes 403,000
         <=  50,000     where the framework reads it, on the event loop, and lists every error

Letters beyond ASCII make a string several times as large, so long JSON has none.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json, to_json

from labelwise.server.security import RefusedError
from labelwise.server.uploads import PIECE

MOST, SMALL_COST = 450_000, 50_000
COSTS = {b",": 1, b"\\": 1, b'"': 2, b"[": 5, b"{": 10}
OTHERS = bytes(code for code in range(256) if bytes([code]) not in COSTS)
LONG = 1 << 20
DIGITS = 64
DIGITS_AS_ZEROS = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
BIG_NUMBER, BIG_COST = b"0" * 19, 5
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,")


def read_json(body: bytes) -> Any:
    """Return what a body holds, or raise RefusedError."""
    require_cheap(body, MOST)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedError(422, f"the body is not JSON: {error}") from None


def require_cheap(body: bytes, most: int) -> None:
    """Refuse JSON that would cost more to read."""
    cost = 0
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE + DIGITS - 1]
        marks = piece[:PIECE].translate(None, OTHERS)
        cost += sum(weight * marks.count(mark) for mark, weight in COSTS.items())
        digits = piece.translate(DIGITS_AS_ZEROS)
        cost += BIG_COST * digits.count(BIG_NUMBER)
        if cost > most:
            raise RefusedError(
                413,
                f"the JSON of a request may hold about {most:,} numbers here, or fewer values of "
                "other kinds; send pictures encoded (PNG, JPEG, ...), in base64 or as files",
            )
        if b"0" * DIGITS in digits:
            raise RefusedError(422, f"JSON may not hold {DIGITS} digits in a row")
        if len(body) > LONG and not piece.isascii():
            raise RefusedError(
                422,
                f"JSON of more than {LONG:,} bytes must be ASCII; write other letters as \\u....",
            )


def from_base64(text: Any) -> bytes:
    """Return the bytes of base64, which may stand in a data URL of an image."""
    if not isinstance(text, str):
        raise RefusedError(422, "a picture must be text in base64")
    address = DATA_URL.match(text)
    start = address.end() if address else 0
    last = len(text) - PIECE
    try:
        return b"".join(
            _decoded(text[at : at + PIECE], is_last=at >= last)
            for at in range(start, len(text), PIECE)
        )
    except (binascii.Error, ValueError):
        raise RefusedError(
            422, "a picture must be in base64, or a data URL of an image in base64"
        ) from None


def _decoded(piece: str, *, is_last: bool) -> bytes:
    if "=" in piece and not is_last:
        raise ValueError("only the end of base64 is padded")
    return base64.b64decode(piece, validate=True)


def json_list(parts: Iterable[bytes]) -> bytes:
    """Return a JSON list of parts that are JSON."""
    return b"[" + b",".join(parts) + b"]"


def json_object(facts: dict[str, bytes]) -> bytes:
    """Return a JSON object of values that are JSON."""
    return b"{" + b",".join(to_json(name) + b":" + value for name, value in facts.items()) + b"}"

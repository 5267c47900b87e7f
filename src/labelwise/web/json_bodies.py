"""JSON from strangers, read at a bounded cost; and answers in JSON, written piece by piece.

A parser holds the interpreter's lock until it is done, in whichever thread it runs, so what it may
cost is counted before, slice by slice: separators, escapes and long numbers. Long strings cost next
to nothing, so pictures in base64 may fill the body.

    cost = commas + 5 brackets + 10 braces + backslashes <= 1,000,000
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json, to_json

from labelwise.web.security import RefusedError

__all__ = ["from_base64", "json_list", "json_object", "read_json"]

MOST = 1_000_000
COSTS = {b",": 1, b"[": 5, b"{": 10, b"\\": 1}
SLICE = 1 << 20
DIGITS = 64
LONG_NUMBER = re.compile(rb"[0-9]{%d}" % DIGITS)
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,")


def read_json(body: bytes) -> Any:
    """Return what a body holds, or raise RefusedError."""
    cost = 0
    for start in range(0, len(body), SLICE):
        end = start + SLICE
        cost += sum(weight * body.count(mark, start, end) for mark, weight in COSTS.items())
        if cost > MOST:
            raise RefusedError(
                413,
                "the JSON of a request may hold about a million values; "
                "send pictures encoded (PNG, JPEG, ...), in base64 or as files",
            )
        if LONG_NUMBER.search(body, start, end + DIGITS - 1):
            raise RefusedError(422, f"a number may have fewer than {DIGITS} digits")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedError(422, f"the body is not JSON: {error}") from None


def from_base64(text: Any) -> bytes:
    """Return the bytes of base64, which may stand in a data URL of an image."""
    if not isinstance(text, str):
        raise RefusedError(422, "a picture must be text in base64")
    address = DATA_URL.match(text)
    start = address.end() if address else 0
    try:
        return b"".join(
            base64.b64decode(text[at : at + SLICE], validate=True)
            for at in range(start, len(text), SLICE)
        )
    except (binascii.Error, ValueError):
        raise RefusedError(
            422, "a picture must be in base64, or a data URL of an image in base64"
        ) from None


def json_list(parts: Iterable[bytes]) -> bytes:
    """Return a JSON list of parts that are JSON."""
    return b"[" + b",".join(parts) + b"]"


def json_object(facts: dict[str, bytes]) -> bytes:
    """Return a JSON object of values that are JSON."""
    return b"{" + b",".join(to_json(name) + b":" + value for name, value in facts.items()) + b"}"

"""Tensors of the inference protocol as bytes after its JSON: the extension ``binary_tensor_data``.

    Inference-Header-Content-Length: n          the first n bytes of the body are JSON
    "parameters": {"binary_data_size": m}       the data of this tensor are the next m bytes

A tensor of BYTES holds, for each element, its length in four bytes (little-endian) and then itself;
other tensors are their numbers, little-endian, in the order of rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.server.security import RefusedError
from labelwise.server.uploads import copied

BINARY_DATA = "binary_data_size"
JSON_LENGTH = "inference-header-content-length"
TYPES: dict[str, str] = {"FP64": "<f8", "FP32": "<f4", "BOOL": "?"}


class BinaryBody:
    """A body in two parts: its JSON, and the bytes that its tensors take from the rest."""

    def __init__(self, body: bytes, header: str | None) -> None:
        if header is None:
            self.json, self._rest = body, memoryview(b"")
            return
        if not header.isdecimal() or len(header) > 12 or int(header) > len(body):
            raise RefusedError(400, f"{JSON_LENGTH} must be the length of the JSON in the body")
        self.json, self._rest = copied(body, 0, int(header)), memoryview(body)[int(header) :]

    def take(self, size: Any) -> memoryview:
        """Return the next bytes of the rest."""
        if type(size) is not int or not 0 <= size <= len(self._rest):
            raise RefusedError(422, f"{BINARY_DATA} must fit into the bytes after the JSON")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def require_empty(self) -> None:
        """Refuse bytes that no tensor takes."""
        if len(self._rest):
            raise RefusedError(422, f"{len(self._rest):,} bytes after the JSON are of no tensor")


def bytes_elements(data: memoryview, most: int) -> list[bytes]:
    """Return the elements of a tensor of BYTES, of which there may be ``most``."""
    found: list[bytes] = []
    while len(data):
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 + size or len(data) < 4:
            raise RefusedError(422, "an element of a BYTES tensor is longer than its data")
        if len(found) == most:
            raise RefusedError(422, f"a request may hold 1 to {most} pictures, got more")
        found.append(copied(data, 4, 4 + size))
        data = data[4 + size :]
    return found


def tensor_bytes(rows: Sequence[NDArray[Any]], datatype: str) -> bytes:
    """Return the numbers of rows as bytes."""
    return np.stack(rows).astype(TYPES[datatype]).tobytes()

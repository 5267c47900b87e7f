"""JSON Lines files as a stream of batches: one object a line, its keys are the columns."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelwise.data.stream import Stream
from labelwise.errors import DataError

__all__ = ["open_jsonlines"]

BATCH_ROWS = 16384


def open_jsonlines(path: Path) -> Stream:
    """Return the stream of a .jsonl file; the first object says which columns there are."""
    first = next(_objects(path), None)
    if first is None:
        raise DataError(f"{path.name}: the table is empty")
    return Stream(list(first[1]), partial(_batches, path), text_only=True)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                raise DataError(
                    f"{path.name}, line {number}: it is not UTF-8 text; save it as UTF-8"
                ) from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path.name}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise DataError(f"{path.name}, line {number}: must be an object, got {row!r:.60}")
            yield number, row


def _batches(path: Path, headers: list[str]) -> Iterator[Any]:
    rows = _objects(path)
    first = _objects(path)
    columns = set(next(first)[1])
    while chunk := list(islice(rows, BATCH_ROWS)):
        for number, row in chunk:
            strange = row.keys() - columns
            if strange:
                raise DataError(
                    f"{path.name}, line {number}: the key {min(strange)!r} is not in the first line"
                )
        arrays = [
            _column(path.name, name, [(n, row.get(name)) for n, row in chunk]) for name in headers
        ]
        yield pa.record_batch(arrays, headers)


def _column(where: str, name: str, cells: list[tuple[int, Any]]) -> Any:
    values = [value for _, value in cells]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        kinds = set()
    if len(kinds) > 1:
        number = next(n for n, value in cells if type(value) is not type(values[0]))
        raise DataError(f"{where}, line {number}: {name!r} must be of one kind in all lines")
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        raise DataError(
            f"{where}, lines {cells[0][0]} to {cells[-1][0]}: {name!r} must hold plain values "
            "or lists of names"
        ) from None

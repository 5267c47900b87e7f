"""Parquet files as a stream of batches, with the class names their metadata states.

Names are taken from ``classes`` or ``<column>_names`` (JSON lists), or from the features that
Hugging Face ``datasets`` writes.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from labelwise.data.stream import Stream
from labelwise.errors import DataError

__all__ = ["open_parquet"]

BATCH_ROWS = 16384


def open_parquet(path: Path) -> Stream:
    """Return the stream of a .parquet file."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path.name}: this is not a Parquet file ({_line(error)})") from None
    metadata = schema.metadata or {}
    return Stream(schema.names, partial(_batches, path), partial(_class_names, metadata, path.name))


def _batches(path: Path, headers: list[str]) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=headers, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path.name}: the table cannot be read ({_line(error)})") from None


def _class_names(metadata: dict[bytes, bytes], where: str, header: str) -> list[str] | None:
    try:
        for key in (f"{header}_names", "classes"):
            if key.encode() in metadata:
                return _names(json.loads(metadata[key.encode()]), where)
        if b"huggingface" not in metadata:
            return None
        feature = json.loads(metadata[b"huggingface"])["info"]["features"].get(header, {})
        feature = feature.get("feature", feature)
        return _names(feature["names"], where) if "names" in feature else None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{where}: the class names in the metadata are broken ({error})") from None


def _names(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise DataError(f"{where}: the class names in the metadata must be a list of text")
    return value


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

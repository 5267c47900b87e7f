"""Parquet files as a stream of batches, with what their metadata states of the columns.

Class names are taken from ``classes`` or ``<column>_names`` (JSON lists), or from the features that
Hugging Face ``datasets`` writes. These also state which column holds images and which one classes;
where there are two of a kind, nothing is taken from it.
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
BATCH_BYTES = 1 << 26
READ_BYTES = 1 << 20


def open_parquet(path: Path) -> Stream:
    """Return the stream of a .parquet file."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path.name}: this is not a Parquet file ({_line(error)})") from None
    metadata = schema.metadata or {}
    features = _features(metadata, path.name)
    return Stream(
        schema.names,
        partial(_batches, path),
        partial(_class_names, metadata, features, path.name),
        _meanings(features),
    )


def _batches(path: Path, headers: list[str]) -> Iterator[Any]:
    try:
        # Read ahead, all row groups would stay in memory until the file is closed.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as file:
            rows = _rows_at_once(file.metadata.num_rows, path.stat().st_size)
            yield from file.iter_batches(rows, columns=headers, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path.name}: the table cannot be read ({_line(error)})") from None


def _rows_at_once(num_rows: int, size: int) -> int:
    """Return how many rows of a file of so many bytes are read at once: few if it holds images.

    Sizes of single columns would say more, but asking a damaged file for them aborts Arrow.
    """
    return max(1, min(BATCH_ROWS, BATCH_BYTES * num_rows // max(size, 1)))


def _features(metadata: dict[bytes, bytes], where: str) -> dict[str, dict[str, Any]]:
    """Return Hugging Face's description of each column, that of its items if it holds lists."""
    if b"huggingface" not in metadata:
        return {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {header: _item(feature) for header, feature in features.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{where}: the metadata of Hugging Face is broken ({error})") from None


def _item(feature: Any) -> dict[str, Any]:
    if isinstance(feature, list):  # how older versions write lists
        feature = {"feature": feature[0]} if feature else {}
    item = feature.get("feature", feature) if isinstance(feature, dict) else {}
    return item if isinstance(item, dict) else {}


def _meanings(features: dict[str, dict[str, Any]]) -> dict[str, str]:
    meanings = {}
    for meaning, kind in (("image", "Image"), ("labels", "ClassLabel")):
        headers = [header for header, item in features.items() if item.get("_type") == kind]
        if len(headers) == 1:
            meanings[meaning] = headers[0]
    return meanings


def _class_names(
    metadata: dict[bytes, bytes], features: dict[str, dict[str, Any]], where: str, header: str
) -> list[str] | None:
    for key in (f"{header}_names", "classes"):
        if key.encode() in metadata:
            return _names(metadata[key.encode()], where)
    names = features.get(header, {}).get("names")
    return None if names is None else _names(json.dumps(names), where)


def _names(text: bytes | str, where: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: the class names in the metadata are broken ({error})") from None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise DataError(f"{where}: the class names in the metadata must be a list of text")
    return value


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

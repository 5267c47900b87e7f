"""The rows of what is to be scored, one after the other, wherever they are; and their pictures.

    a folder or bucket     each picture in and below it; tar shards and Parquet files are opened
    .tar                   each picture inside, by its offset
    .parquet               each row of its column of encoded images
    .csv .tsv .txt .jsonl  each path it names (column path, file_name, filename, file, id, image);
                           .parquet too where it has no images

Rows are found by a generator, so that a bucket needs the memory of its largest folder. Their order
follows from the input alone.
"""

import os
import tempfile
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.names import Names
from labelwise.base.storage import (
    LocalStorage,
    Storage,
    StorageError,
    is_uri,
    left_out_note,
    parent_of,
    storage_at,
    without_options,
)
from labelwise.base.table_files import with_text
from labelwise.base.text import printable
from labelwise.errors import DataError, ImageError
from labelwise.pictures.decode import IMAGE_SUFFIXES, one_per_photo
from labelwise.pictures.sources import (
    MAX_BYTES,
    EncodedImages,
    Location,
    read_image_file,
    tar_members,
)
from labelwise.tables.shards import PARQUET_SUFFIXES
from labelwise.tables.tabular import TABULAR
from labelwise.tables.words import PATH_HEADERS

GROUPS_HELD = 2  # row groups of Parquet files in memory


class InputRow(NamedTuple):
    """Where a picture is: a whole file, ``size`` bytes of one, or a row of a Parquet row group.

    ``root`` is the place that ``file`` is below; ``id`` is what users see.
    """

    id: str
    root: str
    file: bytes
    offset: int | None = None
    size: int | None = None
    group: int | None = None


def find_rows(places: Sequence[str]) -> Iterator[InputRow]:
    """Yield the rows of folders, buckets, shards, tables and single pictures, in order."""
    for address in places:
        storage = storage_at(address)
        if storage.is_folder():
            left_out = Counter[str]()
            if isinstance(storage, LocalStorage):
                files = storage.files(left_out, {*IMAGE_SUFFIXES, *PARQUET_SUFFIXES, ".tar"})
            else:
                files = storage.files()
            names = one_per_photo(files)
            rows = (row for name in names for row in _rows_of(storage, name))
            first = next(rows, None)
            if first is None:
                raise DataError(f"there are no images in the folder {without_options(address)}")
            yield first
            yield from rows
            if note := left_out_note(left_out):
                warnings.warn(f"{without_options(address)}: {note}", stacklevel=2)
            continue
        root, name = parent_of(storage.place)
        parent, suffix = storage_at(root), os.path.splitext(name)[1].lower()
        if parent.size(name) is None and suffix not in IMAGE_SUFFIXES:
            raise DataError(
                f"{without_options(address)} is neither a folder nor a file; is its address right?"
            )
        has_images = suffix == ".tar"
        if suffix in PARQUET_SUFFIXES:
            with parent.stream(name) as stream:
                has_images = _image_column(_parquet(stream, name)) is not None
        if has_images:
            yield from _rows_of(parent, name)
        elif suffix in TABULAR:
            yield from _table_rows(parent, name)
        else:  # a file that is not a picture is a row that fails, as any other
            yield InputRow(printable(without_options(address)), parent.place, os.fsencode(name))


def _rows_of(storage: Storage, name: str) -> Iterator[InputRow]:
    suffix = os.path.splitext(name)[1].lower()
    if suffix in IMAGE_SUFFIXES:
        yield InputRow(_shown(storage, name), storage.place, os.fsencode(name))
    elif suffix == ".tar":
        yield from _tar_rows(storage, name)
    elif suffix in PARQUET_SUFFIXES:
        yield from _parquet_rows(storage, name)


def _shown(storage: Storage, name: str) -> str:
    return printable(f"{storage.address.rstrip('/')}/{name}")


def _tar_rows(storage: Storage, name: str) -> Iterator[InputRow]:
    file, shown = os.fsencode(name), _shown(storage, name)
    with storage.stream(name) as stream:
        for member in tar_members(stream, name):
            if os.path.splitext(member.name)[1].lower() in IMAGE_SUFFIXES:
                span = member.offset, member.size
                yield InputRow(f"{shown}/{member.name}", storage.place, file, *span)


def _parquet_rows(storage: Storage, name: str) -> Iterator[InputRow]:
    with storage.stream(name) as stream:
        parquet = _parquet(stream, name)
        if _image_column(parquet) is None:
            return
        header = next((name for name in PATH_HEADERS if name in parquet.schema_arrow.names), None)
        shown, file, number = _shown(storage, name), os.fsencode(name), 0
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            ids = [f"{shown}/{number + at:06d}" for at in range(rows)]
            if header:
                named = parquet.read_row_group(group, columns=[header])
                ids = list(map(str, with_text(named, shown, number)[header].to_pylist()))
            for at, own in enumerate(ids):
                yield InputRow(own, storage.place, file, at, None, group)
            number += rows


def _parquet(stream: BinaryIO, name: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(stream, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: this is not a Parquet file ({str(error)[:200]})") from None


def _image_column(parquet: pq.ParquetFile) -> str | None:
    """Return the column of encoded images (or of structs with their ``bytes``), if there is one."""
    columns = []
    for field in parquet.schema_arrow:
        kind = field.type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            columns.append(field.name)
    chosen = [name for name in columns if name in ("image", "bytes", "jpg", "content")] or columns
    return chosen[0] if len(chosen) == 1 else None


def _table_rows(storage: Storage, name: str) -> Iterator[InputRow]:
    with table_file(storage, name) as table:
        yield from _listed(storage, table)


@contextmanager
def table_file(storage: Storage, name: str) -> Iterator[Path]:
    """Give the file of a table on this machine; one in a bucket is fetched."""
    if isinstance(storage, LocalStorage):
        yield storage.folder / name
        return
    with tempfile.TemporaryDirectory(prefix="labelwise-") as folder:
        copy = Path(folder, Path(name).name)
        storage.download(name, copy, storage.size(name) or 0)
        yield copy


def _listed(storage: Storage, table: Path) -> Iterator[InputRow]:
    """Yield the pictures that a table names; relative paths are below the table's folder."""
    tabular = TABULAR[table.suffix.lower()](table)
    header = next((name for name in (*PATH_HEADERS, "image") if name in tabular.header), None)
    if header is None:
        raise DataError(
            f"{table.name}: there must be a column 'path' that names the image, or a column of "
            f"encoded images; got {', '.join(map(repr, tabular.header))}"
        )
    before = 0
    for batch in tabular.batches([header]):
        for number, path in enumerate(batch.column(header).to_pylist(), start=before + 1):
            if not isinstance(path, str) or not path:
                raise DataError(f"{table.name}: row {number} must name an image, got {path!r:.60}")
            root, _, file = path.rpartition("/") if is_uri(path) else (storage.place, "", path)
            yield InputRow(path, root, os.fsencode(file))
        before += batch.num_rows


class StoredImages(EncodedImages):
    """The pictures of rows; after an ``outage`` of a storage no answer should be kept."""

    def __init__(self, rows: Sequence[InputRow]) -> None:
        self.rows, self.ids = rows, Names([row.id for row in rows])
        self.outage: StorageError | None = None
        self._storage = cache(storage_at)
        self._groups: OrderedDict[tuple[str, bytes, int], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def location(self, row: int) -> Location | None:
        found = self.rows[row]
        storage, inside = self._storage(found.root), (found.group, found.offset) != (None, None)
        if inside or not isinstance(storage, LocalStorage):
            return None
        return Location(os.path.join(storage.folder, os.fsdecode(found.file)))

    def content(self, row: int) -> bytes:
        input_row = self.rows[row]
        if self.outage is not None:  # the next would only wait as long again
            raise self.outage
        try:
            return self._blob(input_row) if input_row.group is not None else self._bytes(input_row)
        except StorageError as error:
            self.outage = self.outage or error
            raise
        except OSError as error:
            reason = error.strerror or str(error)[:200]
            raise ImageError(f"{input_row.id}: the image cannot be opened ({reason})") from None

    def subset(self, rows: NDArray[np.int64]) -> "StoredImages":
        return StoredImages([self.rows[row] for row in rows.tolist()])

    def _bytes(self, row: InputRow) -> bytes:
        storage, name = self._storage(row.root), os.fsdecode(row.file)
        if row.offset is not None:
            return storage.read(name, row.offset, row.size)
        if isinstance(storage, LocalStorage):
            return read_image_file(storage.folder / name, row.id)
        if (storage.size(name) or 0) > MAX_BYTES:
            raise ImageError(f"{row.id}: the file has more than {MAX_BYTES >> 20:,} MiB")
        return storage.read(name)

    def _blob(self, row: InputRow) -> bytes:
        """Return one image of a row group, which is read once for all its rows."""
        key = row.root, row.file, row.group or 0
        with self._lock:
            if key not in self._groups:
                self._groups[key] = self._group(row)
                if len(self._groups) > GROUPS_HELD:
                    self._groups.popitem(last=False)
            column = self._groups[key]
        content: bytes | None = column[row.offset].as_py()
        return content or b""

    def _group(self, row: InputRow) -> pa.ChunkedArray:
        storage, name = self._storage(row.root), os.fsdecode(row.file)
        with storage.stream(name) as stream:
            parquet = _parquet(stream, name)
            header = _image_column(parquet)
            if header is None:
                raise StorageError(f"{name} changed: its images are gone since the plan was made")
            column = parquet.read_row_group(row.group, columns=[header])[header]
        return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column

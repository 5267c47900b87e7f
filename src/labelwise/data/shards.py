"""Data sets that are streamed from tar and Parquet shards, on object storage or any disk.

A *block* is what one request fetches: up to 8 MiB of neighbouring samples of a tar shard, or a row
group of a Parquet file. Labels and the places of all images are kept; of the images only a few
blocks are in memory, those in use and the next ones. Whoever reads in an order of its own says so
(:meth:`ShardImages.will_read`), and blocks are fetched in that order.

Parquet files are opened at their ends, and only the columns of labels are read; a tar shard has to
be read once from end to end before its first image is known.
"""

import fnmatch
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.data.columns import TableColumns, Vocabulary
from labelwise.data.folders import split_of, table_of_samples, tar_samples
from labelwise.data.rows import label_names
from labelwise.data.table import LabelTable
from labelwise.data.table_builder import TableBuilder
from labelwise.data.tabular import known_labels, layout_of, parquet_table
from labelwise.errors import DataError, ImageError
from labelwise.pictures.sources import Blocks, EncodedImages
from labelwise.system.names import Names, printable
from labelwise.system.storage import (
    LocalStorage,
    Storage,
    address_of,
    is_uri,
    parent_of,
    storage_at,
    without_options,
)

PARQUET_SUFFIXES = frozenset((".parquet", ".pq"))
BLOCK_BYTES = 8 << 20
AHEAD = 4  # blocks that are fetched before they are asked for
KEPT = 2  # blocks that were read to the end, for who reads a row again
READERS = 8  # tar shards that are read at once

Rows = NDArray[np.int64]


class ShardPart(NamedTuple):
    """Shards by their URI: one, those below a prefix, or a pattern such as ``train-*.tar``."""

    place: str
    split: str | None


@dataclass(frozen=True)
class _Shard:
    storage: Storage
    name: str
    size: int
    split: str | None

    @property
    def shown(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class _BlockTable:
    """Where each block is: shard, first byte and size, or row group and column of the images."""

    shards: Sequence[_Shard]
    shard: Rows
    start: Rows
    size: Rows
    column: str | None = None

    def fetch(self, block: int) -> Any:
        shard = self.shards[int(self.shard[block])]
        start, size = int(self.start[block]), int(self.size[block])
        try:
            if self.column is None:
                return shard.storage.read(shard.name, start, size)
            with shard.storage.stream(shard.name) as stream:
                file = pq.ParquetFile(stream, pre_buffer=False)
                images = file.read_row_group(start, columns=[self.column])[self.column]
        except (pa.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)[:200]
            address = address_of(shard.storage.place, shard.name)
            raise ImageError(f"{address}: the shard cannot be read ({reason})") from None
        return pc.struct_field(images, "bytes") if pa.types.is_struct(images.type) else images


class ShardImages(EncodedImages):
    """Images in blocks: ``block`` of each row, and its ``place`` (offset, or row) and ``size``."""

    def __init__(
        self, table: _BlockTable, block: Rows, place: Rows, size: Rows, ids: Sequence[str]
    ) -> None:
        self.table, self.block, self.place, self.size = table, block, place, size
        self.ids = Names(ids)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._held: OrderedDict[int, Future[Any]] = OrderedDict()
        self.will_read(np.arange(len(block)))

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.block, float(self.table.size.mean()))

    def will_read(self, rows: Rows) -> None:
        """Fetch blocks in the order in which these rows need them.

        A block is held until its last row was read. Who reads on begins the same order again.
        """
        numbers = self.block[rows]
        blocks, first, uses = np.unique(numbers, return_index=True, return_counts=True)
        with self._lock:
            self._uses: dict[int, int] = dict(zip(blocks.tolist(), uses.tolist(), strict=True))
            self._order: list[int] = numbers[np.sort(first)].tolist()
            self._turn = {number: turn for turn, number in enumerate(self._order)}
            self._held.clear()  # of an order that was broken off
            self._begin()

    def _begin(self) -> None:
        self._left = dict(self._uses)  # rows of each block that are still to be read
        self._remaining = sum(self._uses.values())
        self._started = 0  # blocks of the order that were asked for

    def content(self, row: int) -> bytes:
        number, position = int(self.block[row]), int(self.place[row])
        with self._lock:
            future = self._asked(number)
            # A block that is needed shows how far the reading is.
            reach = min(self._turn.get(number, -1) + 1 + AHEAD, len(self._order))
            for turn in range(self._started, reach):
                self._asked(self._order[turn])
            self._started = max(self._started, reach)
        try:
            block = future.result()
        except Exception:
            with self._lock:
                self._held.pop(number, None)  # whoever asks again tries again
            raise
        with self._lock:
            self._note_read(number)
        if self.table.column is None:
            start = position - int(self.table.start[number])
            return bytes(block[start : start + int(self.size[row])])
        return bytes(block[position].as_py() or b"")

    def address(self, row: int) -> str:
        storage = self.table.shards[int(self.table.shard[self.block[row]])].storage
        address = address_of(storage.place, self.ids[row])
        return address if is_uri(address) else os.path.abspath(address)

    def identity(self, row: int) -> bytes:
        """Return what tells an image from others without reading it: its shard and its place."""
        shard = self.table.shards[int(self.table.shard[self.block[row]])]
        address = address_of(shard.storage.place, shard.name)
        return f"{address} {shard.size} {self.block[row]} {self.place[row]}".encode()

    def subset(self, rows: Rows) -> "ShardImages":
        places = self.block[rows], self.place[rows], self.size[rows]
        return ShardImages(self.table, *places, Names(self.ids).take(rows))

    def _note_read(self, number: int) -> None:
        """Count a row of a block as read; of the blocks that are done, keep the last few."""
        if self._left.get(number, 0):
            self._left[number] -= 1
            self._remaining -= 1
        if number in self._held:
            self._held.move_to_end(number)
        done = [number for number in self._held if not self._left.get(number, 0)]
        for old in done[:-KEPT]:
            del self._held[old]
        if not self._remaining:
            self._begin()

    def _asked(self, number: int) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2 * AHEAD, thread_name_prefix="fetch")
        if number not in self._held:
            self._held[number] = self._pool.submit(self.table.fetch, number)
        return self._held[number]


def read_shards(
    parts: Sequence[ShardPart],
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str = "|",
    ignore: Sequence[str] | str = (),
) -> LabelTable:
    """Return the table of tar shards, or of Parquet files that hold their images."""
    shards = [shard for source in parts for shard in _shards_of(source)]
    kinds = {Path(shard.name).suffix.lower() for shard in shards}
    if len(kinds) > 1:
        raise DataError(
            f"{without_options(parts[0].place)}: shards must be all tar or all Parquet, got both; "
            "name them by a pattern such as train-*.tar"
        )
    called = without_options(parts[0].place).rpartition("/")[2] or "shards"
    if kinds == {".tar"}:
        if columns or ignore:
            raise DataError(f"{called}: columns and ignore are for Parquet, these are tar shards")
        return _tar_table(shards, names, separator, called)
    return _parquet_table(shards, columns, label_names(names), separator, ignore, called)


def _shards_of(part: ShardPart) -> list[_Shard]:
    storage = storage_at(part.place)
    if storage.is_folder():
        shards = [name for name in storage.files() if _is_shard(name)]
    else:
        root, pattern = parent_of(part.place)
        storage = storage_at(root)
        shards = [pattern] if storage.size(pattern) is not None else []
        if not shards and "*" in pattern:
            names = storage.files() if storage.is_folder() else iter(())
            shards = [
                name for name in names if fnmatch.fnmatchcase(name, pattern) and _is_shard(name)
            ]
    if not shards:
        raise DataError(
            f"{without_options(part.place)}: there are no .tar or .parquet shards; other data is "
            "read from a disk (a table there may name its pictures by URI)"
        )
    return [_Shard(storage, name, storage.size(name) or 0, part.split) for name in sorted(shards)]


def _is_shard(name: str) -> bool:
    return Path(name).suffix.lower() in (".tar", *PARQUET_SUFFIXES)


def _tar_table(
    shards: Sequence[_Shard],
    names: Sequence[str] | str | Path | None,
    separator: str,
    called: str,
) -> LabelTable:
    def read(shard: _Shard) -> Any:
        stream: IO[bytes] = shard.storage.stream(shard.name)
        if not isinstance(shard.storage, LocalStorage):  # in large pieces
            stream = io.BufferedReader(cast(Any, stream), BLOCK_BYTES)
        with stream:
            return tar_samples(stream, shard.shown, shard.size, separator)

    ids: list[str] = []
    labels: list[dict[str, Any]] = []
    offsets, sizes, shard_of = [], [], []
    with ThreadPoolExecutor(READERS) as pool:
        for number, samples in enumerate(pool.map(read, shards)):
            shard = shards[number]
            samples.sort(key=lambda sample: sample.offset)
            split = {} if shard.split is None else {"split": shard.split}
            ids += [f"{printable(shard.name)}/{sample.name}" for sample in samples]
            labels += [sample.labels | split for sample in samples]
            offsets.append(np.array([sample.offset for sample in samples], np.int64))
            sizes.append(np.array([sample.size for sample in samples], np.int64))
            shard_of.append(np.full(len(samples), number, np.int64))
    table = table_of_samples(ids, labels, names, separator, called)
    offset, size, place = (np.concatenate(column) for column in (offsets, sizes, shard_of))
    block, number, start, before = np.empty(len(place), np.int64), -1, 0, -1
    for row, (own, at, end) in enumerate(
        zip(place.tolist(), offset.tolist(), (offset + size).tolist(), strict=True)
    ):  # neighbours of one shard, of BLOCK_BYTES at most
        if own != before or end - start > BLOCK_BYTES:
            number, start, before = number + 1, at, own
        block[row] = number
    first = np.unique(block, return_index=True)[1]
    ends = np.maximum.reduceat(offset + size, first)
    blocks = _BlockTable(shards, place[first], offset[first], ends - offset[first])
    return replace(table, images=ShardImages(blocks, block, offset, size, ids))


def _parquet_table(
    shards: Sequence[_Shard],
    columns: Mapping[str, str] | None,
    names: list[str] | None,
    separator: str,
    ignore: Sequence[str] | str,
    called: str,
) -> LabelTable:
    ignored = [ignore] if isinstance(ignore, str) else ignore
    builder: TableBuilder | None = None
    layout: TableColumns | None = None
    groups: list[Rows] = []  # rows of each row group
    ids: list[str] = []
    for shard in shards:
        file = parquet_table(shard.shown, partial(shard.storage.stream, shard.name))
        own = layout_of(file, shard.shown, columns, ignored)
        if own.image is None:
            raise DataError(
                f"{shard.shown}: there must be a column 'image' with the bytes of the images; a "
                "table that names them is read from a disk"
            )
        if builder is None or layout is None:
            layout = own
            plain = replace(own, image=None, path="path")
            known = Vocabulary(known_labels(file, own, names))
            builder = TableBuilder(plain, known, separator=separator)
        elif own != layout:
            raise DataError(f"{shard.shown} and {shards[0].shown} must have the same columns")
        rows = 0
        split = shard.split or split_of(shard.shown)
        wanted = [header for header in own.headers() if header != own.image]
        for batch in file.batches(wanted):
            if own.path is None:
                given = [f"{printable(shard.name)}/{rows + n:06d}" for n in range(batch.num_rows)]
            else:
                given = [str(name) for name in batch.column(own.path).to_pylist()]
            ids += given
            kept = [header for header in batch.schema.names if header != own.path]
            batch = pa.record_batch(
                [pa.array(given, pa.large_string()), *(batch.column(name) for name in kept)],
                ["path", *kept],
            )
            builder.add(batch, shard.shown, rows, split=split)
            rows += batch.num_rows
        with shard.storage.stream(shard.name) as stream:
            facts = pq.ParquetFile(stream, pre_buffer=False).metadata
            sizes = [facts.row_group(at).num_rows for at in range(facts.num_row_groups)]
        groups.append(np.array(sizes, np.int64))
    if builder is None or layout is None:  # no part is without shards
        raise DataError(f"{called}: there are no shards")
    if builder.split and len(builder.split) != len(builder.present):
        raise DataError("either all shards must have a split or none")
    table = builder.finish(Path(), called)
    rows_of = np.concatenate(groups)
    shard_of = np.repeat(np.arange(len(shards)), [len(group) for group in groups])
    number = np.concatenate([np.arange(len(group)) for group in groups])
    mean = np.array([shard.size for shard in shards]) // [max(len(group), 1) for group in groups]
    blocks = _BlockTable(shards, shard_of, number, mean[shard_of], layout.image)
    block = np.repeat(np.arange(len(rows_of)), rows_of)
    position = np.arange(len(block)) - np.repeat(np.cumsum(rows_of) - rows_of, rows_of)
    return replace(table, images=ShardImages(blocks, block, position, np.zeros_like(position), ids))

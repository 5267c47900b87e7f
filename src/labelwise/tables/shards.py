"""Folders of class folders, of Hugging Face datasets, and of WebDataset tar shards.

    class/image, split/class/image       one label per image
    metadata.csv, .jsonl or .parquet     names the image files in ``file_name``
    train-00000-of-00002.parquet, ...    the images themselves; also in the folder data
    *.tar, folder/*.tar                  files that share a key are one sample

In a shard the labels are in ``key.json`` (a list, or an object with ``labels`` and perhaps
``unknown``, ``split`` and ``group``), in ``key.txt`` (names split on ``|``) or in ``key.cls`` (one
class: its name, or its number among given names). Shards named ``train-...`` are a split.

Named by a URI, tar and Parquet shards are streamed. A *block* is what one request fetches: up to
8 MiB of neighbouring samples of a tar shard, or a row group of a Parquet file. A few blocks are in
memory, those in use and the next ones in the order that :meth:`ShardImages.will_read` was told.
"""

import fnmatch
import io
import os
import re
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

from labelwise.base.names import Names
from labelwise.base.storage import (
    LocalStorage,
    Storage,
    address_of,
    is_uri,
    parent_of,
    storage_at,
    without_options,
)
from labelwise.base.text import counted, printable
from labelwise.errors import DataError, ImageError
from labelwise.pictures.decode import IMAGE_SUFFIXES, find_images
from labelwise.pictures.sources import (
    Blocks,
    EncodedImages,
    FileImages,
    SpanImages,
    TarMember,
    tar_members,
)
from labelwise.tables.columns import Vocabulary
from labelwise.tables.options import AS_IT_IS, LabelNames, TableColumns, TableOptions, Words
from labelwise.tables.rows import from_rows, parse_json, require_file
from labelwise.tables.table import SPLIT_WORDS, LabelTable
from labelwise.tables.table_builder import TableBuilder
from labelwise.tables.tabular import known_labels, layout_of, parquet_table, read_tables

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
LABEL_SUFFIXES = (".json", ".txt", ".cls")
SAMPLE_COLUMNS = ("labels", "unknown", "split", "group")

Rows = NDArray[np.int64]


def read_folder(path: Path) -> LabelTable:
    """Return the table of ``class/image`` or ``split/class/image``; one label per image."""
    parts = split_folders(path)
    labels, split = [], []
    files, notes = find_images(path)
    for file in files:
        folders = Path(file).parts[:-1]
        if parts and folders:
            if folders[0] not in parts:
                raise DataError(f"{path}: beside {min(parts)!r} there must be no {folders[0]!r}")
            split.append(parts[folders[0]])
            folders = folders[1:]
        if not folders:
            raise DataError(f"{path}: every image must be in the folder of its class, got {file!r}")
        labels.append([printable(folders[0])])
    if not files:
        more = "".join(f" ({note})" for note in notes[:1])
        raise DataError(f"{path}: there are no images in folders of classes{more}")
    classes = sorted({label[0] for label in labels})
    way_out = (
        "one folder per class is needed; if the labels are in a file, give that file, and if this "
        "is a known data set, name its format as FORMAT:path, such as coco:path or voc:path"
    )
    if len(classes) == 1:
        raise DataError(f"{path}: every image would have the one label {classes[0]!r}; {way_out}")
    if all(re.sub(r"[\d_-]+$", "", name).lower() in SPLIT_WORDS for name in classes):
        listed = ", ".join(map(repr, classes))
        raise DataError(f"{path}: the folders {listed} are splits, not classes; {way_out}")
    name = printable(path.name or path.resolve().name)
    table = from_rows((path, files), labels, split=split or None, name=name)
    if isinstance(table.images, FileImages) and (odd := list(table.images.real_names)):
        photos = counted(len(odd), "photo")
        notes += (f"{photos} with a name that is not UTF-8, such as {odd[0]}; no table names it",)
    return table.noted(*notes)


def split_folders(path: Path) -> dict[str, str]:
    """Return {folder: split} of the folders named after one, as train, valid or images_train."""
    names = (entry.name for entry in path.iterdir() if entry.is_dir())
    splits = ((name, SPLIT_WORDS.get(name.lower().removeprefix("images_"))) for name in names)
    return {name: split for name, split in splits if split is not None}


def read_plantnet(path: Path) -> LabelTable:
    """Return the table of Pl@ntNet-300K: ``images/train/species`` or ``images_train/species``."""
    inside = path / "images"
    return read_folder(inside if inside.is_dir() else path)


def read_huggingface(path: Path, options: TableOptions = AS_IT_IS) -> LabelTable:
    """Return the table of a folder with metadata files or Parquet shards."""
    files = _huggingface_files(path, *METADATA_NAMES) or _huggingface_files(path, "*.parquet")
    if not files:
        listed = f"{', '.join(METADATA_NAMES)}, or Parquet files as train-00000-of-00001.parquet"
        raise DataError(f"{path}: there must be one of {listed}")
    return read_tables(files, options, called=path.resolve().name)


def _huggingface_files(path: Path, *patterns: str) -> list[tuple[Path, str | None]]:
    splits = sorted(split_folders(path).items())
    folders = [(path, None), (path / "data", None), *((path / name, own) for name, own in splits)]
    return [
        (file, split or split_of(file.name))
        for at, split in folders
        for pattern in patterns
        for file in sorted(at.glob(pattern))
        if file.is_file()
    ]


def holds_parquet_shards(path: Path) -> bool:
    """Return whether a folder is read as Parquet files that hold their images."""
    if not path.is_dir() or any(path.glob("*.tar")):
        return False
    named = _huggingface_files(path, *METADATA_NAMES)
    return not named and bool(_huggingface_files(path, "*.parquet"))


def split_of(shard: str) -> str | None:
    """Return the split in a shard's name, if there is one and only one."""
    words = re.split(r"[^a-z]+", Path(shard).stem.lower())
    splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


def read_webdataset(path: Path, *, names: LabelNames = None, separator: str = "|") -> LabelTable:
    """Return the table of a .tar file, or of all .tar files in and below a folder, by name."""
    root, shards = path.parent, [path]
    if path.is_dir():
        root, shards = path, [shard for shard in sorted(path.rglob("*.tar")) if shard.is_file()]
    if not shards:
        raise DataError(f"{path}: there are no .tar files")
    samples = []
    for shard in shards:
        with require_file(shard).open("rb") as stream:
            samples.append(tar_samples(stream, shard.name, shard.stat().st_size, separator))
    shown = [shard.relative_to(root).as_posix() for shard in shards]
    table, number, offset, size = _joined(samples, shown, names, separator, path.stem)
    return replace(table, images=SpanImages(root, shards, number, offset, size, table.ids))


def _joined(
    samples: Sequence[Sequence["Sample"]],
    shards: Sequence[str],
    names: LabelNames,
    separator: str,
    called: str,
) -> tuple[LabelTable, Rows, Rows, Rows]:
    rows = [(number, sample) for number, own in enumerate(samples) for sample in own]
    ids = [f"{printable(shards[number])}/{sample.name}" for number, sample in rows]
    stated, known = [sample.labels for _, sample in rows], set(names or ())
    for sample_id, labels in zip(ids, stated, strict=True):
        if "class" in labels:  # its name; among given names it may be a number from 0 on
            word = str(labels.pop("class"))
            if names and word not in known and word.isdecimal():
                if int(word) >= len(names):
                    last = len(names) - 1
                    raise DataError(f"{sample_id}: the class must be in 0..{last}, got {word}")
                word = names[int(word)]
            labels["labels"] = [word]
    used = [name for name in SAMPLE_COLUMNS if any(name in labels for labels in stated)]
    meanings: dict[str, Any] = {name: name if name in used else None for name in SAMPLE_COLUMNS}
    meanings |= {"path": "path", "image": None, "labels": "labels"}
    builder = TableBuilder(
        TableColumns(**meanings, one_hot=()),
        Vocabulary(names),
        TableOptions(separator=(separator,)),
    )
    if stated:
        arrays = [pa.array(ids, pa.large_string())]
        for column in used:
            values = [labels.get(column) for labels in stated]
            if column in ("labels", "unknown"):
                arrays.append(pa.array(values, pa.list_(pa.string())))
            else:
                texts = [None if value is None else str(value) for value in values]
                arrays.append(pa.array(texts, pa.string()))
        builder.add(pa.record_batch(arrays, ["path", *used]), called, 0)
    spans = np.array([(number, sample.offset, sample.size) for number, sample in rows], np.int64)
    return builder.finish(Path(), called), *spans.T


class Sample(NamedTuple):
    """One image of a tar shard: its name, where its bytes are, and what is said of it."""

    name: str
    offset: int
    size: int
    labels: dict[str, object]


def tar_samples(stream: IO[bytes], shard: str, end: int, separator: str) -> list[Sample]:
    """Return the samples of a shard of ``end`` bytes in order; each byte is read at most once."""
    split = SPLIT_WORDS.get(Path(shard).stem.replace("_", "-").split("-")[0].lower())
    stated = {"split": split} if split else {}
    samples = []
    for key, files in _files_of_samples(stream, shard, end).items():
        images = [suffix for suffix in files if Path("x" + suffix).suffix in IMAGE_SUFFIXES]
        label = next((suffix for suffix in LABEL_SUFFIXES if suffix in files), None)
        if len(images) != 1 or label is None:
            rule = f"sample {key!r} must have one image and a .json, .txt or .cls file"
            raise DataError(f"{shard}: {rule}, got {', '.join(files)}")
        where = f"{shard}, {key}"
        labels = _labels(f"{where}{label}", label, files[label][1], separator)
        if labels is None and ".cls" in files:  # beside it, JSON may be facts of another kind
            labels = _labels(f"{where}.cls", ".cls", files[".cls"][1], separator)
        if labels is None:
            raise DataError(f"{where}{label}: there must be a key 'labels'")
        samples.append(Sample(*files[images[0]][0], stated | labels))
    return samples


SampleFiles = dict[str, tuple[TarMember, bytes]]  # by suffix; the bytes of what says labels


def _files_of_samples(stream: IO[bytes], shard: str, end: int) -> dict[str, SampleFiles]:
    samples: dict[str, SampleFiles] = {}
    for member in tar_members(stream, shard):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, suffix = base.partition(".")
        if not dot or not stem:
            continue
        if member.offset + member.size > end:
            raise DataError(f"{shard}: the shard is cut off in {member.name!r}")
        files = samples.setdefault(folder + slash + stem, {})
        suffix = f".{suffix.lower()}"
        if suffix in files:
            rule = "every sample must have a key of its own"
            raise DataError(f"{shard}: the file {member.name!r} is there twice; {rule}")
        content = b""
        if suffix in LABEL_SUFFIXES:
            stream.seek(member.offset)
            content = stream.read(member.size)
        files[suffix] = member, content
    return samples


def _labels(where: str, suffix: str, content: bytes, separator: str) -> dict[str, object] | None:
    if suffix != ".json":
        try:
            text = content.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise DataError(f"{where}: it is not UTF-8 text") from None
        return {"class": text} if suffix == ".cls" else {"labels": text.split(separator)}
    value = parse_json(content, where)
    sample = value if isinstance(value, dict) else {"labels": value}
    if "labels" not in sample:
        return None
    for name in ("labels", "unknown"):
        listed = sample.get(name)
        if isinstance(listed, str):
            sample[name] = listed = listed.split(separator)
        words = listed if isinstance(listed, list) else [listed]
        if listed is not None and not all(isinstance(word, str) for word in words):
            raise DataError(f"{where}: {name!r} must be a list of names, got {listed!r:.60}")
    for name in ("split", "group"):
        if name in sample and not isinstance(sample[name], str | int):
            raise DataError(f"{where}: {name!r} must be text, got {sample[name]!r:.60}")
    return {name: sample[name] for name in SAMPLE_COLUMNS if name in sample}


PARQUET_SUFFIXES = frozenset((".parquet", ".pq"))
BLOCK_BYTES = 8 << 20
AHEAD = 4  # blocks that are fetched before they are asked for
KEPT = 2  # blocks that were read to the end, for who reads a row again
READERS = 8  # tar shards that are read at once


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

    def fetch(self, block: int) -> bytes | pa.ChunkedArray:
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
            if self._left.get(number, 0):
                self._left[number] -= 1
                self._remaining -= 1
            if number in self._held:
                self._held.move_to_end(number)
            done = [held for held in self._held if not self._left.get(held, 0)]
            for old in done[:-KEPT]:  # of the blocks that are done, keep the last few
                del self._held[old]
            if not self._remaining:
                self._begin()
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

    def _asked(self, number: int) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2 * AHEAD, thread_name_prefix="fetch")
        if number not in self._held:
            self._held[number] = self._pool.submit(self.table.fetch, number)
        return self._held[number]


def read_shards(
    parts: Sequence[ShardPart],
    *,
    columns: Mapping[str, str] = {},
    names: LabelNames = None,
    separator: str = "|",
    ignore: Words = (),
) -> LabelTable:
    """Return the table of tar shards, or of Parquet files that hold their images."""
    shards = [shard for source in parts for shard in _shards_of(source)]
    kinds = {Path(shard.name).suffix.lower() for shard in shards}
    place = without_options(parts[0].place)
    if len(kinds) > 1:
        rule = "shards must be all tar or all Parquet, got both"
        raise DataError(f"{place}: {rule}; name them by a pattern such as train-*.tar")
    called = place.rpartition("/")[2] or "shards"
    if kinds == {".tar"}:
        if columns or ignore:
            raise DataError(f"{called}: columns and ignore are for Parquet, these are tar shards")
        return _tar_table(shards, names, separator, called)
    options = TableOptions(columns, ignore, names=names, separator=(separator,))
    return _parquet_table(shards, options, called)


def _shards_of(part: ShardPart) -> list[_Shard]:
    storage = storage_at(part.place)
    if storage.is_folder():
        shards = [name for name in storage.files() if _is_shard(name)]
    else:
        root, pattern = parent_of(part.place)
        storage = storage_at(root)
        shards = [pattern] if storage.size(pattern) is not None else []
        if not shards and "*" in pattern and storage.is_folder():
            shards = list(filter(_is_shard, fnmatch.filter(storage.files(), pattern)))
    if not shards:
        raise DataError(
            f"{without_options(part.place)}: there are no .tar or .parquet shards; other data is "
            "read from a disk (a table there may name its pictures by URI)"
        )
    return [_Shard(storage, name, storage.size(name) or 0, part.split) for name in sorted(shards)]


def _is_shard(name: str) -> bool:
    return Path(name).suffix.lower() in (".tar", *PARQUET_SUFFIXES)


def _tar_table(
    shards: Sequence[_Shard], names: LabelNames, separator: str, called: str
) -> LabelTable:
    def read(shard: _Shard) -> list[Sample]:
        stream: IO[bytes] = shard.storage.stream(shard.name)
        if not isinstance(shard.storage, LocalStorage):  # in large pieces
            stream = io.BufferedReader(cast(Any, stream), BLOCK_BYTES)
        with stream:
            return tar_samples(stream, shard.shown, shard.size, separator)

    with ThreadPoolExecutor(READERS) as pool:
        samples = list(pool.map(read, shards))
    for shard, own in zip(shards, samples, strict=True):
        own.sort(key=lambda sample: sample.offset)
        for sample in own if shard.split is not None else ():
            sample.labels["split"] = shard.split
    shown = [shard.name for shard in shards]
    table, place, offset, size = _joined(samples, shown, names, separator, called)
    block, number, start, before = np.empty(len(place), np.int64), -1, 0, -1
    for row, (own_shard, at, end) in enumerate(
        zip(place.tolist(), offset.tolist(), (offset + size).tolist(), strict=True)
    ):  # neighbours of one shard, of BLOCK_BYTES at most
        if own_shard != before or end - start > BLOCK_BYTES:
            number, start, before = number + 1, at, own_shard
        block[row] = number
    first = np.unique(block, return_index=True)[1]
    ends = np.maximum.reduceat(offset + size, first)
    blocks = _BlockTable(shards, place[first], offset[first], ends - offset[first])
    return replace(table, images=ShardImages(blocks, block, offset, size, table.ids))


def _parquet_table(shards: Sequence[_Shard], options: TableOptions, called: str) -> LabelTable:
    files = [parquet_table(s.shown, partial(s.storage.stream, s.name)) for s in shards]
    layout = layout_of(files[0], shards[0].shown, options)
    if layout.image is None:
        rule = "there must be a column 'image' with the bytes of the images"
        raise DataError(f"{shards[0].shown}: {rule}; a table that names them is read from a disk")
    known = Vocabulary(known_labels(files[0], layout, options.names))
    builder = TableBuilder(replace(layout, image=None, path="path"), known, options)
    wanted = [header for header in layout.headers() if header != layout.image]
    groups: list[Rows] = []  # rows of each row group
    ids: list[str] = []
    for shard, file in zip(shards, files, strict=True):
        if layout_of(file, shard.shown, options) != layout:
            raise DataError(f"{shard.shown} and {shards[0].shown} must have the same columns")
        rows = 0
        for batch in file.batches(wanted):
            if layout.path is None:
                given = [f"{printable(shard.name)}/{rows + n:06d}" for n in range(batch.num_rows)]
            else:
                given = list(map(str, batch.column(layout.path).to_pylist()))
            ids += given
            kept = [header for header in batch.schema.names if header != layout.path]
            arrays = [pa.array(given, pa.large_string()), *map(batch.column, kept)]
            batch = pa.record_batch(arrays, ["path", *kept])
            builder.add(batch, shard.shown, rows, split=shard.split or split_of(shard.shown))
            rows += batch.num_rows
        with shard.storage.stream(shard.name) as stream:
            facts = pq.ParquetFile(stream, pre_buffer=False).metadata
            sizes = [facts.row_group(at).num_rows for at in range(facts.num_row_groups)]
        groups.append(np.array(sizes, np.int64))
    table = builder.finish(Path(), called)
    rows_of = np.concatenate(groups)
    shard_of = np.repeat(np.arange(len(shards)), [len(group) for group in groups])
    number = np.concatenate([np.arange(len(group)) for group in groups])
    mean = np.array([shard.size for shard in shards]) // [max(len(group), 1) for group in groups]
    blocks = _BlockTable(shards, shard_of, number, mean[shard_of], layout.image)
    block = np.repeat(np.arange(len(rows_of)), rows_of)
    position = np.arange(len(block)) - np.repeat(np.cumsum(rows_of) - rows_of, rows_of)
    return replace(table, images=ShardImages(blocks, block, position, np.zeros_like(position), ids))

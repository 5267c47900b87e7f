"""Evaluation of a folder of scores: sums of each group of shards, merged as they come.

Labels are in a table, or in the shards: a column ``truth`` (list of names, null where nothing is
known of the row) and perhaps ``unknown``. Memory grows with the number of labels, not of rows.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.allocator import keep_freed_memory
from labelwise.base.progress import Silent, Watch
from labelwise.base.storage import (
    LocalStorage,
    ObjectStorage,
    Storage,
    address_of,
    is_uri,
    parent_of,
    storage_at,
    without_options,
)
from labelwise.base.table_files import matrix_of_lists
from labelwise.base.text import counted
from labelwise.calibration.auto import link_from_spec
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.evaluation import Evaluation, EvaluationSums, describe_link, measure
from labelwise.links import Link
from labelwise.models.scoring import one_thread
from labelwise.scores.tables import unscored_note
from labelwise.shards.engine import MANIFEST_FILE, SUCCESS_FILE, Engine, Manifest, ShardRecord
from labelwise.tables import LabelTable
from labelwise.tables.columns import TableColumns, Vocabulary
from labelwise.tables.load import load_for_labels
from labelwise.tables.shards import PARQUET_SUFFIXES, ShardPart, holds_parquet_shards, read_shards
from labelwise.tables.table import LabelSets
from labelwise.tables.table_builder import TableBuilder
from labelwise.tables.tabular import TABULAR, read_layout
from labelwise.tables.words import PATH_HEADERS
from labelwise.types import LabelSpace, matching_columns

# The labels of very many rows, on disk and mapped. An id is known by 128 bits of BLAKE2b. An image
# is also found by the place it is at: below the folder of a table, or below the shard.

BLOCK_ROWS = 1 << 16
PREFIX = "label:"
RECORD = "S24"  # a key, and a number with its highest byte first: sorted as bytes are

Keys = NDArray[np.uint8]


def keys_of(ids: Sequence[str]) -> Keys:
    """Return the 16 bytes of each id, (n, 16)."""
    digests = [blake2b(name.encode(), digest_size=16).digest() for name in ids]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def _fields(records: Any) -> tuple[Keys, NDArray[np.int64]]:
    columns = np.asarray(records).view(np.uint8).reshape(-1, 24)
    return columns[:, :16], columns[:, 16:].copy().view(">i8")[:, 0].astype(np.int64)


class KeyFile:
    """Keys with a number each, written as they come and then sorted on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, keys: Keys, numbers: NDArray[np.int64]) -> None:
        highest_first = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
        with self.path.open("ab") as stream:
            stream.write(np.hstack([keys, highest_first]).tobytes())

    def first_repeat(self) -> tuple[int, int] | None:
        records = _mapped(self.path, RECORD, "r+")
        records.sort()
        for start in range(0, len(records), BLOCK_ROWS):
            keys, numbers = _fields(records[start : start + BLOCK_ROWS + 1])
            same = (keys[1:] == keys[:-1]).all(axis=1) & (numbers[1:] != numbers[:-1])
            if same.any():
                at = int(same.argmax())
                return int(numbers[at]), int(numbers[at + 1])
        return None


class StoredLabels:
    """Labels in a folder that :meth:`build` wrote."""

    def __init__(self, folder: Path, width: int) -> None:
        self.records = _mapped(folder / "keys", RECORD)
        self.present, self.unknown = (
            LabelSets(
                _mapped(folder / f"{kind}-offsets", np.int64),
                _mapped(folder / f"{kind}-columns", np.int32),
                width,
                _mapped(folder / f"{kind}-inverted", np.bool_),
            )
            for kind in ("present", "unknown")
        )

    def __len__(self) -> int:
        return len(self.present)

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        rows = self._find(keys_of(ids))
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            named = (ids[row] for row in missing.tolist())
            places = [name if is_uri(name) else os.path.abspath(name) for name in named]
            rows[missing] = self._find(keys_of(places))
        return rows

    def take(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return self.present.take(rows).dense(), ~self.unknown.take(rows).dense()

    def _find(self, keys: Keys) -> NDArray[np.int64]:
        lowest = np.pad(keys, ((0, 0), (0, 8))).view(RECORD)[:, 0]  # with the number 0
        position = np.searchsorted(self.records, lowest)
        asked = np.flatnonzero(position < len(self.records))
        there, numbers = _fields(self.records[position[asked]])
        rows = np.full(len(keys), -1, np.int64)
        rows[asked] = np.where((there == keys[asked]).all(axis=1), numbers, -1)
        return rows

    @staticmethod
    def build(source: str, names: tuple[str, ...], folder: Path) -> "StoredLabels":
        folder.mkdir(parents=True, exist_ok=True)
        keys, rows = KeyFile(folder / "keys"), 0
        with _SetsFile(folder, "present") as present, _SetsFile(folder, "unknown") as unknown:
            for ids, places, here, hidden in _batches(source, names, folder):
                numbers = np.arange(rows, rows + len(ids))
                keys.add(keys_of(ids), numbers)
                keys.add(keys_of(places), numbers)
                present.add(here)
                unknown.add(hidden)
                rows += len(ids)
        if not rows:
            raise DataError(f"{source}: the table is empty")
        repeat = keys.first_repeat()
        if repeat is not None:
            first, second = (row + 1 for row in repeat)
            raise DataError(
                f"{source}: rows {first:,} and {second:,} name the same image; keep one"
            )
        return StoredLabels(folder, len(names))


class _SetsFile(ExitStack):
    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__()
        self.offsets, self.columns, self.inverted = (
            self.enter_context((folder / f"{kind}-{name}").open("wb"))
            for name in ("offsets", "columns", "inverted")
        )
        self.end = 0
        self.offsets.write(np.zeros(1, np.int64).tobytes())

    def add(self, sets: LabelSets) -> None:
        self.offsets.write((sets.offsets[1:] + self.end).tobytes())
        self.columns.write(sets.columns.tobytes())
        self.inverted.write(sets.inverted.tobytes())
        self.end += len(sets.columns)


Batch = tuple[list[str], list[str], LabelSets, LabelSets]


def _batches(source: str, names: tuple[str, ...], folder: Path) -> Iterator[Batch]:
    """Yield ids, the places they are at, and the labels that are present and unknown."""
    if is_uri(source) and isinstance(local := storage_at(source), LocalStorage):
        source = local.place
    named = Path(without_options(source))
    if named.suffix.lower() in TABULAR and not named.is_dir() and not _only_holds_images(source):
        path, base = named, os.path.dirname(os.path.abspath(source))
        if is_uri(source):
            above, name = parent_of(source)
            storage = storage_at(above)  # of which a copy is fetched a piece at a time
            size = storage.size(name)
            if not isinstance(storage, ObjectStorage) or size is None:
                raise DataError(f"{address_of(above, name)} is not there")
            storage.download(name, folder / name, size)
            path, base = folder / name, without_options(above)
        yield from _table_batches(path, base, names)
        return
    if (
        is_uri(source)
        or named.suffix.lower() in PARQUET_SUFFIXES
        or holds_parquet_shards(Path(source))
    ):  # shards wherever they are, with their places
        table = read_shards([ShardPart(source, None)], names=list(names))
    else:
        table = load_for_labels(source, names)
    _refuse_soft(table, table.name)
    columns = _columns(table.name, table.space.names, names)
    for start in range(0, len(table), BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, len(table)))
        ids = [table.ids[row] for row in rows.tolist()]
        named_rows = zip(rows.tolist(), ids, strict=True)
        places = [table.images.address(row) or name for row, name in named_rows]
        here, hidden = (_renamed(s.take(rows), columns) for s in (table.present, table.unknown))
        yield ids, places, here, hidden


def _only_holds_images(source: str) -> bool:
    above, name = parent_of(source)
    if Path(name).suffix.lower() not in PARQUET_SUFFIXES:
        return False
    try:
        with storage_at(above).stream(name) as stream:
            header = pq.read_schema(stream).names
    except (OSError, pa.ArrowException):
        return False  # whoever reads it says why
    return not any(path in header for path in PATH_HEADERS)


def _table_batches(path: Path, base: str, names: tuple[str, ...]) -> Iterator[Batch]:
    def join(name: str) -> str:
        return f"{base}/{name}" if is_uri(base) else os.path.normpath(os.path.join(base, name))

    if not path.is_file():
        raise DataError(f"{path} is not there, or not a file")
    stream, found = read_layout(path)
    if found.path is None:
        raise DataError(f"{path.name}: there must be a column 'path' that names the images")
    layout: TableColumns = replace(found, image=None, split=None, group=None)
    own = tuple(header.strip() for header in layout.one_hot)
    if all(name.startswith(PREFIX) for name in own):
        own = tuple(name.removeprefix(PREFIX) for name in own)
    columns = _columns(path.name, own, names) if own else np.arange(len(names), dtype=np.int32)
    rows = 0
    for batch in stream.batches(layout.headers()):
        builder = TableBuilder(layout, Vocabulary(own or names))
        builder.add(batch, path.name, rows)
        table = builder.finish(path.parent, f"{path.name}, after row {rows:,}")
        _refuse_soft(table, path.name)
        ids = list(table.ids)
        places = [name if is_uri(name) else join(name) for name in ids]
        yield ids, places, _renamed(table.present, columns), _renamed(table.unknown, columns)
        rows += len(ids)


def _refuse_soft(table: LabelTable, name: str) -> None:
    if table.soft is not None:
        raise DataError(
            f"{name} has soft labels; shards are evaluated with present and absent ones"
        )


def _columns(source: str, theirs: tuple[str, ...], names: tuple[str, ...]) -> NDArray[np.int32]:
    return np.array(matching_columns(theirs, names, of=source, in_="the scores"), np.int32)


def _renamed(sets: LabelSets, columns: NDArray[np.int32]) -> LabelSets:
    return LabelSets.from_csr(sets.offsets, columns[sets.columns], sets.width, sets.inverted)


def _mapped(path: Path, kind: Any, mode: Literal["r", "r+"] = "r") -> Any:
    """Return a file as an array; an empty one cannot be mapped."""
    return np.memmap(path, kind, mode) if path.stat().st_size else np.zeros(0, kind)


GROUP_ENTRIES = 1 << 21  # images times labels that are measured at once
TRUTH, UNKNOWN = "truth", "unknown"
READ = ("path", "labels", "logits", TRUTH, UNKNOWN)
OWN_RULE = "the model's own rule, as predicted"


@dataclass(frozen=True)
class Measured:
    """What a group of shards adds; ``numbers`` are shard and row of each labelled id."""

    sums: EvaluationSums | None
    rows: int
    failed: int
    unlabelled: int
    keys: Keys
    numbers: NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """The scored rows of a shard, logits and predicted sets (n, K)."""

    rows: int
    kept: NDArray[np.int64]
    ids: list[str]
    logits: NDArray[np.float32]
    sets: NDArray[np.bool_]
    table: Any


@dataclass(frozen=True)
class EvaluationTask:
    """Measures the rows of groups of shards.

    ``stored`` is a folder of :class:`StoredLabels`; a machine without it makes its own from
    ``labels``. ``rule`` None takes the predicted sets, if ``sets`` are wanted.
    """

    place: str
    labels: str | None
    stored: str | None
    rule: Rule | None = None
    sets: bool = True
    bins: int = 10
    k: int = 4

    def start(self) -> Callable[[int], Measured]:
        keep_freed_memory()
        folder, store = ShardFolder(self.place), None
        if self.labels is not None:
            if self.stored is not None and os.path.isdir(self.stored):
                store = StoredLabels(Path(self.stored), len(folder.names))
            else:
                with temporary_folder() as temporary:  # its files live on while they are mapped
                    store = StoredLabels.build(self.labels, folder.names, Path(temporary))

        def work(group: int) -> Measured:
            with one_thread():
                return self._measure(folder, group, store)

        return work

    def _measure(self, folder: "ShardFolder", group: int, store: StoredLabels | None) -> Measured:
        parts = []
        rows = failed = unlabelled = 0
        for number, record in folder.groups[group]:
            shard = folder.read(record)
            rows, failed = rows + shard.rows, failed + shard.rows - len(shard.ids)
            if store is None:
                there, present, known = folder.own_labels(record.shard, shard)
            else:
                found = store.find(shard.ids)
                there = np.flatnonzero(found >= 0)
                present, known = store.take(found[there])
            unlabelled += len(shard.ids) - len(there)
            keys = keys_of([shard.ids[row] for row in there.tolist()])
            numbers = (np.int64(number) << 32) + shard.kept[there]
            parts.append((shard.logits[there], shard.sets[there], present, known, keys, numbers))
        logits, sets, present, known, keys, numbers = map(np.concatenate, zip(*parts, strict=True))
        sums = None
        if len(logits):
            sums = measure(
                logits,
                present & known,
                None if known.all() else known,
                link=folder.link,
                rule=(self.rule or sets) if self.sets else None,
                bins=self.bins,
                k=self.k,
            )
        return Measured(sums, rows, failed, unlabelled, keys, numbers)


class ShardFolder:
    """A finished folder of scores; a shard that is not as the manifest says is an error."""

    def __init__(self, place: str) -> None:
        self.storage: Storage = storage_at(place)
        self.address = self.storage.address
        if not self.storage.is_folder():
            raise CheckpointError(f"{self.address} holds no shards; is its address right?")
        if self.storage.size(MANIFEST_FILE) is None:
            what = f"there is no {MANIFEST_FILE}"
            raise CheckpointError(f"{self.address}: {what}; run the same `labelwise predict` again")
        self.records = Manifest(self.storage).records()
        if self.storage.size(SUCCESS_FILE) is None:
            raise CheckpointError(
                f"{self.address} is not finished, {len(self.records):,} shards are; run the same "
                "`labelwise predict` again, then evaluate"
            )
        if not self.records:
            raise CheckpointError(f"{self.address}: {MANIFEST_FILE} names no shard")
        self._stated = (self._table(self.records[0]).schema.metadata or {}).get(b"labelwise")
        try:
            facts = json.loads(self._stated or b"")
            self.names = LabelSpace(tuple(facts["names"])).names
            self.link: Link = link_from_spec(facts["link"])
        except (KeyError, TypeError, ValueError, LabelwiseError):
            raise CheckpointError(
                f"{self.address}: {self.records[0].shard} does not say its labels and link; "
                "write the scores again with `labelwise predict`"
            ) from None

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self.records)

    @cached_property
    def groups(self) -> list[list[tuple[int, ShardRecord]]]:
        groups: list[list[tuple[int, ShardRecord]]] = []
        entries = GROUP_ENTRIES
        for numbered in enumerate(self.records):
            if entries >= GROUP_ENTRIES:
                groups.append([])
                entries = 0
            groups[-1].append(numbered)
            entries += numbered[1].rows * len(self.names)
        return groups

    def read(self, record: ShardRecord) -> Shard:
        table = self._table(record)
        where = f"{self.address}: {record.shard}"
        if (table.schema.metadata or {}).get(b"labelwise") != self._stated:
            raise DataError(
                f"{where} has other labels, another order of them, or another model than "
                f"{self.records[0].shard}; answers of two models cannot be evaluated together"
            )
        kept = np.flatnonzero(np.asarray(table["logits"].is_valid()))
        scored = table.take(pa.array(kept))
        logits = matrix_of_lists(scored["logits"], len(self.names), f"{where}: logits")
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            row = int(kept[int((~finite).argmax())]) + 1
            raise DataError(f"{where}: row {row} must have finite logits")
        return Shard(
            table.num_rows,
            kept,
            scored["path"].to_pylist(),
            logits.astype(np.float32, copy=False),
            self._sets(scored["labels"], where),
            scored,
        )

    def own_labels(
        self, name: str, shard: Shard
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        if TRUTH not in shard.table.column_names:
            raise DataError(
                f"{self.address}: {name} has no labels; give them with --labels, or add a "
                f"column {TRUTH!r} with the list of each row"
            )
        there = np.flatnonzero(np.asarray(shard.table[TRUTH].is_valid()))
        if not len(there):
            nothing = np.zeros((0, len(self.names)), np.bool_)
            return there, nothing, nothing
        unknown = UNKNOWN if UNKNOWN in shard.table.column_names else None
        layout = TableColumns("path", None, TRUTH, unknown, None, None, ())
        builder = TableBuilder(layout, Vocabulary(self.names))
        builder.add(shard.table.take(pa.array(there)).combine_chunks().to_batches()[0], name, 0)
        table = builder.finish(Path(), name)
        return there, table.present.dense(), ~table.unknown.dense()

    def _sets(self, column: Any, where: str) -> NDArray[np.bool_]:
        lists = column.combine_chunks()
        numbers = pc.index_in(lists.flatten(), value_set=pa.array(self.names, pa.string()))
        if numbers.null_count:
            raise DataError(f"{where} has answers that are none of its labels")
        sets = np.zeros((len(lists), len(self.names)), np.bool_)
        sets[np.asarray(pc.list_parent_indices(lists)), np.asarray(numbers)] = True
        return sets

    def _table(self, record: ShardRecord) -> Any:
        try:
            content = self.storage.read(record.shard)
        except FileNotFoundError:
            raise self._damaged(record, "it is gone") from None
        if "sha256:" + hashlib.sha256(content).hexdigest() != record.hash:
            raise self._damaged(record, "its bytes are others")
        file = pq.ParquetFile(io.BytesIO(content))
        table = file.read([name for name in READ if name in file.schema_arrow.names])
        if table.num_rows != record.rows:
            raise self._damaged(record, f"it has {table.num_rows:,} rows")
        return table

    def _damaged(self, record: ShardRecord, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.address}: {record.shard} is not what {MANIFEST_FILE} says, {why}; "
            "run the same `labelwise predict` again"
        )


def evaluate_shards(
    place: str,
    labels: str | None,
    engine: Engine,
    *,
    rule: Rule | None = None,
    sets: bool = True,
    bins: int = 10,
    k: int = 4,
    watch: Watch | None = None,
) -> Evaluation:
    """Return the evaluation of a folder of scores; ``rule`` None takes the predicted sets."""
    watch = watch or Silent()
    folder = ShardFolder(place)
    if not folder.names:
        raise DataError(f"{folder.address}: there are no labels to evaluate")
    with temporary_folder() as temporary:
        stored = None
        if labels is not None:
            stored = os.path.join(temporary, "labels")
            labelled = len(StoredLabels.build(labels, folder.names, Path(stored)))
        task = EvaluationTask(place, labels, stored, rule, sets, bins, k)
        total: EvaluationSums | None = None
        rows = failed = unlabelled = 0
        seen = KeyFile(Path(temporary) / "seen")
        watch.start("evaluating", folder.rows)
        try:
            for done in engine.run(task, range(len(folder.groups))):
                if done.sums is not None:
                    total = done.sums if total is None else total.merge(done.sums)
                seen.add(done.keys, done.numbers)
                rows, failed = rows + done.rows, failed + done.failed
                unlabelled += done.unlabelled
                watch.advance(done.rows)
        finally:
            watch.finish()
        repeat = seen.first_repeat()
        if repeat is not None:
            shards = [folder.records[number >> 32] for number in repeat]
            table = pq.read_table(io.BytesIO(folder.storage.read(shards[0].shard)))
            name = table["path"][repeat[0] & 0xFFFFFFFF].as_py()
            both = f"{shards[0].shard} and {shards[1].shard}; an image must be evaluated once"
            raise DataError(f"{folder.address}: {name!r} is there twice, in {both}")
        if total is None:
            if labels is None:
                raise DataError(f"{folder.address}: no row has labels")
            first = next((s.ids[0] for s in map(folder.read, folder.records) if s.ids), None)
            if first is None:
                raise DataError(f"{folder.address}: no image could be scored")
            raise DataError(
                f"{without_options(labels)}: no id of {folder.address} is in it, first {first!r}; "
                "name the images by the same paths"
            )
    notes = [f"{unscored_note(failed, folder.address)}."] if failed else []
    if unlabelled:
        what = "the shards have" if labels is None else f"{without_options(labels)} has"
        of = f"{rows - failed - unlabelled:,} of the {rows - failed:,} rows"
        notes.append(f"{what} labels of {of}; the others are left out.")
    if labels is not None and labelled > total.rows:
        rest = counted(labelled - total.rows, "row")
        notes.append(f"{rest} of {without_options(labels)} without scores.")
    return total.evaluation(
        folder.names,
        k=k,
        link=describe_link(folder.link),
        rule=rule,
        rule_words=OWN_RULE if rule is None else None,
        notes=notes,
    )


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder on a disk: /tmp may itself be memory."""
    folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    return tempfile.TemporaryDirectory(prefix="labelwise-", dir=folder)

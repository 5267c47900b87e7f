"""Evaluation of a folder of scores: sums of each group of shards, merged as they come.

Labels are in a table, or in the shards: a column ``truth`` (list of names, null where nothing is
known of the row) and perhaps ``unknown``. Scores are in memory a group of shards at a time; of each
image that has labels a key of 24 bytes stays, so that one that comes twice is found.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.allocator import keep_freed_memory
from labelwise.base.progress import Silent, Watch
from labelwise.base.storage import (
    LocalStorage,
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
from labelwise.shards.inputs import table_file
from labelwise.tables import LabelTable
from labelwise.tables.load import load_for_labels
from labelwise.tables.shards import PARQUET_SUFFIXES, ShardPart, holds_parquet_shards, read_shards
from labelwise.tables.table import LabelSets
from labelwise.tables.tabular import TABULAR
from labelwise.tables.words import PATH_HEADERS
from labelwise.types import LabelSpace, matching_columns

Keys = NDArray[np.bytes_]
Numbers = NDArray[np.int64]

# An image is known by 128 bits of BLAKE2b of its id. It is also found by the place it is at: below
# the folder of a table, or below the shard.


def keys_of(ids: Sequence[str]) -> Keys:
    """Return the 16 bytes of each id, (n,)."""
    digests = [blake2b(name.encode(), digest_size=16).digest() for name in ids]
    return np.frombuffer(b"".join(digests), "S16")


def first_repeat(keys: Keys, numbers: Numbers) -> tuple[int, int] | None:
    """Return two different numbers (n,) that have the same key (n,), if there are any."""
    order = np.argsort(keys, kind="stable")
    keys, numbers = keys[order], numbers[order]
    same = np.flatnonzero((keys[1:] == keys[:-1]) & (numbers[1:] != numbers[:-1]))
    return (int(numbers[same[0]]), int(numbers[same[0] + 1])) if len(same) else None


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The labels of a table in the order of the scores', by keys (n,) in order and their rows."""

    keys: Keys
    rows: Numbers
    present: LabelSets
    unknown: LabelSets

    def __len__(self) -> int:
        return len(self.present)

    @staticmethod
    def read(source: str, names: tuple[str, ...]) -> "KnownLabels":
        """Read a label table, a data set or shards, here or in a bucket."""
        table, places = _table_and_places(source, names)
        if table.soft is not None:
            only = "shards are evaluated with present and absent ones"
            raise DataError(f"{table.name} has soft labels; {only}")
        keys = keys_of([*table.ids, *places])
        rows = np.tile(np.arange(len(table), dtype=np.int64), 2)
        if (repeat := first_repeat(keys, rows)) is not None:
            first, second = (row + 1 for row in repeat)
            same = f"rows {first:,} and {second:,} name the same image; keep one"
            raise DataError(f"{source}: {same}")
        matched = matching_columns(table.space.names, names, of=table.name, in_="the scores")
        columns, order = np.array(matched, np.int32), np.argsort(keys)
        sets = (
            LabelSets.from_csr(own.offsets, columns[own.columns], own.width, own.inverted)
            for own in (table.present, table.unknown)
        )
        return KnownLabels(keys[order], rows[order], *sets)

    def find(self, ids: Sequence[str]) -> Numbers:
        """Return the row (n,) of each id or, where there is none, of its place; else -1."""
        rows = self._find(keys_of(ids))
        missing = np.flatnonzero(rows < 0)
        rows[missing] = self._find(keys_of([_place(ids[row]) for row in missing.tolist()]))
        return rows

    def take(self, rows: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which labels (n, K) are present, and which are known."""
        return self.present.take(rows).dense(), ~self.unknown.take(rows).dense()

    def _find(self, keys: Keys) -> Numbers:
        position = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[position] == keys, self.rows[position], -1)


def _place(name: str) -> str:
    return name if is_uri(name) else os.path.abspath(name)


def _table_and_places(source: str, names: tuple[str, ...]) -> tuple[LabelTable, list[str]]:
    """Return labels, and where their images are; a table in a bucket is fetched to be read."""
    if is_uri(source) and isinstance(local := storage_at(source), LocalStorage):
        source = local.place
    file = Path(without_options(source))
    is_table = file.suffix.lower() in TABULAR and not file.is_dir() and not _has_images(source)
    if is_uri(source) and is_table:
        above, name = parent_of(source)
        base, storage = without_options(above), storage_at(above)
        if storage.size(name) is None:
            raise DataError(f"{address_of(above, name)} is not there")
        with table_file(storage, name) as copy:
            table = load_for_labels(copy, names)
        return table, [image if is_uri(image) else f"{base}/{image}" for image in table.ids]
    has_images = file.suffix.lower() in PARQUET_SUFFIXES or holds_parquet_shards(file)
    if is_uri(source) or (has_images and not is_table):  # shards, with their places
        table = read_shards([ShardPart(source, None)], names=list(names))
    else:
        table = load_for_labels(source, names)
    addresses = (table.images.address(row) for row in range(len(table)))
    return table, [_place(at or name) for at, name in zip(addresses, table.ids, strict=True)]


def _has_images(source: str) -> bool:
    """Return whether a Parquet file holds images, not their paths."""
    above, name = parent_of(source)
    if Path(name).suffix.lower() not in PARQUET_SUFFIXES:
        return False
    try:
        with storage_at(above).stream(name) as stream:
            header = pq.read_schema(stream).names
    except (OSError, pa.ArrowException):
        return False  # whoever reads it says why
    return not any(path in header for path in PATH_HEADERS)


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
    table: pa.Table


@dataclass(frozen=True)
class EvaluationTask:
    """Measures the rows of groups of shards.

    ``labels`` None takes those in the shards. ``rule`` None takes the predicted sets, if ``sets``
    are wanted.
    """

    place: str
    labels: KnownLabels | None
    rule: Rule | None = None
    sets: bool = True
    bins: int = 10
    k: int = 4

    def start(self) -> Callable[[int], Measured]:
        keep_freed_memory()
        folder = ShardFolder(self.place)

        def work(group: int) -> Measured:
            with one_thread():
                return self._measure(folder, group)

        return work

    def _measure(self, folder: "ShardFolder", group: int) -> Measured:
        parts, known_labels = [], self.labels
        rows = failed = unlabelled = 0
        for number, record in folder.groups[group]:
            shard = folder.read(record)
            rows, failed = rows + shard.rows, failed + shard.rows - len(shard.ids)
            if known_labels is None:
                there, present, known = folder.own_labels(record.shard, shard)
            else:
                found = known_labels.find(shard.ids)
                there = np.flatnonzero(found >= 0)
                present, known = known_labels.take(found[there])
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
        where, rows = f"{self.address}: {name}", shard.table.take(pa.array(there))
        present = self._sets(rows[TRUTH], where)
        if UNKNOWN not in rows.column_names:
            return there, present, np.ones_like(present)
        return there, present, ~self._sets(rows[UNKNOWN], where)

    def _sets(self, column: pa.ChunkedArray, where: str) -> NDArray[np.bool_]:
        lists = column.combine_chunks()
        numbers = pc.index_in(lists.flatten(), value_set=pa.array(self.names, pa.string()))
        if numbers.null_count:
            raise DataError(f"{where} has answers that are none of its labels")
        sets = np.zeros((len(lists), len(self.names)), np.bool_)
        sets[np.asarray(pc.list_parent_indices(lists)), np.asarray(numbers)] = True
        return sets

    def _table(self, record: ShardRecord) -> pa.Table:
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
    known = None if labels is None else KnownLabels.read(labels, folder.names)
    task = EvaluationTask(place, known, rule, sets, bins, k)
    total: EvaluationSums | None = None
    rows = failed = unlabelled = 0
    keys, numbers = [keys_of([])], [np.zeros(0, np.int64)]
    watch.start("evaluating", folder.rows)
    try:
        for done in engine.run(task, range(len(folder.groups))):
            if done.sums is not None:
                total = done.sums if total is None else total.merge(done.sums)
            keys.append(done.keys)
            numbers.append(done.numbers)
            rows, failed = rows + done.rows, failed + done.failed
            unlabelled += done.unlabelled
            watch.advance(done.rows)
    finally:
        watch.finish()
    repeat = first_repeat(np.concatenate(keys), np.concatenate(numbers))
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
    if labels is not None and known is not None and len(known) > total.rows:
        rest = counted(len(known) - total.rows, "row")
        notes.append(f"{rest} of {without_options(labels)} without scores.")
    return total.evaluation(
        folder.names,
        k=k,
        link=describe_link(folder.link),
        rule=rule,
        rule_words=OWN_RULE if rule is None else None,
        notes=notes,
    )

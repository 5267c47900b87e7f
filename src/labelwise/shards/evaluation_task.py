"""Evaluation of a folder of scores: sums of each group of shards, merged as they come.

    part-*.parquet, labels -> measure -> EvaluationSums -> merge -> Evaluation

Labels stand in a table of their own, or in the shards: a column ``truth`` (list of names, null
where nothing is known of the row) and, where some are not known, ``unknown``. Memory follows from
the number of labels; on disk there are 24 bytes per row for ids, and the labels of the table.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from labelwise.data.columns import TableColumns, Vocabulary
from labelwise.data.table_builder import TableBuilder
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.evaluation import Evaluation, EvaluationSums, describe_link, measure
from labelwise.links import Link
from labelwise.methods import link_from_spec
from labelwise.models.launching import one_thread
from labelwise.predictions import matrix_of_lists
from labelwise.scores.tables import unscored_note
from labelwise.shards.engine import Engine
from labelwise.shards.label_store import KeyFiles, Keys, StoredLabels, keys_of
from labelwise.shards.manifest import MANIFEST_FILE, SUCCESS_FILE, Manifest, ShardRecord
from labelwise.system.allocator import keep_freed_memory
from labelwise.system.progress import Silent, Watch
from labelwise.system.storage import Storage, storage_at, without_options
from labelwise.system.text import counted
from labelwise.types import LabelSpace

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
    """The scored rows of a shard: ids, logits (n, K), the sets as predicted, the whole table."""

    rows: int
    kept: NDArray[np.int64]
    ids: list[str]
    logits: NDArray[np.float32]
    sets: NDArray[np.bool_]
    table: Any


@dataclass(frozen=True)
class EvaluationTask:
    """Measures the rows of groups of shards.

    ``stored`` is a folder of :class:`StoredLabels` on this machine; another machine makes its own
    from ``labels``. ``rule`` None takes the sets that were predicted, if ``sets`` are wanted.
    """

    place: str
    labels: str | None
    stored: str | None
    rule: Rule | None = None
    sets: bool = True
    bins: int = 10
    k: int = 4

    def start(self) -> Callable[[int], Measured]:
        """Open the labels and return what measures a group of shards."""
        keep_freed_memory()
        folder = ShardFolder(self.place)
        groups = folder.groups
        store = None
        if self.labels is not None:
            if self.stored is not None and os.path.isdir(self.stored):
                store = StoredLabels(Path(self.stored), len(folder.names))
            else:
                with temporary_folder() as temporary:  # its files live on while they are mapped
                    store = StoredLabels.build(self.labels, folder.names, Path(temporary))

        def work(group: int) -> Measured:
            with one_thread():
                return self._measure(folder, groups[group], store)

        return work

    def _measure(
        self,
        folder: "ShardFolder",
        records: list[tuple[int, ShardRecord]],
        store: StoredLabels | None,
    ) -> Measured:
        parts = []
        rows = failed = unlabelled = 0
        for number, record in records:
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
            observed = None if known.all() else torch.from_numpy(known)
            chosen = self.rule or torch.from_numpy(sets)
            sums = measure(
                torch.from_numpy(logits),
                torch.from_numpy(present & known),
                observed,
                link=folder.link,
                rule=chosen if self.sets else None,
                bins=self.bins,
                k=self.k,
            )
        return Measured(sums, rows, failed, unlabelled, keys, numbers)


class ShardFolder:
    """A finished folder of scores; whatever is not as the manifest says is an error."""

    def __init__(self, place: str) -> None:
        self.storage: Storage = storage_at(place)
        self.address = self.storage.address
        if not self.storage.is_folder():
            raise CheckpointError(f"{self.address} holds no shards; is its address right?")
        if self.storage.size(MANIFEST_FILE) is None:
            raise CheckpointError(
                f"{self.address}: there is no {MANIFEST_FILE}, so nobody knows whether every shard "
                "is there; run the same `labelwise predict` again to finish them"
            )
        self.records = Manifest(self.storage).records()
        if self.storage.size(SUCCESS_FILE) is None:
            raise CheckpointError(
                f"{self.address} is not finished, {len(self.records):,} shards are; run the same "
                "`labelwise predict` again, then evaluate"
            )
        if not self.records:
            raise CheckpointError(f"{self.address}: {MANIFEST_FILE} names no shard")
        metadata = self._table(self.records[0]).schema.metadata or {}
        self._stated = metadata.get(b"labelwise")
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
        """The rows of all shards, failed ones included."""
        return sum(record.rows for record in self.records)

    @cached_property
    def groups(self) -> list[list[tuple[int, ShardRecord]]]:
        """The shards, numbered, in groups of about GROUP_ENTRIES entries."""
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
        """Return the rows of a shard that have scores."""
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
        """Return which scored rows have labels in the shard, which are present, which known."""
        if TRUTH not in shard.table.column_names:
            raise DataError(
                f"{self.address}: {name} has no labels; give them with --labels, or add a "
                f"column {TRUTH!r} with the list of each row"
            )
        there = np.flatnonzero(np.asarray(shard.table[TRUTH].is_valid()))
        width = len(self.names)
        if not len(there):
            nothing = np.zeros((0, width), np.bool_)
            return there, nothing, nothing
        unknown = UNKNOWN if UNKNOWN in shard.table.column_names else None
        layout = TableColumns("path", None, TRUTH, unknown, None, None, ())
        builder = TableBuilder(layout, Vocabulary(self.names))
        batch = shard.table.take(pa.array(there)).combine_chunks().to_batches()[0]
        builder.add(batch, name, 0)
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
    """Return the evaluation of a folder of scores, its rows never in memory together.

    ``rule`` None with ``sets`` takes the sets as they were predicted.
    """
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
        with KeyFiles(Path(temporary) / "seen") as seen:
            watch.start("evaluating", folder.rows)
            try:
                for one in engine.run(task, range(len(folder.groups))):
                    if one.sums is not None:
                        total = one.sums if total is None else total.merge(one.sums)
                    seen.add(one.keys, one.numbers)
                    rows, failed = rows + one.rows, failed + one.failed
                    unlabelled += one.unlabelled
                    watch.advance(one.rows)
            finally:
                watch.finish()
            _refuse_repeats(folder, seen)
        if total is None:
            raise DataError(_nothing_matches(folder, labels))
    notes = []
    if failed:
        notes.append(f"{unscored_note(failed, folder.address)}.")
    if unlabelled:
        what = "the shards have" if labels is None else f"{without_options(labels)} has"
        scored = rows - failed
        notes.append(
            f"{what} labels of {scored - unlabelled:,} of the {scored:,} rows; "
            "the others are left out."
        )
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


def _refuse_repeats(folder: ShardFolder, seen: KeyFiles) -> None:
    for keys, numbers in seen.parts():
        repeat = seen.first_repeat(keys, numbers)
        if repeat is not None:
            shards = [folder.records[number >> 32] for number in repeat]
            table = pq.read_table(io.BytesIO(folder.storage.read(shards[0].shard)))
            name = table["path"][repeat[0] & 0xFFFFFFFF].as_py()
            raise DataError(
                f"{folder.address}: {name!r} is there twice, in {shards[0].shard} and "
                f"{shards[1].shard}; an image must be evaluated once"
            )


def _nothing_matches(folder: ShardFolder, labels: str | None) -> str:
    if labels is None:
        return f"{folder.address}: no row has labels"
    ids = next((shard.ids for shard in map(folder.read, folder.records) if shard.ids), None)
    if ids is None:
        return f"{folder.address}: no image could be scored"
    return (
        f"{without_options(labels)}: no id of {folder.address} is in it, first {ids[0]!r}; "
        "name the images by the same paths"
    )


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder on a disk: /tmp may itself be memory."""
    place = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    return tempfile.TemporaryDirectory(prefix="labelwise-", dir=place)

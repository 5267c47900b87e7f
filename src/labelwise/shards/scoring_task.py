"""Scoring in shards: a plan, a task for each shard, and the command that joins them.

    find_rows -> _plan/00000.parquet -> StoredImages -> scoring.score -> part-00000.parquet

A shard's bytes follow from its plan, the model and the batch size alone: a worker computes on one
thread whatever the engine, because how sums are split over threads changes their last digits.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from labelwise.base.allocator import keep_freed_memory
from labelwise.base.arrays import Values
from labelwise.base.files import locked
from labelwise.base.progress import Silent, Watch
from labelwise.base.storage import LocalStorage, Storage, storage_at
from labelwise.calibration.auto import link_to_spec
from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.models.answer_files import CAUTION
from labelwise.models.loading import load_model, model_files
from labelwise.models.scoring import Scored, one_thread, require_probabilities, score
from labelwise.pictures.prefetch import available_cores
from labelwise.shards.engine import SUCCESS_FILE, Engine, Manifest, ShardRecord, shard_name
from labelwise.shards.inputs import InputRow, StoredImages, find_rows

if TYPE_CHECKING:
    pass

PLAN_FILE = "_plan.json"
ROW_GROUP = 1024  # rows of a row group of the answers
WORDS = pa.list_(pa.string())
PLAN_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "root": pa.dictionary(pa.int32(), pa.string()),
        "file": pa.binary(),
        "offset": pa.int64(),
        "size": pa.int64(),
        "group": pa.int32(),
    }
)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model, so that it can travel; ``hash`` is what it is known by."""

    files: dict[str, bytes]
    hash: str

    @staticmethod
    def read(place: Path) -> "ModelFiles":
        try:
            files = {path.name: path.read_bytes() for path in model_files(place)}
        except OSError as error:
            raise CheckpointError(
                f"{error.filename} cannot be read: {error.strerror}; give a finished run"
            ) from None
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(hashlib.sha256(files[name]).digest())
        return ModelFiles(files, digest.hexdigest())

    def unpack(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder if len(self.files) > 1 else folder / next(iter(self.files))


@dataclass(frozen=True)
class ScoringPlan:
    """The question that a folder of scores answers; equal plans have equal answers."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    inputs: tuple[str, ...]
    model: str  # the hash of its files
    batch_size: int
    shard_rows: int
    rows: int = 0
    shards: int = 0
    decode: str = "cpu"  # who decodes JPEGs

    @staticmethod
    def load(storage: Storage) -> "ScoringPlan | None":
        if storage.size(PLAN_FILE) is None:
            return None
        try:
            return TypeAdapter(ScoringPlan).validate_json(storage.read(PLAN_FILE), strict=True)
        except ValidationError:
            raise CheckpointError(
                f"{storage.address}: {PLAN_FILE} is damaged; choose another folder"
            ) from None

    def write(self, storage: Storage, watch: Watch) -> "ScoringPlan":
        rows_found = find_rows(self.inputs)
        rows = shards = 0
        while chunk := list(islice(rows_found, self.shard_rows)):
            columns = zip(PLAN_SCHEMA, zip(*chunk, strict=True), strict=True)
            arrays = [pa.array(values, field.type) for field, values in columns]
            storage.write(plan_name(shards), to_parquet(pa.table(arrays, PLAN_SCHEMA)))
            rows, shards = rows + len(chunk), shards + 1
            if shards % 100 == 0:
                watch.say(f"found {rows:,} images so far")
        if not rows:
            raise DataError(f"there are no images in {', '.join(self.inputs)}")
        whole = replace(self, rows=rows, shards=shards)
        storage.write(PLAN_FILE, json.dumps(asdict(whole), indent=2).encode() + b"\n")
        return whole

    def require_same(self, begun: "ScoringPlan", place: str) -> None:
        for name, value in asdict(self).items():
            other = getattr(begun, name)
            if name not in ("rows", "shards") and other != value:
                raise SettingsError(
                    f"{place} was started with {name} {other!r:.80}, got {value!r:.80}; "
                    "give the same again to go on with it, or another folder"
                )


def plan_name(number: int) -> str:
    """Return the name of the file with the rows of a shard."""
    return f"_plan/{number:05d}.parquet"


def plan_rows(storage: Storage, number: int) -> list[InputRow]:
    """Return the rows of a shard."""
    try:
        table = pq.read_table(io.BytesIO(storage.read(plan_name(number))))
        is_whole = table.schema.equals(PLAN_SCHEMA)
        columns = [column.to_pylist() for column in table.columns]
    except (OSError, ValueError, pa.ArrowException):
        is_whole = False
    if not is_whole or any(table[name].null_count for name in ("id", "root", "file")):
        raise CheckpointError(
            f"{storage.address}: {plan_name(number)} is damaged; choose another folder"
        )
    return [InputRow(*values) for values in zip(*columns, strict=True)]


MANY = 1 << 12  # images, at which it pays to make a model faster first


@dataclass(frozen=True)
class ScoringTask:
    """Scores the rows of a shard and writes their answers."""

    out: str
    model: ModelFiles
    batch_size: int
    device: str = "cpu"
    decoders: int | None = None  # threads or processes
    decode: Literal["cpu", "cuda"] = "cpu"

    def start(self) -> Callable[[int], ShardRecord]:
        keep_freed_memory()
        with tempfile.TemporaryDirectory() as folder:
            scorer = load_model(self.model.unpack(Path(folder)), self.device).for_many(MANY)
        storage = storage_at(self.out)
        link = require_probabilities(scorer)
        names = list(scorer.space.names)
        facts = {"names": names, "link": link_to_spec(link), "model": self.model.hash}
        schema, caution = answer_schema(json.dumps(facts)), scorer.caution

        def work(shard: int) -> ShardRecord:
            rows = plan_rows(storage, shard)
            images = StoredImages(rows)
            with one_thread():
                scored_parts = score(
                    scorer,
                    images,
                    batch_size=self.batch_size,
                    workers=self.decoders,
                    decode=self.decode,
                )
                parts = list(scored_parts)
            if images.outage is not None:
                raise images.outage
            table = pa.concat_tables([answer_table(scored, schema) for scored in parts])
            if table.num_rows != len(rows):
                raise RuntimeError(f"{table.num_rows} answers for {len(rows)} rows")
            if caution is not None:  # it must be beside the probabilities
                said = pa.scalar(caution, pa.string())
                beside = pc.if_else(pc.is_valid(table["probs"]), said, None)
                table = table.append_column(CAUTION, beside)
            content = to_parquet(table)
            storage.write(shard_name(shard), content)
            failed = sum(len(scored.failures) for scored in parts)
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            return ShardRecord(shard_name(shard), len(rows), failed, len(content), digest)

        return work


def answer_schema(facts: str) -> pa.Schema:
    """Return the columns of a shard; pyarrow before 22 reads no null in lists of fixed size."""
    text, numbers = pa.string(), pa.list_(pa.float32())
    columns = {"path": text, "labels": WORDS, "probs": numbers, "error": text, "logits": numbers}
    return pa.schema(columns, metadata={"labelwise": facts})


def answer_table(part: Scored, schema: pa.Schema) -> pa.Table:
    """Return the answers of a batch and its failures in the order of the rows."""
    width = len(part.space)
    rows = np.concatenate([part.rows, [failure.row for failure in part.failures]]).astype(np.int64)
    order = pa.array(np.argsort(rows, kind="stable"))
    failed = len(part.failures)

    def numbers(values: Values) -> pa.Array:
        flat = pa.array(values.astype(np.float32).ravel())
        ends = pa.array(np.arange(len(values) + 1, dtype=np.int32) * width)
        lists = pa.ListArray.from_arrays(ends, flat)
        return pa.concat_arrays([lists, pa.nulls(failed, lists.type)])

    columns = [
        pa.array([*part.ids, *(failure.id for failure in part.failures)], pa.string()),
        pa.array([*map(list, part.labels), *[[]] * failed], WORDS),
        numbers(part.probs),
        pa.array([None] * len(part) + [failure.reason for failure in part.failures], pa.string()),
        numbers(part.logits),
    ]
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(cast, schema).take(order)


@dataclass(frozen=True)
class Outcome:
    """How many rows came out, how many of them without an answer, in how many shards."""

    rows: int
    failed: int
    shards: int
    resumed: int  # shards that were there already


def predict_shards(
    task: ScoringTask,
    inputs: Sequence[str],
    engine: Engine,
    *,
    shard_rows: int = 4096,
    watch: Watch | None = None,
) -> Outcome:
    """Score all rows of the inputs into shards; what an earlier run finished is kept."""
    watch = watch or Silent()
    storage = storage_at(task.out)
    asked = ScoringPlan(
        tuple(place if "://" in place else os.path.abspath(place) for place in inputs),
        task.model.hash,
        task.batch_size,
        shard_rows,
        decode=task.decode,
    )
    with ExitStack() as stack:
        if isinstance(storage, LocalStorage):
            storage.folder.mkdir(parents=True, exist_ok=True)
            busy = f"{storage.address} is being written by another process; wait until it ends"
            stack.enter_context(locked(storage.folder, busy))
        plan = ScoringPlan.load(storage)
        if plan is None:
            names = storage.files() if storage.is_folder() else iter(())
            odd = next((name for name in names if not name.startswith("_plan/")), None)
            if odd is not None:
                raise SettingsError(
                    f"{storage.address} holds other files, such as {odd}; give a new folder"
                )
            plan = asked.write(storage, watch)
        asked.require_same(plan, storage.address)
        manifest = Manifest(storage)
        missing = list(manifest.missing(plan.shards))
        resumed = len(manifest)
        if missing:
            watch.start("predicting", plan.rows, manifest.rows)
            stack.callback(watch.finish)
            try:
                for record in engine.run(task, missing):
                    manifest.add(record)
                    watch.advance(record.rows)
            finally:
                manifest.write()
        if manifest.rows != plan.rows:
            raise RuntimeError(f"{plan.rows} rows went in and {manifest.rows} came out")
        storage.write(SUCCESS_FILE, b"")
        return Outcome(manifest.rows, manifest.failed, plan.shards, resumed)


def decoders_per_worker(workers: int) -> int:
    """Return the decoding threads of each of so many workers on this machine."""
    return max(1, available_cores() // workers)


def to_parquet(table: pa.Table) -> bytes:
    """Return the file of a table; numbers that hardly repeat would only grow by a dictionary."""
    words = [f"{field.name}.list.element" for field in table.schema if field.type == WORDS]
    words += [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    stream = io.BytesIO()
    pq.write_table(
        table, stream, row_group_size=ROW_GROUP, compression="zstd", use_dictionary=words
    )
    return stream.getvalue()

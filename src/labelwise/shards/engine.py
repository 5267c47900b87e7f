"""Engine: carries a list of shards out, on this machine or a cluster, each exactly once.

A :class:`Task` travels to each worker once, makes what it needs there (a model), and is called with
one shard number after the other. When a worker dies its shard is given to another, :data:`ATTEMPTS`
times in all.
"""

import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from labelwise.base.storage import Storage
from labelwise.errors import CheckpointError, LabelwiseError

ATTEMPTS = 3  # workers that may die over one shard

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """What is done with each shard; it can be pickled, and so can its results."""

    def start(self) -> Callable[[int], T_co]:
        """Return the function from a shard's number to its result, once per worker."""


class Engine(Protocol):
    """Where shards are worked on."""

    def run(self, task: Task[T], shards: Iterable[int]) -> Iterator[T]:
        pass


class LostShardError(LabelwiseError):
    """A shard over which too many workers died."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        super().__init__(
            f"{ATTEMPTS} workers died over shard {shard}; they may have run out of memory: run the "
            "same command again with fewer --workers, or with a smaller --batch-size elsewhere"
        )


# A folder of scores:
#
#     _plan.json            the question: inputs, model, options, number of rows and shards
#     _plan/00000.parquet   the rows of each shard, fixed before the first is scored
#     part-00000.parquet    the answers of a shard, written atomically
#     _manifest.jsonl       a line per finished shard: shard, rows, failed, bytes, hash
#     _SUCCESS              empty; there when every row has come out
#
# The manifest is replaced every few seconds. A shard that was written later is scored again by the
# next run, into the same bytes.

MANIFEST_FILE = "_manifest.jsonl"
SUCCESS_FILE = "_SUCCESS"
Count = Annotated[int, Field(ge=0)]
SECONDS = 3.0  # between two writes of the manifest


@dataclass(frozen=True)
class ShardRecord:
    """A shard that is in its place: its rows, how many of them failed, and its SHA-256."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    shard: str
    rows: Count
    failed: Count
    bytes: Count
    hash: str

    def __post_init__(self) -> None:
        if self.failed > self.rows:
            raise ValueError(f"of {self.rows} rows {self.failed} cannot have failed")


RECORD = TypeAdapter(ShardRecord)


def shard_name(number: int) -> str:
    """Return the file name of a shard, such as ``part-00007.parquet``."""
    return f"part-{number:05d}.parquet"


class Manifest:
    """The finished shards of a folder; :meth:`add` keeps them in ``_manifest.jsonl``."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._records = storage, dict[str, ShardRecord]()
        lines = b"" if storage.size(MANIFEST_FILE) is None else storage.read(MANIFEST_FILE)
        for number, line in enumerate(lines.splitlines(), start=1):
            try:
                record = RECORD.validate_json(line, strict=True)
            except ValidationError:
                raise CheckpointError(
                    f"{storage.address}: line {number} of {MANIFEST_FILE} is not a finished shard; "
                    "delete the file to score every shard again"
                ) from None
            self._records[record.shard] = record
        self._written = time.monotonic()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self._records.values())

    @property
    def failed(self) -> int:
        return sum(record.failed for record in self._records.values())

    def records(self) -> list[ShardRecord]:
        return [self._records[name] for name in sorted(self._records)]

    def missing(self, shards: int) -> Iterator[int]:
        for number in range(shards):
            record = self._records.get(shard_name(number))
            if record is None or self._storage.size(record.shard) != record.bytes:
                self._records.pop(shard_name(number), None)
                yield number

    def add(self, record: ShardRecord) -> None:
        self._records[record.shard] = record
        if time.monotonic() - self._written >= SECONDS:
            self.write()

    def write(self) -> None:
        lines = [json.dumps(asdict(record)) + "\n" for record in self.records()]
        self._storage.write(MANIFEST_FILE, "".join(lines).encode())
        self._written = time.monotonic()


class LostWorkerError(Exception):
    """A worker that died, or could not be started."""


W = TypeVar("W")
H = TypeVar("H")
R = TypeVar("R", covariant=True)


class WorkerPool(Protocol[W, H, R]):
    """Workers, and handles of what they do: starting, or a shard."""

    def start(self) -> tuple[W, H]: ...

    def give(self, worker: W, shard: int) -> H: ...

    def wait(self, handles: list[H]) -> H | None:
        """Return a handle that is over, or None after a while."""

    def result(self, handle: H) -> R:
        """Return the result of a shard, or raise LostWorkerError or the worker's error."""

    def stop(self, worker: W) -> None: ...


def carried_out(
    pool: WorkerPool[W, H, T],
    workers: int,
    shards: Iterable[int],
    report: Callable[[list[int]], None] | None = None,
) -> Iterator[T]:
    """Yield the result of each shard; ``report`` gets those under way where nothing ends."""
    if workers < 1:
        raise ValueError(f"workers must be positive, got {workers}")
    left, deaths, unstarted = deque(shards), Counter[int](), 0
    idle: list[W] = []
    awaited: dict[H, tuple[W, int | None]] = {}  # a worker that starts has no shard

    def start() -> None:
        worker, handle = pool.start()
        awaited[handle] = worker, None

    try:
        for _ in range(min(workers, len(left))):
            start()
        while True:
            while idle and left:
                worker, shard = idle.pop(), left.popleft()
                awaited[pool.give(worker, shard)] = worker, shard
            running = [shard for _, shard in awaited.values() if shard is not None]
            if not left and not running:
                return  # whoever still starts, or waits for a core, has nothing to do
            handle = pool.wait(list(awaited))
            if handle is None:
                if report is not None:
                    report(running)
                continue
            worker, given = awaited[handle]
            try:
                result = pool.result(handle)
            except LostWorkerError as error:
                pool.stop(worker)
                del awaited[handle]
                if given is None:
                    unstarted += 1
                    if unstarted == ATTEMPTS * workers:
                        raise LabelwiseError(f"no worker could be started {error}") from None
                else:
                    deaths[given] += 1
                    if deaths[given] == ATTEMPTS:
                        raise LostShardError(given) from None
                    left.appendleft(given)
                start()
                continue
            del awaited[handle]
            idle.append(worker)
            if given is not None:
                yield result
    finally:  # else they would keep their cores
        for worker in (*idle, *(worker for worker, _ in awaited.values())):
            pool.stop(worker)


SPAWN = get_context("spawn")  # a fork of threads that hold locks could wait for ever


@dataclass(frozen=True)
class LocalEngine:
    """``workers`` processes on this machine; one worker is this process itself."""

    workers: int = 1

    def run(self, task: Task[T], shards: Iterable[int]) -> Iterator[T]:
        if self.workers == 1:
            return map(task.start(), shards)
        pool = _Processes[T](bytes(ForkingPickler.dumps(task)))
        return carried_out(pool, self.workers, shards)


Pipe: TypeAlias = "Connection[int, tuple[T, Exception | None, bool]]"


class _Processes(Generic[T]):
    """Processes known by their pipes.

    The task is sent once a process asks for it: multiprocessing itself would write it to a pipe
    that this process also reads from, and wait for ever if the other process died.
    """

    def __init__(self, task: bytes) -> None:
        self.task = task
        self.processes: dict[Pipe[T], BaseProcess] = {}

    def start(self) -> "tuple[Pipe[T], Pipe[T]]":
        ours, theirs = SPAWN.Pipe()
        self.processes[ours] = SPAWN.Process(target=_work, args=(theirs,), daemon=True)
        self.processes[ours].start()
        theirs.close()  # so that its death is seen as the end of the pipe
        return ours, ours

    def give(self, worker: "Pipe[T]", shard: int) -> "Pipe[T]":
        with suppress(OSError):  # it died while it was idle: the next look says so
            worker.send(shard)
        return worker

    def wait(self, handles: "list[Pipe[T]]") -> "Pipe[T]":
        ready = connection.wait(handles)
        return next(handle for handle in handles if handle in ready)

    def result(self, handle: "Pipe[T]") -> T:
        try:
            result, error, asks = handle.recv()
            if asks:
                handle.send_bytes(self.task)
        except (EOFError, OSError):
            raise LostWorkerError("on this machine") from None
        if error is not None:
            raise error
        return result

    def stop(self, worker: "Pipe[T]") -> None:
        process = self.processes.pop(worker)
        process.kill()
        process.join()
        worker.close()


def _work(theirs: "Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        theirs.send((None, None, True))
        task: Task[object] = theirs.recv()  # the bytes of the task, unpickled as all that is sent
        work = task.start()
        while True:
            theirs.send((work(theirs.recv()), None, False))
    except EOFError:
        return
    except Exception as error:
        theirs.send((None, error, False))


def _end_with_parent() -> None:
    """A command that is killed leaves no workers behind."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""The engine of one machine: worker processes, or this process alone."""

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from labelwise.shards.engine import ATTEMPTS, LostShardError, Task

T = TypeVar("T")
SPAWN = get_context("spawn")  # a fork of threads that hold locks could wait for ever


class LocalEngine:
    """``workers`` processes on this machine; one worker is this process itself."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers must be positive, got {workers}")
        self.workers = workers

    def run(self, task: Task[T], shards: Iterable[int]) -> Iterator[T]:
        """Yield the result of each shard when it is finished, in any order."""
        if self.workers == 1:
            yield from map(task.start(), shards)
            return
        lost: list[int] = []  # shards whose workers died
        deaths: Counter[int] = Counter()
        travelling = bytes(ForkingPickler.dumps(task))
        busy: dict[Any, tuple[_Worker, int]] = {}
        idle: list[_Worker] = []
        remaining = iter(shards)
        try:
            while True:
                while len(busy) < self.workers:
                    shard = next(chain(iter(lost), remaining), None)
                    if shard is None:
                        break
                    if shard in lost:
                        lost.remove(shard)
                    worker = idle.pop() if idle else _Worker(travelling)
                    worker.give(shard)
                    busy[worker.ours] = worker, shard
                if not busy:
                    return
                for ready in connection.wait(list(busy)):
                    worker, shard = busy.pop(ready)
                    try:
                        if not worker.has_task:
                            worker.begin(shard)
                            busy[ready] = worker, shard
                            continue
                        result, error = worker.answer()
                    except (EOFError, OSError):  # it died
                        worker.stop()
                        deaths[shard] += 1
                        if deaths[shard] == ATTEMPTS:
                            raise LostShardError(shard) from None
                        lost.append(shard)
                        continue
                    if error is not None:
                        worker.stop()
                        raise error
                    idle.append(worker)
                    yield result
        finally:
            for worker in (*idle, *(one for one, _ in busy.values())):
                worker.stop()


class _Worker:
    """A process that is given one shard at a time.

    The task, which may be large, is sent once the process asks for it: multiprocessing itself would
    write it to a pipe that this process also reads from, and wait for ever if the other one died.
    """

    def __init__(self, task: bytes) -> None:
        self.ours, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its death is seen as the end of the pipe
        self._task, self.has_task = task, False

    def begin(self, shard: int) -> None:
        """Send the task and the first shard to a process that asks for them."""
        self.ours.recv()
        self.ours.send_bytes(self._task)
        self.has_task = True
        self.ours.send(shard)

    def give(self, shard: int) -> None:
        """Send a shard; the first one goes with the task."""
        if self.has_task:
            with suppress(OSError):  # it died while it was idle: answer() will say so
                self.ours.send(shard)

    def answer(self) -> tuple[Any, Exception | None]:
        """Return the result and what was raised instead, if anything."""
        result, error = self.ours.recv()
        return result, error

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.ours.close()


def _work(theirs: "Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        theirs.send("ready")
        task: Task[Any] = theirs.recv()  # the bytes of the task, unpickled as all that is sent
        work = task.start()
        while True:
            theirs.send((work(theirs.recv()), None))
    except EOFError:
        return
    except Exception as error:
        theirs.send((None, error))


def _end_with_parent() -> None:
    """A command that is killed leaves no workers behind."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

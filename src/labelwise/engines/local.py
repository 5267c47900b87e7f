"""The engine of one machine: worker processes, or this process alone."""

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from labelwise.engines.engine import ATTEMPTS, LostShardError, Task
from labelwise.engines.manifest import ShardRecord

__all__ = ["LocalEngine"]

SPAWN = get_context("spawn")  # a fork of threads that hold locks could wait for ever


class LocalEngine:
    """``workers`` processes on this machine; one worker is this process itself."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers must be positive, got {workers}")
        self.workers = workers

    def run(self, task: Task, shards: Iterable[int]) -> Iterator[ShardRecord]:
        """Yield the record of each shard when it is in its place, in any order."""
        if self.workers == 1:
            yield from map(task.start(), shards)
            return
        lost: list[int] = []  # shards whose workers died
        deaths: Counter[int] = Counter()
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
                    worker = idle.pop() if idle else _Worker(task)
                    worker.give(shard)
                    busy[worker.ours] = worker, shard
                if not busy:
                    return
                for ready in connection.wait(list(busy)):
                    worker, shard = busy.pop(ready)
                    answer = worker.answer()
                    if isinstance(answer, ShardRecord):
                        idle.append(worker)
                        yield answer
                    elif answer is not None:
                        worker.stop()
                        raise answer
                    else:
                        worker.stop()
                        deaths[shard] += 1
                        if deaths[shard] == ATTEMPTS:
                            raise LostShardError(shard)
                        lost.append(shard)
        finally:
            for worker in (*idle, *(one for one, _ in busy.values())):
                worker.stop()


class _Worker:
    """A process that is given one shard at a time."""

    def __init__(self, task: Task) -> None:
        self.ours, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(task, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that its death is seen as the end of the pipe

    def give(self, shard: int) -> None:
        with suppress(OSError):  # it died while it was idle: answer() will say so
            self.ours.send(shard)

    def answer(self) -> ShardRecord | Exception | None:
        """Return the record, or what was raised, or None if the process died."""
        try:
            answer: ShardRecord | Exception = self.ours.recv()
            return answer
        except (EOFError, OSError):
            return None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.ours.close()


def _work(task: Task, theirs: "Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work = task.start()
        while True:
            theirs.send(work(theirs.recv()))
    except EOFError:
        return
    except Exception as error:
        theirs.send(error)


def _end_with_parent() -> None:
    """A command that is killed leaves no workers behind."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Engine: carries a list of shards out, on this machine or a cluster, each exactly once.

A :class:`Task` says what is done with a shard; it travels to each worker once, makes there what
it needs (a model), and is then called with one shard number after the other. An engine knows
nothing of pictures or files: it decides where tasks run, how many shards are under way, and what
happens when a worker dies. A worker that dies leaves nothing half-done, since a shard is written
whole or not at all; its shard is given to another, :data:`ATTEMPTS` times in all.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from labelwise.engines.manifest import ShardRecord
from labelwise.errors import LabelwiseError

__all__ = ["ATTEMPTS", "Engine", "LostShardError", "Task", "Work"]

ATTEMPTS = 3  # workers that may die over one shard

Work = Callable[[int], ShardRecord]


class Task(Protocol):
    """What is done with each shard; it can be pickled."""

    def start(self) -> Work:
        """Return the function from a shard's number to its record, once per worker."""


class Engine(Protocol):
    """Where shards are worked on."""

    def run(self, task: Task, shards: Iterable[int]) -> Iterator[ShardRecord]:
        """Yield the record of each shard when it is in its place, in any order."""


class LostShardError(LabelwiseError):
    """A shard over which too many workers died."""

    def __init__(self, shard: int) -> None:
        super().__init__(
            f"{ATTEMPTS} workers died over shard {shard}; they may have run out of memory: run the "
            "same command again with fewer --workers, or with a smaller --batch-size elsewhere"
        )

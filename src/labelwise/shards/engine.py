"""Engine: carries a list of shards out, on this machine or a cluster, each exactly once.

A :class:`Task` says what is done with a shard; it travels to each worker once, makes there what
it needs (a model), and is then called with one shard number after the other. What it returns goes
to whoever runs the engine. An engine knows nothing of pictures or files: it decides where tasks
run, how many shards are under way, and what happens when a worker dies. A worker that dies leaves
nothing half-done, since a shard is written whole or not at all; its shard is given to another,
:data:`ATTEMPTS` times in all.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from labelwise.errors import LabelwiseError

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
        """Yield the result of each shard when it is finished, in any order."""


class LostShardError(LabelwiseError):
    """A shard over which too many workers died."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        super().__init__(
            f"{ATTEMPTS} workers died over shard {shard}; they may have run out of memory: run the "
            "same command again with fewer --workers, or with a smaller --batch-size elsewhere"
        )

"""The engine of a Ray cluster: actors that each hold the model, spread over the nodes.

It joins the cluster of ``RAY_ADDRESS``, or starts one on this machine. Shard numbers and results
travel; rows are read from the plan and pictures decoded where they are scored. The task, with the
model's files in it, is put into the object store once, so each node fetches it once. The folders
of inputs and answers must be the same place for every node: object storage, or a shared disk.

A worker or a node that dies gives its shard to another worker. When the driver dies its actors
end with it, and the next run goes on by the manifest, with this engine or the local one.
"""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.pictures import ImageSource, Transform
from labelwise.pictures.batches import resized_inputs
from labelwise.pictures.loading import Failure, Inputs, sent
from labelwise.pictures.prefetch import started_ahead
from labelwise.shards.engine import ATTEMPTS, LostShardError, Task
from labelwise.shards.inputs import InputRow, StoredImages
from labelwise.system.storage import StorageError

# Pictures that are decoded on any core of a Ray cluster, for workers that only compute.
#
#     worker --rows--> task on a free core: read, decode, resize --uint8--> worker: network
#
# So nodes with many cores feed nodes with GPUs. A batch is a task of its own and belongs to no
# node: a node that joins during a run is given the next ones, and what a node that leaves had under
# way is decoded again elsewhere. Pixels, batches and so the bytes of a shard are those of a worker
# that decodes by itself. What travels to a worker is a picture at the size of the network's input
# (150 kB at 224 pixels).


@dataclass(frozen=True)
class RayDecoding:
    """Reads the batches of a worker by tasks of a cluster, ``ahead`` of them at a time."""

    ahead: int

    def __call__(
        self,
        images: ImageSource,
        transform: Transform,
        batches: Sequence[NDArray[np.int64]],
        device: torch.device,
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows on a device, in order."""
        if not isinstance(images, StoredImages) or not transform.is_plain:
            raise TypeError("only stored pictures and a Transform travel to other nodes")
        ray = require_ray()
        decode = ray.remote(num_cpus=1, max_retries=ATTEMPTS, scheduling_strategy=SCHEDULING)(
            _decoded
        )

        def start(batch: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
            return batch, decode.remote([images.rows[row] for row in batch.tolist()], transform)

        for batch, waiting in started_ahead(batches, start, self.ahead):
            try:
                good, pixels, failed, outage = ray.get(waiting)
            except (*worker_losses(ray), ray.exceptions.WorkerCrashedError):
                names = ", ".join(images.ids[int(row)] for row in batch[:3])
                raise LabelwiseError(
                    f"{ATTEMPTS + 1} processes died that decoded {names} or a picture beside them; "
                    "they may have run out of memory"
                ) from None
            if outage is not None:
                images.outage = outage
                raise outage
            values = torch.tensor(pixels)  # Ray's own memory may not be written to
            values = values.pin_memory() if device.type == "cuda" else values
            failures = [
                Failure(int(batch[at]), images.ids[int(batch[at])], reason) for at, reason in failed
            ]
            yield Inputs(batch[good], sent(values.permute(0, 3, 1, 2), device), failures)


def _decoded(
    rows: list[InputRow], transform: Transform
) -> tuple[NDArray[np.int64], NDArray[Any], list[tuple[int, str]], StorageError | None]:
    """Return the places that could be read, their pixels (n, size, size, C), and the others."""
    images = StoredImages(rows)
    places = np.arange(len(rows))
    (found,) = resized_inputs(images, transform, [places], 1, torch.device("cpu"))
    pixels = np.ascontiguousarray(found.values.permute(0, 2, 3, 1).numpy())
    return found.rows, pixels, [(one.row, one.reason) for one in found.failures], images.outage


T = TypeVar("T")
OBJECT_STORE = 256 << 20  # bytes; all that Ray holds for us is a model
SCHEDULING = "SPREAD"  # of workers over the nodes
REPORT_SECONDS = 30.0  # between two looks at shards that are under way


def require_ray() -> Any:
    """Return the module ``ray``, told to send no statistics; or say how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SettingsError("--engine ray needs Ray: pip install 'labelwise[ray]'") from None
    return ray


def worker_needs(gpus: float, cores: int = 1) -> dict[str, Any]:
    """Return what Ray is told of a worker's place: one core, and perhaps GPUs of its own."""
    return {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": SCHEDULING}


def worker_losses(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors by which Ray says that a worker, or a result of its, is not there."""
    found = ray.exceptions
    return found.RayActorError, found.ActorUnschedulableError, found.ObjectLostError


class RayEngine:
    """``workers`` actors on a Ray cluster; each takes one core, and ``gpus`` of its own.

    With ``decoders`` the cores are left to those: tasks that decode for the workers, on any node,
    of which a cluster that is started here runs so many at once. ``report`` is told now and then,
    while nothing finishes, which shards are under way.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        gpus: float = 0,
        decoders: int = 0,
        report: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        if workers < 1 or gpus < 0:
            raise ValueError(f"workers must be positive, gpus not negative, got {workers}, {gpus}")
        self.workers, self.gpus, self.report = workers, gpus, report
        self.decoders = decoders

    def run(self, task: Task[T], shards: Iterable[int]) -> Iterator[T]:
        """Yield the result of each shard when it is finished, in any order."""
        ray = require_ray()
        with joined(self.decoders or self.workers):
            there = int(ray.cluster_resources().get("GPU", 0))
            if there < self.gpus:  # workers would wait for one for ever
                raise SettingsError(
                    f"each worker needs {self.gpus:g} GPU, the cluster has {there}: give "
                    "--device cpu (runs that are trained: --set hardware.accelerator=cpu), "
                    "or join one that has some by RAY_ADDRESS"
                )
            cores = 0 if self.decoders else 1  # or workers could take all that decoders wait for
            actor = ray.remote(**worker_needs(self.gpus, cores))(_Worker)
            given = ray.put(task)
            lost: list[int] = []
            deaths: Counter[int] = Counter()
            idle: list[Any] = []
            # What is waited for: a worker that starts (its shard is None), or a shard.
            awaited: dict[Any, tuple[Any, int | None]] = {}
            remaining, unstarted = iter(shards), 0

            def start_worker() -> None:
                worker = actor.remote(given)
                awaited[worker.ready.remote()] = worker, None

            for _ in range(self.workers):
                start_worker()
            try:
                while True:
                    while idle:
                        shard = next(chain(_taken(lost), remaining), None)
                        if shard is None:
                            break
                        worker = idle.pop()
                        awaited[worker.run.remote(shard)] = worker, shard
                    if idle and all(shard is None for _, shard in awaited.values()):
                        return  # whoever still starts, or waits for a core, has nothing to do
                    done, _ = ray.wait(list(awaited), num_returns=1, timeout=REPORT_SECONDS)
                    if not done:
                        if self.report is not None:
                            running = (shard for _, shard in awaited.values())
                            self.report([shard for shard in running if shard is not None])
                        continue
                    ready = done[0]
                    worker, shard = awaited.pop(ready)
                    try:
                        result: T = ray.get(ready)
                    except worker_losses(ray) as error:
                        if shard is None:
                            unstarted += 1
                            if unstarted == ATTEMPTS * self.workers:
                                raise LabelwiseError(_why_unstarted(error)) from None
                        else:
                            deaths[shard] += 1
                            if deaths[shard] == ATTEMPTS:
                                raise LostShardError(shard) from None
                            lost.append(shard)
                        start_worker()
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    else:
                        idle.append(worker)
                        if shard is not None:
                            yield result
            finally:  # else they would keep their cores until the driver ends
                for worker in (*idle, *(one for one, _ in awaited.values())):
                    ray.kill(worker)


class _Worker:
    """What an actor does: makes the work of the task once, and one shard after the other."""

    def __init__(self, task: Task[Any]) -> None:
        self._work = task.start()

    def ready(self) -> None:
        """Answer once there is a place to run and the model is loaded."""

    def run(self, shard: int) -> Any:
        return self._work(shard)


def worker_environment() -> dict[str, Any]:
    """Return Ray's runtime environment of workers that find what this process finds.

    They import this very package, also where it is not installed. Ray starts them by a line of
    shell in which it forgets to quote the interpreter.
    """
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    environment: dict[str, Any] = {"env_vars": {"PYTHONPATH": path}}
    if shlex.quote(sys.executable) != sys.executable and not os.environ.get("RAY_ADDRESS"):
        environment["py_executable"] = shlex.quote(sys.executable)
    return environment


@contextmanager
def joined(workers: int) -> Iterator[None]:
    """Be part of a cluster inside the block: one that is there, or one of this machine."""
    ray = require_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "error",
        "runtime_env": worker_environment(),
    }
    if not os.environ.get("RAY_ADDRESS"):
        options |= {
            "address": "local",  # else Ray joins whatever was started last on this machine
            "num_cpus": workers,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
        }
    ray.init(**options)
    try:
        yield
    finally:
        ray.shutdown()


def _taken(shards: list[int]) -> Iterator[int]:
    while shards:
        yield shards.pop()


def _why_unstarted(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"no worker could be started on the cluster ({lines[-1][:200] if lines else 'unknown'})"

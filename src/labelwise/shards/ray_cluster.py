"""The engine of a Ray cluster: actors that each hold the model, spread over the nodes.

It joins the cluster of ``RAY_ADDRESS``, or starts one on this machine. Folders of inputs and
answers must be the same place for every node. The shard of a worker that dies is given to another.
"""

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from labelwise.base.progress import Watch
from labelwise.base.storage import StorageError
from labelwise.errors import LabelwiseError, SettingsError, TrainingError
from labelwise.models.run_folder import RunFolder
from labelwise.shards.engine import ATTEMPTS, LostWorkerError, Task, carried_out
from labelwise.training.run import Run, train
from labelwise.training.settings import Settings

if TYPE_CHECKING:  # workers that score with an eye have no torch
    pass

# One run trained by several processes of a Ray cluster, as by torchrun. Each worker is an actor
# with one core (and one GPU, where the cluster has some). When one dies, as many as there is room
# for then are started again from the newest checkpoint.

START_SECONDS = 600.0  # that workers may take to start where there is room for them
ROOM_SECONDS = 180.0  # that missing nodes have to join the cluster, before fewer workers are tried
FAILURE_SECONDS = 60.0  # that the others have to end by themselves after the first failure
STOP_SECONDS = 600.0  # that a checkpoint may take when the user stops the command

Place = str | Path


def _train(settings: Settings, place: Place, fresh: bool) -> None:
    with RunFolder.working_in(place) as run:
        train(settings, run, fresh=fresh)


@dataclass(frozen=True)
class RayTraining:
    """Trains a run by ``workers`` processes of a Ray cluster; ``run`` is what each of them does."""

    workers: int
    run: Callable[[Settings, Place, bool], None] = _train

    def __call__(
        self, settings: Settings, run: RunFolder, watch: Watch, *, fresh: bool
    ) -> Run | None:
        """Train to the end and return the run as ``train`` does, or raise a worker's error."""
        _check(settings, self.workers)
        finished = not fresh and _is_finished(run)
        if not finished:
            self._train(settings, run, watch, fresh=fresh)
        # This machine only reads the finished run, whatever devices the workers had.
        hardware = settings.hardware.model_copy(update={"accelerator": "auto"})
        read = train(settings.model_copy(update={"hardware": hardware}), run, watch=watch)
        return read and replace(read, was_finished=finished)

    def _train(self, settings: Settings, run: RunFolder, watch: Watch, *, fresh: bool) -> None:
        from labelwise.training import checkpoint

        ray = require_ray()
        with joined(self.workers):
            wanted, there = settings.hardware.accelerator, ray.cluster_resources().get("GPU", 0)
            gpus = 1.0 if wanted == "cuda" or (wanted == "auto" and there > 0) else 0.0
            failures, before = 0, -1
            while True:
                group = _Group.started(ray, self, settings, gpus, first=failures == 0)
                if len(group.actors) < self.workers:
                    watch.say(f"the cluster has room for {len(group.actors)} workers now")
                try:
                    if group.train(settings, run, fresh, watch):
                        return
                finally:
                    group.end(run)
                fresh = False
                run.fetch(tensors=False)
                step = int(checkpoint.latest_facts(run.checkpoint).get("step", 0))
                failures, before = 1 if step > before else failures + 1, step
                if failures == ATTEMPTS:
                    raise LabelwiseError(
                        f"{ATTEMPTS} times a worker died before the run in {run.address} got "
                        "further; it may need more memory than a node has: run the same command "
                        "again with a smaller --batch-size, or more --workers"
                    )
                watch.say("a worker died; starting all again from the newest checkpoint")


def _check(settings: Settings, workers: int) -> None:
    if workers < 1:
        raise SettingsError(f"workers must be positive, got {workers}")
    if settings.effort in ("good", "best"):
        raise SettingsError(
            f"--engine ray trains one model, and effort {settings.effort} several; leave one out"
        )
    if settings.features is not None:
        raise SettingsError("heads on --features are solved in one process; leave out --engine ray")
    if settings.hardware.devices > 1:
        raise SettingsError("--devices is for --engine local; with ray give --workers alone")
    if settings.batch_size % workers:
        raise SettingsError(
            f"batch_size must be a multiple of {workers} workers, got {settings.batch_size}"
        )


def _is_finished(run: RunFolder) -> bool:
    run.fetch(tensors=False)
    return run.is_finished


class _Rank:
    def place(self) -> tuple[str, int, str, int]:
        """Return the node's address, a free port of it, its id, and the process's number."""
        ray = require_ray()
        with socket.socket() as free:
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        node = ray.get_runtime_context().get_node_id()
        return ray.util.get_node_ip_address(), port, node, os.getpid()

    def train(
        self,
        run: Callable[[Settings, Place, bool], None],
        settings: Settings,
        place: Place,
        fresh: bool,
        environment: dict[str, str],
        home: str,
    ) -> None:
        os.environ.update(environment)
        try:
            os.chdir(home)
        except OSError:
            what = f"the folder {home}, in which the command was given"
            raise SettingsError(f"every node must have {what}") from None
        with suppress(KeyboardInterrupt):  # asked to stop: whoever asked knows
            run(settings, place, fresh)


T = TypeVar("T")
Actor: TypeAlias = Any  # of Ray, and so are references to results
Reference: TypeAlias = Any


@dataclass(frozen=True)
class _Group:
    """The workers of one attempt, and where each of them is."""

    ray: ModuleType
    run: Callable[[Settings, Place, bool], None]
    actors: Sequence[Actor]
    places: Sequence[tuple[str, int, str, int]]

    @classmethod
    def started(
        cls, ray: ModuleType, training: RayTraining, settings: Settings, gpus: float, *, first: bool
    ) -> "_Group":
        remote, seconds = ray.remote(**worker_needs(gpus))(_Rank), ROOM_SECONDS
        for count in range(training.workers, 0, -1):
            if settings.batch_size % count:
                continue
            actors = [remote.remote() for _ in range(count)]
            waiting = [actor.place.remote() for actor in actors]
            there = ray.cluster_resources()  # what its nodes hold when they have nothing else
            room = there.get("GPU", 0.0) / gpus if gpus else there.get("CPU", 0)
            seconds = START_SECONDS if count <= min(room, there.get("CPU", 0)) else ROOM_SECONDS
            ready, _ = ray.wait(waiting, num_returns=count, timeout=seconds)
            with suppress(*worker_losses(ray)):
                if len(ready) == count:
                    return cls(ray, training.run, actors, ray.get(waiting))
            for actor in actors:
                ray.kill(actor)
            if first:
                break
        there = ray.cluster_resources()
        raise LabelwiseError(
            f"{training.workers} workers were not started in {seconds:.0f} seconds; the "
            f"cluster has {there.get('CPU', 0):.0f} cores and {there.get('GPU', 0):.0f} GPUs: "
            "give fewer --workers"
        )

    def train(self, settings: Settings, run: RunFolder, fresh: bool, watch: Watch) -> bool:
        """Return whether the run came to its end; False if a worker died, or was stopped."""
        place = run.path.absolute() if run.mirror is None else run.mirror.storage.place
        address, port, *_ = self.places[0]
        shared = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(self.actors)),
            "LOCAL_WORLD_SIZE": "1",  # each worker sees one device, as on a node of its own
            "LOCAL_RANK": "0",
            "TORCHELASTIC_RUN_ID": "ray",
        }
        given, home = (self.run, settings, place, fresh), os.getcwd()
        ranks = ({"RANK": str(rank), "GROUP_RANK": str(rank)} for rank in range(len(self.actors)))
        pending = [
            actor.train.remote(*given, shared | rank, home)
            for actor, rank in zip(self.actors, ranks, strict=True)
        ]
        try:
            self._wait(pending, settings, run, watch)
        except KeyboardInterrupt:
            self._stop(pending)
            raise
        ready, _ = self.ray.wait(pending, num_returns=len(pending), timeout=0)
        errors = [error for error in map(self._error, ready) if error is not None]
        task_error = self.ray.exceptions.RayTaskError
        raised = [error.cause for error in errors if isinstance(error, task_error)]
        if len(raised) < len(errors):
            return False
        told = [error for error in raised if isinstance(error, LabelwiseError)]
        if raised:
            raise told[0] if told else TrainingError(f"a worker stopped: {raised[0]}")
        return _is_finished(run)

    def _wait(
        self, pending: list[Reference], settings: Settings, run: RunFolder, watch: Watch
    ) -> None:
        left, shown, name = pending, "", f"{run.path.parent.name}, {run.path.name}"
        while left:
            done, left = self.ray.wait(left, num_returns=1, timeout=REPORT_SECONDS)
            with suppress(StorageError):  # it is only told
                run.fetch(tensors=False)
            text = run.journal.progress(settings.recipe.epochs)
            if text and text != shown and not done:
                shown = text
                watch.say(f"{name}: {text}")
            if done and self._error(done[0]) is not None:
                if left:
                    self.ray.wait(left, num_returns=len(left), timeout=FAILURE_SECONDS)
                return

    def _error(self, reference: Reference) -> Exception | None:
        try:
            self.ray.get(reference)
        except Exception as error:
            return error
        return None

    def _stop(self, pending: Sequence[Reference]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        def end(process: int) -> None:
            os.kill(process, signal.SIGTERM)

        *_, node, process = self.places[0]
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ask = self.ray.remote(num_cpus=0, scheduling_strategy=there)(end)
        with suppress(Exception):  # whatever fails here, the run goes on from its checkpoint
            self.ray.get(ask.remote(process), timeout=STOP_SECONDS)
            self.ray.wait(pending, num_returns=len(pending), timeout=STOP_SECONDS)

    def end(self, run: RunFolder) -> None:
        """End the workers; the next ones need their cores, and the lock of the folder."""
        for actor in self.actors:
            self.ray.kill(actor)
        deadline = time.monotonic() + STOP_SECONDS
        while run.mirror is None and run.path.is_dir() and time.monotonic() < deadline:
            try:
                with run.lock():
                    return
            except LabelwiseError:
                time.sleep(0.1)


OBJECT_STORE = 256 << 20  # bytes; all that Ray holds for us is a model
SCHEDULING = "SPREAD"  # of workers over the nodes
REPORT_SECONDS = 30.0  # between two looks at shards that are under way


def require_ray() -> ModuleType:
    """Return the module ``ray``, which sends no statistics, or say how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SettingsError("--engine ray needs Ray: pip install 'labelwise[ray]'") from None
    return ray


def worker_needs(gpus: float) -> dict[str, object]:
    """Return what a worker takes of a node."""
    return {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": SCHEDULING}


def worker_losses(ray: ModuleType) -> tuple[type[Exception], ...]:
    """Return Ray's errors for a worker, or a result of it, that is not there."""
    exceptions = ray.exceptions
    return exceptions.RayActorError, exceptions.ActorUnschedulableError, exceptions.ObjectLostError


@dataclass(frozen=True)
class RayEngine:
    """``workers`` actors on a Ray cluster; each takes one core, and ``gpus`` of its own.

    ``report`` gets the shards under way now and then, while nothing finishes.
    """

    workers: int = 1
    gpus: float = 0
    report: Callable[[Sequence[int]], None] | None = None

    def run(self, task: Task[T], shards: Iterable[int]) -> Iterator[T]:
        ray = require_ray()
        with joined(self.workers):
            there = int(ray.cluster_resources().get("GPU", 0))
            if there < self.gpus:  # workers would wait for one for ever
                raise SettingsError(
                    f"each worker needs {self.gpus:g} GPU, the cluster has {there}: give "
                    "--device cpu (runs that are trained: --set hardware.accelerator=cpu), "
                    "or join one that has some by RAY_ADDRESS"
                )
            actor = ray.remote(**worker_needs(self.gpus))(_Worker)
            pool = _Actors[T](ray, actor, ray.put(task))
            yield from carried_out(pool, self.workers, shards, self.report)


@dataclass(frozen=True)
class _Actors(Generic[T]):
    ray: ModuleType
    actor: Actor  # the class of a worker
    task: Reference

    def start(self) -> tuple[Actor, Reference]:
        worker = self.actor.remote(self.task)
        return worker, worker.ready.remote()

    def give(self, worker: Actor, shard: int) -> Reference:
        return worker.run.remote(shard)

    def wait(self, handles: list[Reference]) -> Reference | None:
        done, _ = self.ray.wait(handles, num_returns=1, timeout=REPORT_SECONDS)
        return done[0] if done else None

    def result(self, handle: Reference) -> T:
        try:
            result: T = self.ray.get(handle)
            return result
        except worker_losses(self.ray) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            why = lines[-1][:200] if lines else "unknown"
            raise LostWorkerError(f"on the cluster ({why})") from None
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def stop(self, worker: Actor) -> None:
        self.ray.kill(worker)


class _Worker(Generic[T]):
    def __init__(self, task: Task[T]) -> None:
        self._work = task.start()

    def ready(self) -> None:
        pass

    def run(self, shard: int) -> T:
        return self._work(shard)


def worker_environment() -> dict[str, object]:
    """Return Ray's runtime environment of workers that import what this process does.

    Ray starts them by a line of shell in which it does not quote the interpreter.
    """
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    environment: dict[str, object] = {"env_vars": {"PYTHONPATH": path}}
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
    own = {
        "address": "local",  # else Ray joins whatever was started last on this machine
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE,
    }
    options = {} if os.environ.get("RAY_ADDRESS") else own
    environment = worker_environment()
    ray.init(log_to_driver=False, logging_level="error", runtime_env=environment, **options)
    try:
        yield
    finally:
        ray.shutdown()

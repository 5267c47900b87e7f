"""One run trained by several processes of a Ray cluster, as torchrun's would do it.

Each worker is an actor with one core (and one GPU, where the cluster has some): a process that
finds the others by the environment variables of torchrun and trains its share of every batch. When
a worker or its node dies, all are started anew and go on from the newest checkpoint, as many as
the cluster then has room for. Folder, data and weights must be the same place for every node; a
run that is kept in a bucket is fetched by the first worker and followed by this process.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.errors import LabelwiseError, SettingsError, TrainingError
from labelwise.models.run_folder import RunFolder
from labelwise.shards.engine import ATTEMPTS
from labelwise.shards.ray_cluster import (
    REPORT_SECONDS,
    joined,
    require_ray,
    worker_losses,
    worker_needs,
)
from labelwise.system.progress import Watch
from labelwise.system.storage import StorageError
from labelwise.training import checkpoint
from labelwise.training.run import Run, train
from labelwise.training.settings import Settings

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
        ray = require_ray()
        with joined(self.workers):
            gpus = 1.0 if _uses_gpus(ray, settings) else 0.0
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
                step = _step(run)
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


def _uses_gpus(ray: Any, settings: Settings) -> bool:
    wanted = settings.hardware.accelerator
    return wanted == "cuda" or (wanted == "auto" and ray.cluster_resources().get("GPU", 0) > 0)


def _room(ray: Any, gpus: float) -> int:
    """Return how many workers the nodes of the cluster can hold when they have nothing else."""
    there = ray.cluster_resources()
    cores, devices = int(there.get("CPU", 0)), there.get("GPU", 0.0)
    return min(cores, int(devices / gpus)) if gpus else cores


def _is_finished(run: RunFolder) -> bool:
    run.fetch(tensors=False)
    return run.is_finished


def _step(run: RunFolder) -> int:
    """Return the step of the newest checkpoint, 0 before the first."""
    run.fetch(tensors=False)
    return int(checkpoint.latest_facts(run.checkpoint).get("step", 0))


def _ask_to_stop(process: int) -> None:
    os.kill(process, signal.SIGTERM)


class _Rank:
    """What an actor does: one process of the run."""

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
            raise SettingsError(
                f"every node must have the folder {home}, in which the command was given"
            ) from None
        with suppress(KeyboardInterrupt):  # asked to stop: whoever asked knows
            run(settings, place, fresh)


@dataclass(frozen=True)
class _Group:
    """The workers of one attempt, and where each of them is."""

    ray: Any
    run: Callable[[Settings, Place, bool], None]
    actors: Sequence[Any]
    places: Sequence[tuple[str, int, str, int]]

    @classmethod
    def started(
        cls, ray: Any, training: RayTraining, settings: Settings, gpus: float, *, first: bool
    ) -> "_Group":
        """Start as many workers as were asked for; after a failure, as there is room for."""
        remote, seconds = ray.remote(**worker_needs(gpus))(_Rank), ROOM_SECONDS
        for count in range(training.workers, 0, -1):
            if settings.batch_size % count:
                continue
            actors = [remote.remote() for _ in range(count)]
            waiting = [actor.place.remote() for actor in actors]
            seconds = START_SECONDS if count <= _room(ray, gpus) else ROOM_SECONDS
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
        pending = [
            actor.train.remote(
                self.run,
                settings,
                place,
                fresh,
                shared | {"RANK": str(rank), "GROUP_RANK": str(rank)},
                os.getcwd(),
            )
            for rank, actor in enumerate(self.actors)
        ]
        try:
            self._wait(pending, settings, run, watch)
        except KeyboardInterrupt:
            self._stop(pending)
            raise
        died, errors = self._outcomes(pending)
        if died:
            return False
        told = [error for error in errors if isinstance(error, LabelwiseError)]
        if errors:
            raise told[0] if told else TrainingError(f"a worker stopped: {errors[0]}")
        return _is_finished(run)

    def _wait(
        self, pending: Sequence[Any], settings: Settings, run: RunFolder, watch: Watch
    ) -> None:
        """Wait until all have ended, or a little longer than the first that failed."""
        left, shown, name = list(pending), "", f"{run.path.parent.name}, {run.path.name}"
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

    def _error(self, reference: Any) -> Exception | None:
        try:
            self.ray.get(reference)
        except Exception as error:
            return error
        return None

    def _outcomes(self, pending: Sequence[Any]) -> tuple[bool, list[Exception]]:
        """Return whether a worker died, and what the others raised."""
        ready, _ = self.ray.wait(pending, num_returns=len(pending), timeout=0)
        found = [error for error in map(self._error, ready) if error is not None]
        task_error = self.ray.exceptions.RayTaskError
        raised = [error.cause for error in found if isinstance(error, task_error)]
        return len(raised) < len(found), raised

    def _stop(self, pending: Sequence[Any]) -> None:
        """Ask the first worker to stop; all do, after a checkpoint."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        *_, node, process = self.places[0]
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ask = self.ray.remote(num_cpus=0, scheduling_strategy=there)(_ask_to_stop)
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

"""Runs: training runs carried out one after the other or side by side, and their figures.

A finished run is recognised by its folder and not repeated; a killed one goes on. Side by side
each worker process keeps its table between runs. On one GPU small runs fill each other's gaps; on a
CPU they only share the cores.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Thread
from time import perf_counter

import torch

from labelwise.data import LabelTable
from labelwise.experiments.memory import peak_memory, start_peak_memory
from labelwise.experiments.outcome import Outcome
from labelwise.experiments.sources import Frozen, open_table
from labelwise.files import replacing
from labelwise.training.progress import OfMany, Watch
from labelwise.training.run import train
from labelwise.training.settings import Settings

__all__ = [
    "FigureFunction",
    "Job",
    "carry_out",
    "default_workers",
    "figures_of",
]

Figures = dict[str, float]
FigureFunction = Callable[[Outcome], Figures]
COST = "cost.json"
LOOK_SECONDS = 30.0  # between two words on how far runs side by side are


@dataclass(frozen=True)
class Job:
    """One run: its settings, its folder, and what is done to its table first.

    ``hold_out`` takes validation rows from train; ``one_positive`` leaves one known label to each
    training image; ``frozen`` puts features in the place of images.
    """

    settings: Settings
    folder: Path
    hold_out: bool = True
    one_positive: bool = False
    frozen: Frozen | None = None


def carry_out(
    jobs: Iterable[Job],
    *,
    workers: int = 1,
    table: LabelTable | None = None,
    watch: Watch | None = None,
) -> Iterator[Job]:
    """Carry out all jobs and yield each as it finishes; ``table`` spares reading the data.

    ``watch`` follows a run that has the machine to itself, and is told now and then how far runs
    side by side are.
    """
    waiting = list(jobs)
    if workers == 1 or len(waiting) < 2 or table is not None:
        for job in waiting:
            yield _carry_out(job, table, watch)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as pool:
        pending = {pool.submit(_carry_out, job, None): job for job in waiting}
        try:
            while pending:
                done, _ = wait(pending, LOOK_SECONDS, FIRST_COMPLETED)
                for future in done:
                    del pending[future]
                    yield future.result()
                text = "; ".join(filter(None, map(_how_far, pending.values())))
                if watch is not None and text and not done:
                    watch.say(text)
        finally:
            for future in pending:
                future.cancel()


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed; its run can be gone on with."""
    parent = multiprocessing.parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait_and_end, daemon=True).start()


def _how_far(job: Job) -> str:
    """Return the epoch a run is at and its time left, or its step in the first epoch."""
    metrics = job.folder / "metrics.jsonl"
    text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # the last line may still be being written
    records = [json.loads(line) for line in whole.splitlines()]
    if not records:
        return ""
    name = f"{job.folder.parent.name}, {job.folder.name}"
    last = next((record for record in reversed(records) if "epoch" in record), None)
    if last is None:
        return f"{name}: step {records[-1]['step']}"
    done, epochs = last["epoch"], job.settings.recipe.epochs
    left = last["seconds"] / done * (epochs - done) / 60
    return f"{name}: epoch {done}/{epochs}, {left:,.1f} min left"


def default_workers() -> int:
    """Return how many runs to carry out side by side: four on a GPU under MPS, else two, or one.

    A second run fills the time in which the first compiles, checkpoints and is evaluated. Only
    under NVIDIA's MPS do runs compute at the same time; else they take turns on the GPU.
    """
    if not torch.cuda.is_available():
        return 1
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return 4 if (pipes / "control").exists() else 2


def figures_of(folder: Path, function: FigureFunction) -> Figures:
    """Return what ``function`` makes of a finished run's predictions, and what the run cost."""
    cost: Figures = json.loads((folder / COST).read_text(encoding="utf-8"))
    return function(Outcome(folder)) | cost


def _carry_out(job: Job, table: LabelTable | None, watch: Watch | None = None) -> Job:
    begun = perf_counter()
    start_peak_memory()
    if table is None:
        options = json.dumps(job.settings.data_options)
        table = _table(job.settings.data, options, job.hold_out, job.one_positive, job.frozen)
    # A finished run returns at once; one begun with other settings is refused.
    name = f"{job.folder.parent.name}, {job.folder.name}"
    train(job.settings, job.folder, table=table, watch=watch and OfMany(watch, name))
    path = job.folder / COST
    if path.exists():
        return job
    cost = {"seconds": perf_counter() - begun, **peak_memory()}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(cost), encoding="utf-8")
    return job


@lru_cache(maxsize=1)
def _table(
    data: str, options: str, hold_out: bool, one_positive: bool, frozen: Frozen | None
) -> LabelTable:
    return open_table(
        data, json.loads(options), hold_out=hold_out, one_positive=one_positive, frozen=frozen
    )

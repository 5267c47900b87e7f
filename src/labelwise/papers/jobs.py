"""Jobs: training runs, what carries them out, and what each of them cost.

A finished run is recognised by its folder and not repeated; a killed one resumes. An executor takes
jobs and yields each as it finishes: in this process, in processes side by side, or on a cluster.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter

import numpy as np
import torch

from labelwise.base.files import write_text
from labelwise.base.progress import NamedWatch, Watch
from labelwise.errors import LabelwiseError
from labelwise.models.run_folder import RunFolder
from labelwise.papers.measures import FinishedRun
from labelwise.papers.sources import Frozen, dealt_again, open_table
from labelwise.shards.engine import ATTEMPTS, LostShardError
from labelwise.shards.ray_cluster import RayEngine
from labelwise.tables import LabelTable
from labelwise.training.execution import compiles
from labelwise.training.run import train
from labelwise.training.settings import Settings

Figures = dict[str, float]
COST = "cost.json"
REPORT_SECONDS = 30.0  # between two messages on the progress of runs side by side
PROCESS = Path("/proc/self")
HIGH_WATER = "VmHWM:"  # Linux: the high-water mark of resident memory


@dataclass(frozen=True)
class TrainingJob:
    """One run: its settings, its folder, and what is done to its data first.

    ``hold_out`` takes validation rows from train; ``one_positive`` leaves one known label to each
    training image; ``frozen`` puts features in the place of images; ``deal`` is the seed of a deal
    of all rows into splits of the same sizes.
    """

    settings: Settings
    folder: Path
    hold_out: bool = True
    one_positive: bool = False
    frozen: Frozen | None = None
    deal: int | None = None


# What carries all jobs out, in any order, and yields each as it finishes.
Executor = Callable[[Sequence[TrainingJob], Watch | None], Iterator[TrainingJob]]


def run_jobs(
    jobs: Iterable[TrainingJob], *, executor: Executor | None = None, watch: Watch | None = None
) -> Iterator[TrainingJob]:
    """Run each distinct job once and yield it when done; those others start from come first."""
    distinct = {job.folder: job for job in jobs}
    starts = {Path(job.settings.start) for job in distinct.values() if job.settings.start}
    carried_out = executor or InProcess()
    for first in (True, False):
        wave = [job for job in distinct.values() if (job.folder in starts) == first]
        if wave:
            yield from carried_out(wave, watch)


@dataclass(frozen=True)
class InProcess:
    """Runs jobs one after the other in this process; ``table`` spares reading the data."""

    table: LabelTable | None = None

    def __call__(self, jobs: Sequence[TrainingJob], watch: Watch | None) -> Iterator[TrainingJob]:
        for job in jobs:
            yield run_job(job, self.table, watch)


def _say_progress(jobs: Iterable[TrainingJob], watch: Watch | None) -> None:
    journals = ((job, RunFolder(job.folder).journal) for job in jobs)
    known = ((job, journal.progress(job.settings.recipe.epochs)) for job, journal in journals)
    text = "; ".join(f"{_name(job)}: {progress}" for job, progress in known if progress)
    if watch is not None and text:
        watch.say(text)


def run_job(
    job: TrainingJob, table: LabelTable | None = None, watch: Watch | None = None
) -> TrainingJob:
    """Train one job, or what is left of it, note what it cost, and return it."""
    begun = perf_counter()
    start_peak_memory()
    if table is None:
        options = json.dumps(job.settings.data_options)
        table = _table(job.settings.data, options, job.hold_out, job.one_positive, job.frozen)
    if job.deal is not None:
        table = dealt_again(table, job.deal)
    # A finished run returns at once; one begun with other settings is refused.
    train(job.settings, job.folder, table=table, watch=watch and NamedWatch(watch, _name(job)))
    path = job.folder / COST
    if not path.exists():
        write_text(path, json.dumps({"seconds": perf_counter() - begun, **peak_memory()}))
    return job


@dataclass(frozen=True)
class LocalProcesses:
    """Runs jobs side by side in ``workers`` processes, which end with this one."""

    workers: int

    def __call__(self, jobs: Sequence[TrainingJob], watch: Watch | None) -> Iterator[TrainingJob]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.workers, context, initializer=_end_with_parent) as pool:
            pending = {pool.submit(run_job, job): job for job in jobs}
            try:
                while pending:
                    done, _ = wait(pending, REPORT_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        del pending[future]
                        yield future.result()
                    if not done:
                        _say_progress(pending.values(), watch)
            finally:
                for future in pending:
                    future.cancel()


@dataclass(frozen=True)
class RayRuns:
    """Runs jobs on a Ray cluster, each on a core and ``gpus`` GPUs; all paths must be shared."""

    workers: int
    gpus: float = 0.0
    run: Callable[[TrainingJob], TrainingJob] = run_job

    def __call__(self, jobs: Sequence[TrainingJob], watch: Watch | None) -> Iterator[TrainingJob]:
        def report(running: Sequence[int]) -> None:
            _say_progress([jobs[number] for number in running], watch)

        engine = RayEngine(self.workers, gpus=self.gpus, report=report)
        try:
            yield from engine.run(_JobsTask(tuple(jobs), self.run), range(len(jobs)))
        except LostShardError as lost:
            raise LabelwiseError(
                f"{ATTEMPTS} workers died over the run in {jobs[lost.shard].folder}; it may need "
                "more memory than a node has: run the same command again with fewer --jobs"
            ) from None


@dataclass(frozen=True)
class _JobsTask:
    """A list of jobs as shards of one: what an engine carries out."""

    jobs: tuple[TrainingJob, ...]
    run: Callable[[TrainingJob], TrainingJob]

    def start(self) -> Callable[[int], TrainingJob]:
        return lambda number: self.run(self.jobs[number])


def figures_of(folder: Path, function: Callable[[FinishedRun], Figures]) -> Figures:
    """Return what ``function`` makes of a finished run's predictions, and what the run cost."""
    cost: Figures = json.loads((folder / COST).read_text(encoding="utf-8"))
    return function(FinishedRun(folder)) | cost


def default_workers() -> int:
    """Return how many runs go side by side: on a GPU 4 under MPS, else 2 in turns; 1 on a CPU."""
    if not torch.cuda.is_available():
        return 1
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return 4 if (pipes / "control").exists() else 2


def start_peak_memory() -> None:
    """Forget earlier peaks of this process's memory, where the system can."""
    with suppress(OSError):  # elsewhere the host's peak is that of the whole process
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> Figures:
    """Return "host MB" where the system tells it, and "GPU MB" where there is a GPU."""
    peaks: Figures = {}
    with suppress(OSError):
        for line in (PROCESS / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(HIGH_WATER):
                peaks["host MB"] = float(line.split()[1]) / 1024
    if torch.cuda.is_available():
        peaks["GPU MB"] = torch.cuda.max_memory_allocated() / 2**20
    return peaks


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed; its run can be continued."""
    parent = multiprocessing.parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait_and_end, daemon=True).start()


def _name(job: TrainingJob) -> str:
    return f"{job.folder.parent.name}, {job.folder.name}"


@lru_cache(maxsize=1)
def _table(
    data: str, options: str, hold_out: bool, one_positive: bool, frozen: Frozen | None
) -> LabelTable:
    return open_table(
        data, json.loads(options), hold_out=hold_out, one_positive=one_positive, frozen=frozen
    )


SAME_SPEED = {  # settings that change what is learnt, not how fast
    *("method", "options", "weights", "start", "seed", "data_options"),
    *("recipe", "calibrate", "rule", "zero_share"),
}
STEPS = {"cuda": 12, "cpu": 4}  # of the epochs that are timed; a GPU must warm up first


@dataclass(frozen=True)
class Speed:
    """What a short run showed: the seconds of start, compilation and evaluation, and the rate."""

    once: float
    images_per_second: float

    def seconds(self, epochs: int, table: LabelTable) -> float:
        """Return the seconds of a run; predicting takes a third of the time of training."""
        splits = table.splits()
        predicted = len(table) + epochs * (len(splits["val"]) if "val" in splits else 0)
        return self.once + (epochs * len(splits["train"]) + predicted / 3) / self.images_per_second


def measure_speed(settings: Settings, table: LabelTable, watch: Watch | None = None) -> Speed:
    """Return the speed of a run, from a few real steps on some training images."""
    split = table.splits()["train"]
    on_gpu = torch.cuda.is_available() and settings.hardware.accelerator in ("auto", "cuda")
    device = torch.device("cuda" if on_gpu else "cpu")
    sample = split.subset(np.arange(min(len(split), STEPS[device.type] * settings.batch_size)))
    steps = settings.recipe.epochs * len(split) // settings.batch_size
    values = settings.model_dump(mode="json")
    values |= {"weights": None, "start": None}  # which cost no time, but may not be there yet
    values["recipe"]["epochs"] = 2
    compiled, _ = compiles(settings.hardware, device, settings.hardware.devices, steps)
    values["hardware"]["compile"] = compiled
    begun = perf_counter()
    with TemporaryDirectory() as folder:
        timed = watch and NamedWatch(watch, f"timing {settings.method}")
        train(Settings(**values), Path(folder), table=sample, watch=timed)
        records = RunFolder(Path(folder)).journal.read()
    first, last = (record for record in records if "epoch" in record)
    steady = float(last["seconds"]) - float(first["seconds"])
    return Speed(perf_counter() - begun - 2 * steady, float(last["images_per_second"]))


def seconds_of(
    jobs: Iterable[TrainingJob], table: LabelTable, watch: Watch | None = None
) -> dict[Path, float]:
    """Return an estimate of the seconds of each job; those of one network are timed once."""
    speeds: dict[str, Speed] = {}
    seconds = {}
    for job in jobs:
        network = job.settings.model_dump_json(exclude=SAME_SPEED)
        if network not in speeds:
            speeds[network] = measure_speed(job.settings, table, watch)
        seconds[job.folder] = speeds[network].seconds(job.settings.recipe.epochs, table)
    return seconds

"""Estimates: how long runs will take, from a short one that is really carried out."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from labelwise.data import LabelTable
from labelwise.models.run_folder import RunFolder
from labelwise.papers.jobs import TrainingJob
from labelwise.system.progress import NamedWatch, Watch
from labelwise.training.execution import compiles
from labelwise.training.run import train
from labelwise.training.settings import Settings

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
        """Return the seconds of a run on ``table``.

        An image is predicted, after each epoch if it is of val and at the end, in a third of the
        time of training on it.
        """
        splits = table.splits()
        validated = len(splits["val"]) if "val" in splits else 0
        predicted = len(table) + epochs * validated
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

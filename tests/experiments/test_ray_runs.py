"""Runs on a Ray cluster. Oracle: the same jobs carried out in this process."""

import os
import signal

import pytest
import torch
from tiny_run import Hearing

from labelwise.engines.ray_cluster import joined
from labelwise.errors import DataError
from labelwise.experiments.jobs import InProcess, TrainingJob, run_job, run_jobs
from labelwise.experiments.ray_runs import RayRuns
from labelwise.runs import RunFolder
from labelwise.training.loader import Loader
from labelwise.training.settings import read_settings

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen

SMALL = {
    "data": "scenes",
    "data_options": {"num_train": 32, "num_val": 8, "num_test": 8, "size": 32, "threads": 1},
    "image_size": 32,
    "batch_size": 16,
    "calibrate": "none",
    "hardware.accelerator": "cpu",
    "hardware.workers": 1,
    "recipe.epochs": 2,
}


def jobs_in(folder):
    return [
        TrainingJob(read_settings(None, SMALL | {"seed": seed}), folder / str(seed))
        for seed in range(2)
    ]


def dies_once(job):
    """Train; the run of seed 0 dies at the second epoch of its first attempt."""
    if job.settings.seed:
        return run_job(job)
    mark, epoch = job.folder.with_suffix(".died"), Loader.epoch

    def deadly(loader, number, start=0):
        if number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return epoch(loader, number, start)

    Loader.epoch = deadly
    try:
        return run_job(job)
    finally:
        Loader.epoch = epoch


@pytest.fixture(scope="module")
def cluster():
    with joined(2):
        yield


def test_a_run_whose_worker_dies_ends_as_one_in_this_process(cluster, tmp_path):
    ours = jobs_in(tmp_path / "ray")
    (tmp_path / "ray").mkdir()
    found = list(run_jobs(ours, executor=RayRuns(2, run=dies_once), watch=Hearing()))
    assert sorted(job.folder for job in found) == [job.folder for job in ours]
    assert (tmp_path / "ray" / "0.died").exists()
    theirs = list(run_jobs(jobs_in(tmp_path / "here"), executor=InProcess()))
    for one, other in zip(ours, theirs, strict=True):
        first, second = (RunFolder(job.folder).predictions("test") for job in (one, other))
        torch.testing.assert_close(first.logits, second.logits, atol=1e-5, rtol=1e-5)
        epochs = [r["epoch"] for r in RunFolder(one.folder).journal.read() if "epoch" in r]
        assert epochs == [1, 2]


def test_an_error_of_a_run_is_the_error_of_the_command(cluster, tmp_path):
    job = TrainingJob(read_settings(None, SMALL | {"data": "nowhere.csv"}), tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        list(run_jobs([job], executor=RayRuns(1)))

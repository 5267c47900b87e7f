"""Runs on a Ray cluster. Oracle: the same jobs, and the same run, carried out in this process."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from bucket_setup import served_bucket
from tiny_run import Hearing, assert_same_weights

import labelwise
from labelwise.cli import main
from labelwise.errors import DataError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.papers.jobs import InProcess, RayRuns, TrainingJob, run_job, run_jobs
from labelwise.shards.ray_cluster import RayTraining
from labelwise.training.loader import Loader
from labelwise.training.run import train
from labelwise.training.settings import read_settings

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen

LINEAR = {
    "data": "posterior",
    "data_options": {"num_train": 128, "num_val": 32, "num_test": 32, "num_labels": 4},
    "backbone": "identity",
    "batch_size": 16,
    "calibrate": "none",
    "hardware.accelerator": "cpu",
    "recipe.epochs": 3,
    "recipe.log_steps": 2,
}


def jobs_in(folder):
    return [
        TrainingJob(
            read_settings(None, LINEAR | {"recipe.epochs": 2, "seed": seed}), folder / str(seed)
        )
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
def bucket():
    with served_bucket() as made:
        yield made


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


def test_a_run_under_way_is_told_and_an_error_of_one_is_that_of_the_command(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("labelwise.shards.ray_cluster.REPORT_SECONDS", 0.02)
    long = TrainingJob(read_settings(None, LINEAR | {"recipe.epochs": 40}), tmp_path / "long")
    wrong = TrainingJob(read_settings(None, LINEAR | {"data": "nowhere.csv"}), tmp_path / "wrong")
    heard = Hearing()
    runs = run_jobs([long, wrong], executor=RayRuns(1), watch=heard)
    assert next(runs) == long
    assert re.search(r"long: (step \d+|epoch \d+/40, 0.\d min left)", "\n".join(heard.messages))
    with pytest.raises(DataError, match="nowhere"):
        next(runs)


# One run by two workers.


def cut_short(settings, folder):
    """Train in this process until the second epoch, whose first picture cannot be read."""
    epoch = Loader.epoch

    def broken(loader, number, start=0):
        if number == 1:
            raise DataError("b.jpg is gone")
        return epoch(loader, number, start)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loader, "epoch", broken)
        with pytest.raises(DataError, match="is gone"):
            train(settings, folder)


def second_worker_dies_once(settings, folder, fresh):
    """Train; the second process is killed in the second epoch of the first attempt.

    In the third epoch both stop with an error.
    """
    mark, epoch = folder / "died", Loader.epoch

    def deadly(loader, number, start=0):
        if number == 1 and os.environ["RANK"] == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 2:
            raise DataError("c.jpg is gone")
        return epoch(loader, number, start)

    Loader.epoch = deadly
    train(settings, folder, fresh=fresh)


def test_one_worker_two_of_which_one_dies_and_one_again_train_as_one_process(
    cluster, bucket, tmp_path, monkeypatch, capsys
):
    """The last one goes on in a bucket, into which the run was copied."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = read_settings(None, LINEAR)
    cut_short(settings, tmp_path / "ray")
    dying = partial(RayTraining, run=second_worker_dies_once)
    monkeypatch.setattr("labelwise.shards.ray_cluster.RayTraining", dying)
    words = [f"--set={key}={value}" for key, value in LINEAR.items() if key != "data"]
    words += ["--engine", "ray", "--workers", "2", "-o", str(tmp_path / "ray")]
    monkeypatch.setattr("sys.argv", ["labelwise", "train", "posterior", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "c.jpg is gone" in shown.err
    assert (tmp_path / "ray" / "died").exists()
    assert "a worker died; starting all again from the newest checkpoint" in shown.out
    for path in filter(Path.is_file, (tmp_path / "ray").rglob("*")):
        bucket.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    with RunFolder.working_in(bucket.place("ray")) as run:
        RayTraining(1)(settings, run, Hearing(), fresh=False)
    there = fetched_run(bucket.place("ray"))
    train(settings, tmp_path / "here")
    assert_same_weights(there, tmp_path / "here", atol=1e-6, rtol=1e-6)
    records = RunFolder(there).journal.read()
    assert [one["epoch"] for one in records if "epoch" in one] == [1, 2, 3]


def test_what_a_cluster_does_not_train_is_refused_before_a_worker_starts(tmp_path):
    for changed, told in (
        ({"batch_size": 15}, "batch_size must be a multiple of 2 workers, got 15"),
        ({"effort": "good"}, "--engine ray trains one model, and effort good several"),
        ({"hardware.devices": 2}, "--devices is for --engine local"),
        ({"features": "resnet18", "backbone": "resnet18"}, "solved in one process"),
    ):
        settings = read_settings(None, LINEAR | changed)
        with pytest.raises(SettingsError, match=told):
            RayTraining(2)(settings, RunFolder(tmp_path), Hearing(), fresh=False)


def notes_its_rank(settings, folder, fresh):
    (folder.parent / f"rank-{os.environ['RANK']}").touch()
    train(settings, folder, fresh=fresh)


def test_a_program_trains_on_a_cluster_by_naming_the_engine(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noting = partial(RayTraining, run=notes_its_rank)
    monkeypatch.setattr("labelwise.shards.ray_cluster.RayTraining", noting)
    given = {key.removeprefix("hardware.").removeprefix("recipe."): LINEAR[key] for key in LINEAR}
    given.pop("log_steps")
    ours = labelwise.train(
        given.pop("data"), "ray", engine="ray", workers=2, progress=False, **given
    )
    assert sorted(path.name for path in tmp_path.glob("rank-*")) == ["rank-0", "rank-1"]
    assert ours.is_finished
    assert ours.report.exists()
    here = labelwise.train("posterior", "here", progress=False, **given)
    assert_same_weights(ours.path, here.path, atol=1e-6, rtol=1e-6)
    with pytest.raises(SettingsError, match="every worker reads the data"):
        labelwise.train(labelwise.load("posterior"), "table", engine="ray")
    with pytest.raises(SettingsError, match="engine must be 'local' or 'ray', got 'spark'"):
        labelwise.train("posterior", "other", engine="spark")

"""The Ray engine, also when workers die. Oracle: the hashes of the local engine's run."""

import os
import re
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from bucket_setup import served_bucket
from shard_setup import answers, hashes, task
from tiny_run import Hearing, assert_same_weights

import labelwise
from labelwise.cli import main
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.papers.jobs import InProcess, RayRuns, TrainingJob, run_job, run_jobs
from labelwise.shards import LocalEngine, make_engine, predict_shards, ray_cluster
from labelwise.shards.ray_cluster import RayEngine, RayTraining
from labelwise.training.loader import Loader
from labelwise.training.run import train
from labelwise.training.settings import read_settings

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen


class Deadly:
    """Scores as ``inner`` does; shard 4 kills its worker the first time."""

    def __init__(self, inner, marks):
        self.inner, self.marks = inner, marks

    def start(self):
        work = self.inner.start()

        def run(shard):
            before = len(list(self.marks.glob(f"{shard}-*")))
            (self.marks / f"{shard}-{before}").touch()
            if shard == 4 and not before:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(shard)

        return run


def test_a_worker_that_dies_leaves_the_bytes_of_the_local_engine(places, cluster, tmp_path):
    """One engine begins, its driver stops half-way; the other goes on; a worker dies."""
    out, photos = tmp_path / "out", [str(places / "photos")]
    given = task(places / "model", out)

    class Stopping:
        def run(self, work, shards):
            for number, record in enumerate(LocalEngine().run(work, shards)):
                yield record
                if number == 2:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_shards(given, photos, Stopping(), shard_rows=5)

    class Harmed:
        def run(self, work, shards):
            return RayEngine(2).run(Deadly(work, tmp_path), shards)

    outcome = predict_shards(given, photos, Harmed(), shard_rows=5)
    assert (outcome.resumed, outcome.rows, outcome.failed) == (3, 40, 2)
    assert hashes(out) == hashes(places / "local")
    assert answers(out) == answers(places / "local")
    assert len(list(tmp_path.glob("[0-9]-*"))) == 5 + 1


def test_workers_that_fit_nowhere_are_told_in_one_sentence(places, cluster, tmp_path, monkeypatch):
    """Ray itself refuses them: they must run on a node that is not there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nowhere = NodeAffinitySchedulingStrategy("ab" * 28, soft=False)
    monkeypatch.setattr(ray_cluster, "SCHEDULING", nowhere)
    with pytest.raises(LabelwiseError, match="no worker could be started on the cluster"):
        list(RayEngine(1).run(task(places / "model", tmp_path), [0]))


def test_workers_are_not_promised_gpus_that_the_cluster_has_not(places, cluster, tmp_path):
    with pytest.raises(SettingsError, match="each worker needs 1 GPU, the cluster has 0"):
        list(make_engine("ray", 1, "cuda").run(task(places / "model", tmp_path), [0]))
    with pytest.raises(SettingsError, match="give --device cuda, not cuda:1"):
        make_engine("ray", 1, "cuda:1")


# Runs on a cluster. Oracle: the same jobs, and the same run, carried out in this process.

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
    seeds = ({"recipe.epochs": 2, "seed": seed} for seed in range(2))
    return [TrainingJob(read_settings(None, LINEAR | s), folder / str(s["seed"])) for s in seeds]


@contextmanager
def epochs(*, mark=None, of=True, broken=9):
    """Die as the second epoch begins, unless there is a mark; stop with an error at ``broken``."""
    epoch = Loader.epoch

    def deadly(loader, number, start=0):
        if number == broken:
            raise DataError("b.jpg is gone")
        if number == 1 and of and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return epoch(loader, number, start)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loader, "epoch", deadly)
        yield


def dies_once(job):
    """Train; the run of seed 0 dies at the second epoch of its first attempt."""
    with epochs(mark=job.folder.with_suffix(".died"), of=job.settings.seed == 0):
        return run_job(job)


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


def second_worker_dies_once(settings, folder, fresh):
    """Train; one is killed in the second epoch of the first attempt; in the third both stop."""
    with epochs(mark=folder / "died", of=os.environ["RANK"] == "1", broken=2):
        train(settings, folder, fresh=fresh)


def test_one_worker_two_of_which_one_dies_and_one_again_train_as_one_process(
    cluster, bucket, tmp_path, monkeypatch, capsys
):
    """The last one goes on in a bucket, into which the run was copied."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = read_settings(None, LINEAR)
    with epochs(broken=1), pytest.raises(DataError, match="is gone"):
        train(settings, tmp_path / "ray")
    dying = partial(RayTraining, run=second_worker_dies_once)
    monkeypatch.setattr("labelwise.shards.ray_cluster.RayTraining", dying)
    words = [f"--set={key}={value}" for key, value in LINEAR.items() if key != "data"]
    words += ["--engine", "ray", "--workers", "2", "-o", str(tmp_path / "ray")]
    monkeypatch.setattr("sys.argv", ["labelwise", "train", "posterior", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "b.jpg is gone" in shown.err
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


def test_a_program_trains_on_a_cluster_by_naming_the_engine(monkeypatch, tmp_path):
    def ray_training(workers):
        return lambda settings, *_, fresh: asked.append((workers, settings.backbone, fresh))

    asked, options = [], {"backbone": "identity", "progress": False}
    monkeypatch.setattr("labelwise.shards.ray_cluster.RayTraining", ray_training)
    labelwise.train("posterior", tmp_path / "run", engine="ray", workers=2, **options)
    assert asked == [(2, "identity", False)]
    with pytest.raises(SettingsError, match="every worker reads the data"):
        labelwise.train(labelwise.load("posterior"), "table", engine="ray")
    with pytest.raises(SettingsError, match="engine must be 'local' or 'ray', got 'spark'"):
        labelwise.train("posterior", "other", engine="spark")

"""Two processes (gloo, CPU). Oracles: one process with the joined batch, runs left alone."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from bucket_setup import served_bucket
from patience import wait_until
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table
from train_tiny import break_second_epoch, free_port

from labelwise.errors import ImageError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.predictions import Predictions
from labelwise.training.execution import STARTED, _srun_variables, launch
from labelwise.training.inference import validation_figures
from labelwise.training.loader import Loader
from labelwise.training.run import train
from labelwise.training.settings import Hardware

SCRIPT = Path(__file__).parent.parent / "train_tiny.py"


SMALL = {
    "data_options": "{num_train: 48, num_val: 8, num_test: 8, size: 32, threads: 1}",
    "head_options": "{width: 32, feedforward: 64, decoder_layers: 1, dropout: 0.3}",
    "recipe.save_seconds": "0",
    "hardware.workers": "1",
    "calibrate": "none",
}
FLAGS = (
    *("--head", "query2label", "--batch-size", "16", "--image-size", "32"),
    *("--devices", "2", "--accelerator", "cpu"),  # there may be one GPU
)


def assert_same_run(one, other):
    assert_same_weights(one, other, atol=2e-5, rtol=1e-4)
    for split in ("train", "val", "test"):
        rows, expected = (
            Predictions.load(folder / "predictions" / f"{split}.parquet") for folder in (one, other)
        )
        assert list(rows.ids) == list(expected.ids)
        assert np.array_equal(rows.labels, expected.labels)
        np.testing.assert_allclose(rows.logits, expected.logits, atol=2e-4, rtol=1e-3)


def test_two_processes_are_one_with_the_joined_batch_and_tell_the_error_of_the_second(
    tmp_path, warm_commands, warm_python
):
    # 99 rows: 66 in training, so the last joined batch is short, and odd validation shares.
    flags = {"method": "role", "recipe__ema": 0.8, "recipe__optimizer__clip": 0.5}
    runs = {"run": flags | {"rows": 99, "hardware__devices": 2}}
    runs["broken"] = {"fails_in": 1, "hardware__devices": 2}
    words = [tmp_path / "two", json.dumps(runs)]
    done = warm_commands.start(words, tmp_path, SCRIPT, PYTHON_EXEC=warm_python).wait()
    assert done.returncode == 1
    told = "TrainingError: process 2 of the run stopped: b.jpg cannot be read: it ends early"
    assert told in done.stderr
    train(tiny_settings(**flags), tmp_path / "one", table=tiny_table(99))
    assert_same_run(tmp_path / "two" / "run", tmp_path / "one")


def test_the_batch_must_divide_among_the_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.training.prepare.world_size", lambda: 2)
    with pytest.raises(SettingsError, match="batch_size must be a multiple of 2 devices, got 15"):
        train(tiny_settings(batch_size=15), tmp_path, table=tiny_table())


@pytest.fixture
def started(warm_commands, warm_python):
    """Start a small run of two processes, in a session of its own, as a person would type it.

    The second is in the group of the first, and killed with it, if it starts ``cold``.
    """

    def start(folder, cold=False, **settings):
        pairs = SMALL | {key.replace("__", "."): value for key, value in settings.items()}
        words = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
        command = ["train", "scenes", *FLAGS, *words, "-o", folder]
        warm = {} if cold else {"PYTHON_EXEC": warm_python}
        return warm_commands.start(command, folder.parent, **warm)

    return start


def figures(run):
    """Return what a run noted of its steps and epochs, without how long they took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def wait_for_lines(folder, count):
    path = folder / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= count)


def finished(command):
    done = command.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_run_of_two_processes_goes_on_bit_for_bit(tmp_path, started):
    often = {"recipe__log_steps": 2, "recipe__epochs": 3}
    finished(started(tmp_path / "whole", **often))
    killed = started(tmp_path / "killed", cold=True, **often)
    wait_for_lines(tmp_path / "killed", 4)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait().returncode == -signal.SIGKILL
    assert "going on from epoch" in finished(started(tmp_path / "killed", **often))
    for name in ("model.safetensors", "predictions/test.parquet"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert figures(tmp_path / "killed") == figures(tmp_path / "whole")
    judged = [record for record in figures(tmp_path / "whole") if record.get("best")][-1]
    kept = Predictions.load(tmp_path / "whole" / "predictions" / "val.parquet")
    truth = validation_figures(kept.logits, kept.labels, kept.observed, None)
    assert {name: judged[f"val_{name}"] for name in truth} == pytest.approx(truth)


def test_a_signal_to_the_first_process_stops_both_at_the_end_of_a_short_epoch(tmp_path, started):
    rare = {"recipe__log_steps": 1000, "recipe__epochs": 100_000}
    command = started(tmp_path, **rare)
    wait_for_lines(tmp_path, 2)
    os.kill(command.pid, signal.SIGTERM)
    done = command.wait()
    assert done.returncode == 130
    assert done.stderr.count("stopped; run the same command again to go on") == 1
    assert list((tmp_path / "checkpoint").glob("*/state.json"))


# Two nodes of one process each, both on the loopback address, against one process.


RUNS = {"bce": {"method": "bce"}, "two-way": {"method": "two-way"}}


def on_two_nodes(folder, runs, warm_commands, warm_python):
    """Start a torchrun for each node and return their exit statuses."""
    where = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    where.append(f"--master-port={free_port()}")
    nodes = [
        warm_commands.start(
            [*where, f"--node-rank={rank}", SCRIPT, folder, json.dumps(runs)],
            folder,
            "torch.distributed.run",
            OMP_NUM_THREADS="1",
            PYTHON_EXEC=warm_python,
            GLOO_SOCKET_IFNAME="lo",
        )
        for rank in range(2)
    ]
    return [node.wait().returncode for node in nodes]


def assert_same(one, other):
    epochs = ([line for line in figures(run) if "epoch_loss" in line] for run in (one, other))
    own, theirs = ([line["epoch_loss"] for line in lines] for lines in epochs)
    assert len(own) == 3
    torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-6)
    assert_same_weights(one, other, atol=1e-6, rtol=1e-6)


def cut_short(settings, folder):
    """Train in this process until the second epoch, which cannot be read."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loader, "epoch", Loader.epoch)  # put back at the end
        break_second_epoch()
        with pytest.raises(ImageError, match="ends early"):
            train(settings, folder, table=tiny_table())


@pytest.mark.filterwarnings("ignore")  # of boto3 and moto
def test_two_nodes_train_as_one_and_go_on_where_one_was_cut_short_and_one_where_two_were(
    tmp_path, monkeypatch, warm_commands, warm_python
):
    """The first run that was cut short is in a folder of the first node, the second in a bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two, bce = tmp_path / "one", tmp_path / "two", {"method": "bce"}
    with served_bucket() as bucket:
        kept = bucket.place("runs/kept")
        for place in (two / "begun", kept):
            with RunFolder.working_in(place) as run:
                cut_short(tiny_settings(**bce), run)
        cut = bce | {"fails_in": 0}  # in the second epoch, on both nodes
        runs = RUNS | {"begun": bce, "kept": bce | {"place": kept}, "cut": cut}
        assert on_two_nodes(two, runs, warm_commands, warm_python) == [1, 1]
        shutil.copytree(fetched_run(kept), two / "kept")
    for name, flags in RUNS.items():
        train(tiny_settings(**flags), one / name, table=tiny_table())
        assert_same(two / name, one / name)
    watch = Hearing()
    train(tiny_settings(**bce), two / "cut", table=tiny_table(), watch=watch)
    assert "going on from epoch 2, batch 1" in watch.messages
    for name in ("begun", "kept", "cut"):
        assert_same(two / name, one / "bce")
    assert not [path for path in (two / "elsewhere").rglob("*") if path.is_file()]


# Starting processes. Oracles: their exit statuses, torchrun's variables, one process.


ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node7", "node7"), ("n[03-05,9],m1", "n03"), ("gpu[8]", "gpu8"), ("a,b[1-2]", "a")],
)
def test_the_variables_of_srun_are_those_of_torchrun(nodes, first):
    given = {"STEP_NUM_TASKS": "8", "STEP_TASKS_PER_NODE": "4(x2)", "STEP_NODELIST": nodes}
    given |= {"JOB_ID": "1234567", "PROCID": "6", "LOCALID": "2"}
    given = {f"SLURM_{key}": value for key, value in given.items()}
    expected = {STARTED: "1234567", "MASTER_ADDR": first, "MASTER_PORT": "19567", "RANK": "6"}
    expected |= {"WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    assert _srun_variables(given) == expected
    assert _srun_variables(given | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert _srun_variables(given | {STARTED: "by a torchrun in each task"}) == {}
    assert _srun_variables({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) == {}  # no srun, a batch


def test_when_a_process_dies_the_first_does_not_wait_for_it_forever(tmp_path, warm_commands):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import sys, threading\n"
        "from labelwise.base.distributed import rank\n"
        "from labelwise.training import execution\n"
        "from labelwise.training.settings import Hardware\n"
        "execution.GRACE = 0\n"
        "execution.launch(Hardware(accelerator='cpu', devices=2))\n"
        "sys.exit(7) if rank() == 1 else threading.Event().wait()\n"
    )
    done = warm_commands.start([], tmp_path, script, **ALONE).wait()
    assert done.returncode == 1
    assert "labelwise: process 2 of the run ended with status 7" in done.stderr


def test_a_program_that_cannot_be_started_again_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # as of python -c
    with pytest.raises(SettingsError, match="several devices need a program that can be started"):
        launch(Hardware(accelerator="cpu", devices=2))

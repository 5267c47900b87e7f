"""Two processes (gloo, CPU). Oracles: one process with the joined batch, runs left alone."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from bucket_setup import served_bucket
from kill_two_processes import figures, require_same, start_training
from patience import wait_until
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table
from train_tiny import break_second_epoch, free_port

from labelwise.errors import ImageError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.predictions import Predictions
from labelwise.training.inference import validation_figures
from labelwise.training.loader import Loader
from labelwise.training.run import train

SCRIPT = Path(__file__).parent.parent / "train_tiny.py"


def launch(warm_commands, folder, runs):
    done = warm_commands.run([folder, json.dumps(runs)], folder.parent, SCRIPT)
    assert done.returncode == 0, done.stderr


def assert_same_run(one, other):
    assert_same_weights(one, other, atol=2e-5, rtol=1e-4)
    for split in ("train", "val", "test"):
        rows, expected = (
            Predictions.load(folder / "predictions" / f"{split}.parquet") for folder in (one, other)
        )
        assert list(rows.ids) == list(expected.ids)
        assert np.array_equal(rows.labels, expected.labels)
        np.testing.assert_allclose(rows.logits, expected.logits, atol=2e-4, rtol=1e-3)


def test_two_processes_are_one_with_the_joined_batch(tmp_path, warm_commands):
    # 99 rows: 66 in training, so the last joined batch is short, and odd validation shares.
    shared = {"recipe__ema": 0.8, "recipe__optimizer__clip": 0.5}
    flags = {"method": "role", **shared}
    parallel = {"rows": 99, "hardware__devices": 2}
    launch(warm_commands, tmp_path / "two", {"run": flags | parallel})
    train(tiny_settings(**flags), tmp_path / "one", table=tiny_table(99))
    assert_same_run(tmp_path / "two" / "run", tmp_path / "one")


def test_the_batch_must_divide_among_the_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.training.prepare.world_size", lambda: 2)
    with pytest.raises(SettingsError, match="batch_size must be a multiple of 2 devices, got 15"):
        train(tiny_settings(batch_size=15), tmp_path, table=tiny_table())


def test_the_error_of_the_second_process_reaches_the_user(tmp_path, warm_commands):
    flags = {"fails_in": 1, "hardware__devices": 2}
    done = warm_commands.run([tmp_path, json.dumps({"run": flags})], tmp_path, SCRIPT)
    assert done.returncode == 1
    told = "TrainingError: process 2 of the run stopped: b.jpg cannot be read: it ends early"
    assert told in done.stderr


@pytest.fixture
def started(warm_commands):
    return partial(start_training, warm_commands)


def wait_for_lines(folder, count):
    path = folder / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= count)


def finished(command):
    done = command.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_run_of_two_processes_goes_on_bit_for_bit(tmp_path, started):
    often = {"recipe__log_steps": 2}
    finished(started(tmp_path / "whole", **often))
    killed = started(tmp_path / "killed", **often)
    wait_for_lines(tmp_path / "killed", 4)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait().returncode == -signal.SIGKILL
    assert "going on from epoch" in finished(started(tmp_path / "killed", **often))
    require_same(tmp_path / "killed", tmp_path / "whole")
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


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["epoch_loss"] for record in records if "epoch_loss" in record]


def assert_same(one, other):
    assert len(losses(one)) == 3
    torch.testing.assert_close(losses(one), losses(other), atol=1e-6, rtol=1e-6)
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

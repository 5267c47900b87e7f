"""Two processes against one process with the joined batch (gloo, CPU)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.errors import SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.system.progress import Silent
from labelwise.system.tensors import load_tensors
from labelwise.training.prepare import prepare
from labelwise.training.run import train

SCRIPT = Path(__file__).parent.parent / "train_tiny.py"


def launch(folder, runs, *command):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *command, SCRIPT, folder, json.dumps(runs)],
        env=environment,
        check=True,
        timeout=300,
    )


def assert_same_run(one, other):
    first, second = (load_tensors(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=2e-5, rtol=1e-4)
    for split in ("train", "val", "test"):
        rows, expected = (
            Predictions.load(folder / "predictions" / f"{split}.parquet") for folder in (one, other)
        )
        assert list(rows.ids) == list(expected.ids)
        assert torch.equal(rows.labels, expected.labels)
        torch.testing.assert_close(rows.logits, expected.logits, atol=2e-4, rtol=1e-3)


def test_two_processes_are_one_with_the_joined_batch(tmp_path):
    # 99 rows: 66 in training, so the last joined batch is short, and odd validation shares.
    shared = {"recipe__ema": 0.8, "recipe__optimizer__clip": 0.5}
    runs = {method: {"method": method, **shared} for method in ("bce", "two-way", "role")}
    parallel = {"rows": 99, "hardware__devices": 2}
    launch(tmp_path / "two", {name: flags | parallel for name, flags in runs.items()})
    for name, flags in runs.items():
        train(tiny_settings(**flags), tmp_path / "one" / name, table=tiny_table(99))
        assert_same_run(tmp_path / "two" / name, tmp_path / "one" / name)


def test_torchrun_starts_the_same_run(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    launch(tmp_path / "two", {"run": {}}, *torchrun)
    train(tiny_settings(), tmp_path / "one", table=tiny_table())
    assert_same_run(tmp_path / "two" / "run", tmp_path / "one")


def test_the_batch_must_divide_among_the_processes(tmp_path):
    class Two:
        world_size, is_global_zero = 2, True

    run, table = RunFolder(tmp_path), tiny_table()
    with pytest.raises(SettingsError, match="batch_size must be a multiple of 2 devices, got 15"):
        prepare(tiny_settings(batch_size=15), run, Two(), Silent(), table=table)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_either_process_reaches_the_user(tmp_path, rank):
    flags = {"fails_in": rank, "hardware__devices": 2}
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, json.dumps({"run": flags})],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    told = "TrainingError: process 2 of the run stopped: " if rank else "ImageError: "
    assert f"{told}b.jpg cannot be read: it ends early" in done.stderr


# The typed command, in a session of its own, so that all its processes can be killed at once.
COMMAND = (sys.executable, "-m", "labelwise", "train", "scenes", "--devices", "2", "--epochs", "3")
SMALL = {
    "data_options": "{num_train: 48, num_val: 8, num_test: 8, size: 32, threads: 1}",
    "head_options": "{width: 32, feedforward: 64, decoder_layers: 1, dropout: 0.3}",
    "recipe.save_seconds": "0",
    "hardware.workers": "1",
    "calibrate": "none",
}
FLAGS = ("--head", "query2label", "--batch-size", "16", "--image-size", "32")


def started(folder, *more, **settings):
    assignments = [
        text
        for key, value in (SMALL | settings).items()
        for text in ("--set", f"{key.replace('__', '.')}={value}")
    ]
    return subprocess.Popen(
        [*COMMAND, *FLAGS, *assignments, *more, "-o", folder],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_lines(process, folder, count):
    path = folder / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and path.read_text().count("\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(process.stderr.read())


def finished(folder, *more, **settings):
    process = started(folder, *more, **settings)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def test_a_killed_run_of_two_processes_goes_on_bit_for_bit(tmp_path):
    often = {"recipe__log_steps": 2}
    finished(tmp_path / "whole", **often)
    process = started(tmp_path / "killed", **often)
    wait_for_lines(process, tmp_path / "killed", 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert "going on from epoch" in finished(tmp_path / "killed", **often)
    models = [tmp_path / name / "model.safetensors" for name in ("whole", "killed")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_a_signal_to_the_first_process_stops_both_at_the_end_of_a_short_epoch(tmp_path):
    rare = {"recipe__log_steps": 1000, "recipe__epochs": 100_000}
    process = started(tmp_path, **rare)
    wait_for_lines(process, tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.count("stopped; run the same command again to go on") == 1
    assert list((tmp_path / "checkpoint").glob("*/state.json"))

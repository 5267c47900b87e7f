"""Two processes against one process with the joined batch (gloo, CPU)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.errors import SettingsError
from labelwise.files import load_tensors
from labelwise.predictions import Predictions
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

    with pytest.raises(SettingsError, match="batch_size must be a multiple of 2 devices, got 15"):
        train(tiny_settings(batch_size=15), tmp_path, table=tiny_table(), fabric=Two())

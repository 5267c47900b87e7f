"""Runs killed with ``kill -9`` at random moments end with the weights of an uninterrupted run."""

import json
import os
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "kill_and_resume.py"
QUERIES = {"width": 32, "feedforward": 64, "decoder_layers": 1, "dropout": 0.3}


RUNS = {
    "quasibinary": (1, {"method": "quasibinary", "recipe.ema": 0.9}),
    "role": (2, {"method": "role", "recipe.optimizer.name": "sgd", "recipe.optimizer.lr": 0.01}),
    "role on the device": (
        4, {"method": "role", "options": {"table": "device"}, "recipe.ema": 0.9},
    ),
    "queries": (3, {"head": "query2label", "head_options": QUERIES, "method": "warp"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory, warm_commands):
    """Return what came of each run, all killed and resumed by one process."""
    folder = tmp_path_factory.mktemp("runs")
    done = warm_commands.run([folder, "3", json.dumps(RUNS)], folder, SCRIPT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_bit_for_bit(results, name):
    result = results[name]
    assert result["killed"] == result["whole"]
    assert result["same_metrics"]
    assert any(0 < step < result["all_steps"] for step in result["steps"]), result["steps"]

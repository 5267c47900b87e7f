"""Runs killed with ``kill -9`` at random moments end with the weights of an uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "kill_and_resume.py"
QUERIES = {"width": 32, "feedforward": 64, "decoder_layers": 1, "dropout": 0.3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("seed", "overrides"),
    [
        (1, {"method": "quasibinary", "recipe.ema": 0.9}),
        (2, {"method": "role", "recipe.optimizer.name": "sgd", "recipe.optimizer.lr": 0.01}),
        (4, {"method": "role", "options": {"table": "device"}, "recipe.ema": 0.9}),
        (3, {"head": "query2label", "head_options": QUERIES, "method": "warp"}),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, seed, overrides):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, str(seed), "3", json.dumps(overrides)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["killed"] == result["whole"]
    assert result["same_metrics"]
    assert any(0 < step < result["all_steps"] for step in result["steps"]), result["steps"]

"""Checkpoints. Oracles: what was written, the safetensors library, flipped bits, a full disk."""

import json
import os
from pathlib import Path

import pytest
import torch

from labelwise.errors import CheckpointError
from labelwise.objectives import BCE
from labelwise.training import checkpoint

TENSORS = {"a.b": torch.arange(6.0).view(2, 3), "step": torch.tensor(3)}


def training_state():
    parts = (torch.nn.Linear(3, 2), BCE(), None, None, checkpoint.Position(), {"data": None})
    return checkpoint.TrainingState(*parts)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << place % 8
    path.write_bytes(content)


def test_the_newest_checkpoint_is_read_back_and_all_but_the_one_before_it_go(tmp_path):
    assert checkpoint.load_latest(tmp_path) is None
    state = training_state()
    for step in (2, 5):
        state.position.step = step
        state.save_best(tmp_path)
        checkpoint.save(tmp_path, TENSORS, {"step": step, "best_step": step})
    state.position.step = 9
    state.save_best(tmp_path)  # killed after this, the run would go on with the best of step 5
    assert checkpoint.load_latest(tmp_path).facts["best_step"] == 5
    checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {"step": 9, "best_step": 9})
    found = checkpoint.load_latest(tmp_path)
    assert (found.facts, found.damaged) == ({"step": 9, "best_step": 9}, "")
    assert torch.equal(found.tensors["x"], torch.zeros(1))
    names = {path.name for path in tmp_path.iterdir()}
    best = {"best-00000005.safetensors", "best-00000009.safetensors"}
    assert names == {"00000002", "00000003", *best}


def test_an_unreadable_checkpoint_gets_one_sentence(tmp_path):
    checkpoint.save(tmp_path, TENSORS, {"step": 1})
    (tmp_path / "00000001" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state.json cannot be read.*--fresh"):
        checkpoint.load_latest(tmp_path)
    (tmp_path / "00000001" / "state.json").write_text('{"step": 1}')  # of a version without hashes
    assert checkpoint.load_latest(tmp_path).facts == {"step": 1}
    (tmp_path / "00000001" / "state.safetensors").write_bytes(b"\x99" * 40)
    with pytest.raises(CheckpointError, match=r"is not a readable safetensors file.*--fresh"):
        checkpoint.load_latest(tmp_path)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("state.safetensors", place) for place in (-32, -1)),
        ("state.json", 2),
        ("state.json", 9),
        *(("state.json", place) for place in (12, 16, 20)),  # the name of the sum
    ],
)
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_it_is_taken(tmp_path, name, place):
    checkpoint.save(tmp_path, TENSORS, {"step": 1})
    checkpoint.save(tmp_path, TENSORS, {"step": 2})
    flip(tmp_path / "00000002" / name, place)
    found = checkpoint.load_latest(tmp_path)
    assert found.facts == {"step": 1}
    assert "00000002" in found.damaged
    flip(tmp_path / "00000001" / name, place)
    with pytest.raises(CheckpointError, match=r"00000002/state\..*; start over with --fresh"):
        checkpoint.load_latest(tmp_path)


def test_a_flipped_bit_in_the_best_weights_is_noticed(tmp_path):
    state = training_state()
    state.position.step = state.position.best_step = 5
    state.save_best(tmp_path)
    saved = state.model.weight.detach().clone()
    torch.nn.init.zeros_(state.model.weight)
    state.restore_best(tmp_path)
    assert torch.equal(state.model.weight, saved)
    flip(tmp_path / "best-00000005.safetensors", -3)
    with pytest.raises(CheckpointError, match=r"best-00000005\.safetensors .*--fresh"):
        state.restore_best(tmp_path)


# Runs killed with ``kill -9`` at random moments end with the weights of an uninterrupted run.


SCRIPT = Path(__file__).parent.parent / "kill_and_resume.py"
QUERIES = {"width": 32, "feedforward": 64, "decoder_layers": 1, "dropout": 0.3}


RUNS = {
    "role": (2, {"method": "role", "recipe.optimizer.name": "sgd", "recipe.ema": 0.9}),
    "queries": (3, {"head": "query2label", "head_options": QUERIES, "method": "warp"}),
}


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

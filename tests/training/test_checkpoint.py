"""Checkpoints. Oracles: what was written, the safetensors library, flipped bits, a full disk."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.objectives import BCE
from labelwise.system.files import replacing
from labelwise.system.tensors import save_tensors
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


def test_half_written_folders_are_not_read_and_are_cleared_away(tmp_path):
    checkpoint.save(tmp_path, TENSORS, {"step": 1})
    (tmp_path / ".00000002.77.partial").mkdir()
    (tmp_path / ".00000002.77.partial" / "state.safetensors").write_bytes(b"half")
    assert checkpoint.load_latest(tmp_path).facts == {"step": 1}
    checkpoint.save(tmp_path, TENSORS, {"step": 2})
    assert {path.name for path in tmp_path.iterdir()} == {"00000001", "00000002"}


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


def test_the_safetensors_library_reads_what_is_written(tmp_path):
    one = torch.arange(12.0).view(3, 4)
    tensors = {
        "one": one,
        "same": one,
        "turned": one.t(),
        "part": one[1:],
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3),
        "none": torch.empty(0, 4),
        "mask": torch.tensor([True, False, True]),
        "half": torch.randn(3).bfloat16(),
        "double": torch.randn(3).double(),
        "größe.weight": torch.ones(1),
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    read = load_file(tmp_path / "t.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_a_disk_that_fills_in_the_middle_leaves_nothing(tmp_path):
    """A limit on the size of files fails in the middle of a write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with (
            pytest.raises(LabelwiseError, match=r"cannot write .*/w: File too large"),
            replacing(tmp_path / "w") as path,
        ):
            save_tensors(path, {"w": torch.zeros(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_file_is_the_old_or_the_new_one(tmp_path):
    path = tmp_path / "sub" / "f.json"
    with replacing(path) as temporary:
        temporary.write_text(json.dumps([1]))
        assert not path.exists()

    def interrupted():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "[1]"
    assert [file.name for file in path.parent.iterdir()] == ["f.json"]


# Runs killed with ``kill -9`` at random moments end with the weights of an uninterrupted run.


SCRIPT = Path(__file__).parent.parent / "kill_and_resume.py"
QUERIES = {"width": 32, "feedforward": 64, "decoder_layers": 1, "dropout": 0.3}


RUNS = {
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

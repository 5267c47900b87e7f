"""Checkpoints. Oracles: what was written, the safetensors library, flipped bits, a full disk."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from labelwise.errors import CheckpointError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.heads import LinearHead
from labelwise.learn.methods import make_head, make_objective
from labelwise.learn.objectives import BCE
from labelwise.learn.predictor import Model
from labelwise.models import HeadSpec
from labelwise.training import checkpoint
from labelwise.training.execution import accelerated, compiles
from labelwise.training.settings import Hardware, OptimizerSettings, ScheduleSettings
from labelwise.types import DatasetFacts, Targets

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
    done = {"step": 9, "best_step": 9, "done": True}
    checkpoint.save(tmp_path, TENSORS, done)  # trained, but not yet evaluated: the one before stays
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"00000003", "00000004", "best-00000009.safetensors"}
    checkpoint.keep_newest(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"00000004", "best-00000009.safetensors"}


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


FLIPS = [*(("state.safetensors", place) for place in (-32, -1)), ("state.json", 2)]
FLIPS += [("state.json", place) for place in (9, 12, 16, 20)]  # from 12 on the name of the sum


@pytest.mark.parametrize(("name", "place"), FLIPS)
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
FLAGS = {
    "method": "role",
    "recipe.optimizer.name": "sgd",
    "recipe.ema": 0.9,
    "head": "query2label",
    "head_options": {"width": 32, "feedforward": 64, "decoder_layers": 1, "dropout": 0.3},
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, warm_commands):
    """Weights of role's table, averaged ones and dropout come back too."""
    done = warm_commands.run([tmp_path, "3", "2", json.dumps(FLAGS)], tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["killed"], result["same_metrics"]) == (result["whole"], True)
    assert result["files"][0].count("checkpoint/N") == 1
    assert result["files"][0] == result["files"][1]  # no checkpoint more than without a kill
    assert any(0 < step < result["all_steps"] for step in result["steps"]), result["steps"]


# Groups and rates by hand, schedules against torch's own, averages by their formula.


def small_model():
    backbone = create_backbone("small-cnn", image_size=32)
    return Model(backbone, make_head(HeadSpec("linear", {}), backbone.channels, 3))


def test_rates_fall_from_head_to_input_and_biases_norms_and_objectives_are_not_decayed():
    facts = DatasetFacts(num_images=5, num_labels=3, mean_labels=1.5)
    model, objective = small_model(), make_objective("role", facts, table="dense")
    knobs = OptimizerSettings(lr=0.1, weight_decay=0.2, backbone_lr=0.1, stage_decay=0.5)
    rates = [(parameter, 1.0, 0) for parameter in objective.parameters()]  # ten times lr
    rates += [(parameter, 0.1, 0.2) for parameter in model.head.parameters()]
    named = dict(model.backbone.named_parameters())
    for depth, stage in enumerate(reversed(model.backbone.stages())):
        rates += [(named[name], 0.01 * 0.5**depth, 0.2) for name in stage]
    found = {
        id(parameter): [group["lr"], group["weight_decay"]]
        for group in checkpoint.parameter_groups(model, objective, knobs)
        for parameter in group["params"]
    }
    assert len(found) == len(rates)
    for parameter, lr, decay in rates:
        assert found[id(parameter)] == pytest.approx([lr, decay * (parameter.ndim > 1)])


def test_frozen_parameters_are_left_out():
    model = small_model()
    model.backbone.requires_grad_(False)
    groups = checkpoint.parameter_groups(model, BCE(), OptimizerSettings())
    assert sum(len(group["params"]) for group in groups) == 2
    model.requires_grad_(False)
    with pytest.raises(SettingsError, match="nothing to train"):
        checkpoint.make_optimizer(model, BCE(), OptimizerSettings())


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_restored_moments_have_the_layout_of_their_parameters(name):
    model = small_model().to(memory_format=torch.channels_last)
    optimizer = checkpoint.make_optimizer(model, BCE(), OptimizerSettings(name))
    model(torch.randn(2, 3, 32, 32)).logits.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    for entry in state["state"].values():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor):
                entry[key] = value.clone(memory_format=torch.contiguous_format)
    checkpoint.restore_state(optimizer, state)

    laid_out = [
        value.is_contiguous(memory_format=torch.channels_last)
        for parameter, entry in optimizer.state.items()
        for value in entry.values()
        if parameter.ndim == 4 and value.shape == parameter.shape
    ]
    assert laid_out
    assert all(laid_out)


def rates_of_torch(make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def ours(knobs, steps, per_epoch=10):
    return [checkpoint.rate(knobs, step, steps, per_epoch) for step in range(steps)]


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 37, 200])
def test_schedules_are_torchs_and_those_of_short_runs_finite(steps):
    for name in ("constant", "cosine", "step", "one-cycle"):
        assert all(0 <= value <= 1 for value in ours(ScheduleSettings(name), steps))
    cosine = rates_of_torch(lambda o: CosineAnnealingLR(o, steps), steps)
    assert ours(ScheduleSettings("cosine"), steps) == pytest.approx(cosine)
    milestones = [-(-steps // 2), -(-3 * steps // 4)]
    step = rates_of_torch(lambda o: MultiStepLR(o, milestones), steps)
    assert ours(ScheduleSettings("step"), steps) == pytest.approx(step)
    cycle = rates_of_torch(
        lambda o: OneCycleLR(o, 1.0, total_steps=steps + 1, pct_start=0.3, cycle_momentum=False),
        steps + 1,
    )
    assert ours(ScheduleSettings("one-cycle", rise=0.3), steps + 1) == pytest.approx(cycle)


def test_warmup_rises_over_the_first_epochs():
    knobs = ScheduleSettings("constant", warmup=0.5)
    assert ours(knobs, 20)[:7] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1])


def test_average_is_the_recurrence_written_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    average = checkpoint.WeightAverage(model, 0.3)
    expected = {name: value.clone().double() for name, value in model.state_dict().items()}
    for update in range(1, 6):
        model(torch.randn(2, 3, 4, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        decay = min(0.3, (1 + update) / (10 + update))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
        average.update(model)
    for name, value in average.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], atol=1e-6, rtol=1e-5)
    assert average.model[1].num_batches_tracked == 5
    assert not average.model.training


# The loss of a batch as one function, against the same formulas written out.


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(create_backbone("identity", channels=6), LinearHead(6, 3))


@pytest.mark.parametrize(
    ("asked", "device", "world", "steps", "fixed", "expected"),
    [
        (None, "cuda", 1, 10**6, True, False),
        (True, "cuda", 1, 1, True, True),
        (None, "cuda", 1, 6000, False, True),
        (None, "cuda", 1, 5999, False, False),
        (None, "cuda", 2, 6000, False, False),
        (None, "cpu", 1, 10**6, False, False),
        (True, "cpu", 1, 1, False, True),
        (False, "cuda", 1, 10**6, False, False),
    ],
)
def test_long_runs_on_one_gpu_are_compiled(asked, device, world, steps, fixed, expected):
    hardware = Hardware(compile=asked)
    found, why = compiles(hardware, torch.device(device), world, steps, deterministic=fixed)
    assert found is expected
    assert bool(why) == (asked is None and device == "cuda" and world == 1 and not fixed)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_the_function_compiles_and_half_precision_is_the_models_alone(model, precision):
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(8, 3, generator=generator) < 0.4).float()
    images, objective, seen = torch.randn(8, 6, generator=generator), BCE(), []
    model.head.register_forward_hook(lambda *call: seen.append(call[2].logits.dtype))
    loss = accelerated(lambda *batch: objective(model(batch[0]), batch[1]), precision=precision)
    expected = loss(images, Targets(labels))
    assert (seen, expected.dtype) == ([precision or torch.float32], torch.float32)
    model.head._forward_hooks.clear()
    graph = torch.compile(
        lambda images, labels: loss(images, Targets(labels)), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(graph(images, labels), expected)

"""Groups and rates by hand, schedules against torch's own, averages by their formula."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from labelwise.errors import SettingsError
from labelwise.methods import make_objective
from labelwise.models import HeadSpec, Model
from labelwise.networks.backbones import create_backbone
from labelwise.networks.heads import LinearHead
from labelwise.objectives import BCE
from labelwise.training.checkpoint import (
    WeightAverage,
    make_optimizer,
    parameter_groups,
    rate,
    restore_state,
)
from labelwise.training.execution import GraphedModel, accelerated, compiles, kernels
from labelwise.training.settings import Hardware, OptimizerSettings, ScheduleSettings
from labelwise.types import DatasetFacts, Targets


def small_model():
    backbone = create_backbone("small-cnn", image_size=32)
    return Model(backbone, HeadSpec("linear", {}).make(backbone.channels, 3))


def test_biases_and_norms_are_not_decayed_and_nothing_is_left_out():
    model = small_model()
    groups = parameter_groups(model, BCE(), OptimizerSettings(lr=0.1, weight_decay=0.2))
    decayed = {id(p) for g in groups if g["weight_decay"] == 0.2 for p in g["params"]}
    plain = {id(p) for g in groups if g["weight_decay"] == 0 for p in g["params"]}
    for parameter in model.parameters():
        assert (id(parameter) in decayed) == (parameter.ndim > 1)
        assert (id(parameter) in plain) == (parameter.ndim <= 1)


def test_rates_fall_from_head_to_input():
    model = small_model()
    knobs = OptimizerSettings(lr=1.0, backbone_lr=0.1, stage_decay=0.5)
    rates = {
        id(parameter): group["lr"]
        for group in parameter_groups(model, BCE(), knobs)
        for parameter in group["params"]
    }
    stages = model.backbone.stages()
    named = dict(model.backbone.named_parameters())
    for depth, stage in enumerate(reversed(stages)):
        for name in stage:
            assert rates[id(named[name])] == pytest.approx(0.1 * 0.5**depth)
    assert rates[id(model.head.classifier.weight)] == 1.0


def test_the_objectives_parameters_have_their_own_rate_and_no_decay():
    facts = DatasetFacts(num_images=5, num_labels=3, mean_labels=1.5)
    objective = make_objective("role", facts, table="dense")
    groups = parameter_groups(small_model(), objective, OptimizerSettings(lr=0.1, weight_decay=0.2))
    theta = next(iter(objective.parameters()))
    (group,) = [g for g in groups if any(p is theta for p in g["params"])]
    assert group["lr"] == pytest.approx(1.0)
    assert group["weight_decay"] == 0


def test_frozen_parameters_are_left_out():
    model = small_model()
    model.backbone.requires_grad_(False)
    groups = parameter_groups(model, BCE(), OptimizerSettings())
    assert sum(len(group["params"]) for group in groups) == 2
    model.requires_grad_(False)
    with pytest.raises(SettingsError, match="nothing to train"):
        make_optimizer(model, BCE(), OptimizerSettings())


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_restored_moments_have_the_layout_of_their_parameters(name):
    model = small_model().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, BCE(), OptimizerSettings(name))
    model(torch.randn(2, 3, 32, 32)).logits.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    for entry in state["state"].values():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor):
                entry[key] = value.clone(memory_format=torch.contiguous_format)
    restore_state(optimizer, state)

    def strides(tensor):
        """Of sides of one number they mean nothing, and differ with the version of torch."""
        return [step for step, side in zip(tensor.stride(), tensor.shape, strict=True) if side > 1]

    pairs = [
        (strides(value), strides(parameter))
        for parameter, entry in optimizer.state.items()
        for value in entry.values()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]
    assert pairs
    assert all(ours == theirs for ours, theirs in pairs)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: OptimizerSettings(lr=-1), "lr\n  Input should be greater than or equal to 0"),
        (lambda: OptimizerSettings(clip=0), "clip\n  Input should be greater than 0"),
        (lambda: ScheduleSettings(rise=1), "rise\n  Input should be less than 1"),
        (lambda: ScheduleSettings(milestones=(30, 60)), "Input should be less than 1"),
    ],
)
def test_bad_numbers_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


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
    return [rate(knobs, step, steps, per_epoch) for step in range(steps)]


@pytest.mark.parametrize("steps", [10, 37, 200])
def test_schedules_are_torchs(steps):
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


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", ["constant", "cosine", "step", "one-cycle"])
def test_the_shortest_runs_have_finite_rates(name, steps):
    assert all(0 <= value <= 1 for value in ours(ScheduleSettings(name), steps))


def test_average_is_the_recurrence_written_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    average = WeightAverage(model, 0.3)
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


def loss_function(model, **how):
    objective = BCE()
    return accelerated(lambda images, targets: objective(model(images), targets), **how)


def batch() -> tuple[torch.Tensor, Targets]:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(8, 3, generator=generator) < 0.4).float()
    return torch.randn(8, 6, generator=generator), Targets(labels, index=torch.arange(8))


def test_half_precision_reaches_the_model_but_not_the_objective(model):
    images, targets = batch()
    seen = []
    model.head.register_forward_hook(lambda *call: seen.append(call[2].logits.dtype))
    loss = loss_function(model, precision=torch.bfloat16)(images, targets)
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32


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
def test_the_function_compiles_without_a_break(model, precision):
    images, targets = batch()
    plain = loss_function(model, precision=precision)
    graph = torch.compile(
        lambda images, labels: plain(images, Targets(labels)), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(graph(images, targets.labels), plain(images, targets))


class CountsCalls(nn.Module):
    """A layer of another library, whose Python code a graph would leave out."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x


@pytest.mark.parametrize("foreign", [True, False])
def test_only_layers_that_hide_no_python_code_are_captured(foreign, monkeypatch):
    backbone = create_backbone("small-cnn")
    model = Model(backbone, LinearHead(backbone.channels, 3))
    captured = []
    monkeypatch.setattr(GraphedModel, "_kept", lambda _, images: captured.append(images.shape))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    if foreign:
        model.head.extra = CountsCalls()
    images = torch.randn(2, 3, 32, 32)
    network = GraphedModel(model.eval(), None)
    for _ in range(2):
        torch.testing.assert_close(network(images).logits, model(images).logits)
    assert captured == ([] if foreign else [images.shape])


@pytest.mark.parametrize("deterministic", [True, False])
def test_kernels_are_chosen_inside_the_block_alone(deterministic, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with kernels(deterministic=deterministic):
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark

import pytest
import torch

from labelwise.backbones import create_backbone
from labelwise.errors import SettingsError
from labelwise.methods import make_objective
from labelwise.objectives import BCE
from labelwise.predictor import HeadSpec, Model
from labelwise.training.optimizer import (
    make_optimizer,
    parameter_groups,
    restore_state,
    set_rate,
)
from labelwise.training.recipe import OptimizerKnobs
from labelwise.types import DatasetFacts


def small_model():
    backbone = create_backbone("small-cnn", image_size=32)
    return Model(backbone, HeadSpec("linear", {}).make(backbone.channels, 3))


def test_biases_and_norms_are_not_decayed_and_nothing_is_left_out():
    model = small_model()
    groups = parameter_groups(model, BCE(), OptimizerKnobs(lr=0.1, weight_decay=0.2))
    decayed = {id(p) for g in groups if g["weight_decay"] == 0.2 for p in g["params"]}
    plain = {id(p) for g in groups if g["weight_decay"] == 0 for p in g["params"]}
    for parameter in model.parameters():
        assert (id(parameter) in decayed) == (parameter.ndim > 1)
        assert (id(parameter) in plain) == (parameter.ndim <= 1)


def test_rates_fall_from_head_to_input():
    model = small_model()
    knobs = OptimizerKnobs(lr=1.0, backbone_lr=0.1, stage_decay=0.5)
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
    groups = parameter_groups(small_model(), objective, OptimizerKnobs(lr=0.1, weight_decay=0.2))
    theta = next(iter(objective.parameters()))
    (group,) = [g for g in groups if any(p is theta for p in g["params"])]
    assert group["lr"] == pytest.approx(1.0)
    assert group["weight_decay"] == 0


def test_frozen_parameters_are_left_out():
    model = small_model()
    model.backbone.requires_grad_(False)
    groups = parameter_groups(model, BCE(), OptimizerKnobs())
    assert sum(len(group["params"]) for group in groups) == 2
    model.requires_grad_(False)
    with pytest.raises(SettingsError, match="nothing to train"):
        make_optimizer(model, BCE(), OptimizerKnobs())


def test_rates_are_multiples_of_their_base():
    optimizer = make_optimizer(small_model(), BCE(), OptimizerKnobs(lr=0.1, backbone_lr=0.5))
    set_rate(optimizer, 0.3)
    set_rate(optimizer, 0.2)
    assert {round(group["lr"], 12) for group in optimizer.param_groups} == {0.02, 0.01}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_restored_moments_have_the_layout_of_their_parameters(name):
    model = small_model().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, BCE(), OptimizerKnobs(name))
    model(torch.randn(2, 3, 32, 32)).logits.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    for entry in state["state"].values():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor):
                entry[key] = value.clone(memory_format=torch.contiguous_format)
    restore_state(optimizer, state)
    for parameter, entry in optimizer.state.items():
        for value in entry.values():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                assert value.stride() == parameter.stride()


def test_bad_knobs_are_refused():
    with pytest.raises(SettingsError, match="lr must not be negative, got -1"):
        OptimizerKnobs(lr=-1)
    with pytest.raises(SettingsError, match="clip must be positive, got 0"):
        OptimizerKnobs(clip=0)

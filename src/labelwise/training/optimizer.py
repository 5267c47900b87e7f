"""The optimiser over model and objective, with one group for each learning rate and decay."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from labelwise.errors import SettingsError
from labelwise.objectives import Objective
from labelwise.predictor import Model
from labelwise.training.recipe import OptimizerKnobs

__all__ = ["make_optimizer", "parameter_groups", "restore_state", "set_rate"]


def make_optimizer(model: Model, objective: Objective, knobs: OptimizerKnobs) -> Optimizer:
    """Return the fused optimiser; each group keeps its base rate under ``base_lr``."""
    groups = parameter_groups(model, objective, knobs)
    if not groups:
        raise SettingsError("nothing to train: every parameter is frozen")
    if knobs.name == "sgd":
        nesterov = knobs.nesterov and knobs.momentum > 0
        return SGD(groups, momentum=knobs.momentum, nesterov=nesterov, fused=True)
    return AdamW(groups, fused=True)


def set_rate(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to ``factor`` times its base."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def parameter_groups(
    model: Model, objective: Objective, knobs: OptimizerKnobs
) -> list[dict[str, Any]]:
    """Return the groups: rates by part and stage, no decay on biases, norms and the objective."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, multiple, decayed in _parameters(model, objective, knobs):
        if parameter.requires_grad:
            key = (knobs.lr * multiple, knobs.weight_decay if decayed else 0.0)
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in groups.items()
    ]


def _parameters(
    model: Model, objective: Objective, knobs: OptimizerKnobs
) -> Iterator[tuple[nn.Parameter, float, bool]]:
    stages = model.backbone.stages()
    depth = {name: len(stages) - 1 - i for i, stage in enumerate(stages) for name in stage}
    for name, parameter in model.backbone.named_parameters():
        multiple = knobs.backbone_lr * knobs.stage_decay ** depth[name]
        yield parameter, multiple, parameter.ndim > 1
    for parameter in model.head.parameters():
        yield parameter, 1.0, parameter.ndim > 1
    for parameter in objective.parameters():
        yield parameter, objective.lr_scale, False


def restore_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict, each tensor in the memory layout of its parameter.

    Restored moments in another layout than the parameter's would run through another kernel,
    and the last bits of a resumed run would differ.
    """
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = optimizer.state.get(parameter, {})
            for key, value in moments.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    moments[key] = torch.empty_like(parameter).copy_(value)

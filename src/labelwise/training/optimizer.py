"""How weights move: the optimiser, the schedule of its learning rate, and averaged weights.

Schedules give the learning rate of a step as a multiple of its base, a pure function:

    constant   1
    cosine     (1 + cos(pi s)) / 2
    step       gamma to the number of milestones at or before s
    one-cycle  from 1/25 up to 1 over the first ``rise`` of the run, then down to 1/10,000 of
               the start, both along half a cosine (Smith and Topin; torch's OneCycleLR)

with s the share of the run that is done. ``warmup`` multiplies the first steps by (t + 1) / W.

The averaged weights follow the trained ones slowly:

    average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t)) at update t

Floating-point buffers (batch-norm statistics) are averaged like weights, others are copied.
"""

from copy import deepcopy
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from labelwise.errors import SettingsError
from labelwise.models import Model
from labelwise.objectives import Objective
from labelwise.training.settings import OptimizerSettings, ScheduleSettings

FIRST_RATE = 1 / 25
LAST_RATE = FIRST_RATE / 1e4


def make_optimizer(model: Model, objective: Objective, settings: OptimizerSettings) -> Optimizer:
    """Return the fused optimiser; each group keeps its base rate under ``base_lr``."""
    groups = parameter_groups(model, objective, settings)
    if not groups:
        raise SettingsError("nothing to train: every parameter is frozen")
    if settings.name == "sgd":
        nesterov = settings.nesterov and settings.momentum > 0
        return SGD(groups, momentum=settings.momentum, nesterov=nesterov, fused=True)
    return AdamW(groups, fused=True)


def set_rate(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to ``factor`` times its base."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def parameter_groups(
    model: Model, objective: Objective, settings: OptimizerSettings
) -> list[dict[str, Any]]:
    """Return the groups: rates by part and stage, no decay on biases, norms and the objective."""
    stages = model.backbone.stages()
    depth = {name: len(stages) - 1 - i for i, stage in enumerate(stages) for name in stage}
    rates = [
        (parameter, settings.backbone_lr * settings.stage_decay ** depth[name])
        for name, parameter in model.backbone.named_parameters()
    ]
    rates += [(parameter, 1.0) for parameter in model.head.parameters()]
    kinds = [(parameter, multiple, parameter.ndim > 1) for parameter, multiple in rates]
    kinds += [(parameter, objective.lr_scale, False) for parameter in objective.parameters()]
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, multiple, decayed in kinds:
        if parameter.requires_grad:
            key = (settings.lr * multiple, settings.weight_decay if decayed else 0.0)
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in groups.items()
    ]


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


def rate(settings: ScheduleSettings, step: int, steps: int, steps_per_epoch: int) -> float:
    """Return the multiplier of step ``step`` (from 0) of a run of ``steps``."""
    warmup = round(settings.warmup * steps_per_epoch)
    grow = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return grow * _shape(settings, step, steps)


def _shape(settings: ScheduleSettings, step: int, steps: int) -> float:
    done = step / steps
    if settings.name == "cosine":
        return (1 + cos(pi * done)) / 2
    if settings.name == "step":
        return float(settings.gamma ** sum(done >= share for share in settings.milestones))
    if settings.name == "one-cycle":
        top = settings.rise * steps - 1
        if step <= top and top > 0:
            return _half_cosine(FIRST_RATE, 1.0, step / top)
        return _half_cosine(1.0, LAST_RATE, (step - top) / max(steps - 1 - top, 1))
    return 1.0


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + cos(pi * share)) / 2


class WeightAverage:
    """The averaged model, in evaluation mode, with the number of updates it has seen."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights of ``model``."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averages, values = _floats(self.model), _floats(model)
        move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        move(averages, values, self.updates)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            if not buffer.is_floating_point():
                buffer.copy_(source)


def _floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]

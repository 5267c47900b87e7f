"""How weights move, and everything that a resumed run needs to go on, with its files.

    checkpoint/00000003/state.safetensors    model, average, objective, optimiser, random state
    checkpoint/00000003/state.json           position, figures so far, optimiser groups
    checkpoint/best-00000100.safetensors     the weights to deploy, as chosen so far

The best weights are written before the checkpoint that names them. Every file has a hash, and the
checkpoint before the newest is kept until the run is finished, its evaluation and model written:
if the newest one is damaged, the run goes on from there.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from labelwise.base.distributed import gather_rows, rank, tensors_of_first, value_of_first
from labelwise.base.files import replacing, replacing_folder, summed, without_sum
from labelwise.base.tensors import load_tensors, part_of, save_tensors
from labelwise.base.text import one_line_of
from labelwise.errors import CheckpointError, SettingsError
from labelwise.learn.objectives import Objective
from labelwise.learn.predictor import Model
from labelwise.training.settings import OptimizerSettings, ScheduleSettings

# How weights move: the optimiser, the schedule of its learning rate, and averaged weights.
#
# Schedules give the learning rate of a step as a multiple of its base, a pure function:
#
#     constant   1
#     cosine     (1 + cos(pi s)) / 2
#     step       gamma to the number of milestones at or before s
#     one-cycle  from 1/25 up to 1 over the first ``rise`` of the run, then down to 1/10,000 of
#                the start, both along half a cosine (Smith and Topin; torch's OneCycleLR)
#
# with s the share of the run that is done. ``warmup`` multiplies the first steps by (t + 1) / W.
#
# The averaged weights follow the trained ones slowly:
#
#     average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t)) at update t
#
# Floating-point buffers (batch-norm statistics) are averaged like weights, others are copied.

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
    stages = reversed(model.backbone.stages())
    depth = {name: number for number, stage in enumerate(stages) for name in stage}
    rates = [
        (parameter, settings.backbone_lr * settings.stage_decay ** depth[name], True)
        for name, parameter in model.backbone.named_parameters()
    ]
    rates += [(parameter, 1.0, True) for parameter in model.head.parameters()]
    rates += [(parameter, objective.lr_scale, False) for parameter in objective.parameters()]
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, multiple, decays in rates:
        if parameter.requires_grad:
            decay = settings.weight_decay if decays and parameter.ndim > 1 else 0.0
            groups.setdefault((settings.lr * multiple, decay), []).append(parameter)
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
    warmup, done = round(settings.warmup * steps_per_epoch), step / steps
    grow = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if settings.name == "cosine":
        return grow * ((1 + cos(pi * done)) / 2)
    if settings.name == "step":
        return grow * float(settings.gamma ** sum(done >= share for share in settings.milestones))
    if settings.name == "one-cycle":
        top = settings.rise * steps - 1
        if step <= top and top > 0:
            return grow * _half_cosine(FIRST_RATE, 1.0, step / top)
        return grow * _half_cosine(1.0, LAST_RATE, (step - top) / max(steps - 1 - top, 1))
    return grow


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + cos(pi * share)) / 2


class WeightAverage:
    """The averaged model, in evaluation mode, with the number of updates it has seen."""

    def __init__(self, model: Model, decay: float) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: Model) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        move = get_ema_multi_avg_fn(decay)
        move(_floats(self.model), _floats(model), self.updates)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            if not buffer.is_floating_point():
                buffer.copy_(source)


def _floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


# The files of a run that it is resumed from.


@dataclass
class Position:
    """Where a run is: epochs done, batches done in this epoch, steps done, the best so far."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    journal_bytes: int = 0
    done: bool = False


@dataclass
class TrainingState:
    """The objects that change while training."""

    model: Model
    objective: Objective
    optimizer: Optimizer
    average: WeightAverage | None
    position: Position
    contents: Mapping[str, str | None]  # hashes of what the run was started with, "data" among them

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def deployed(self) -> Model:
        return self.model if self.average is None else self.average.model

    def save(self, folder: Path, *, write: bool) -> None:
        """Write a checkpoint. Every process must call this; one of them writes."""
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        # One row per process.
        random = {name: gather_rows(row[None].to(self.device)) for name, row in states.items()}
        if not write:
            return
        optimizer = self.optimizer.state_dict()
        moments = {
            f"{number}.{key}": value
            for number, entry in optimizer["state"].items()
            for key, value in entry.items()
            if value is not None
        }
        tensors = {
            **_named("model", self.model.state_dict()),
            **_named("objective", self.objective.state_dict()),
            **_named("optimizer", moments),
            **_named("random", random),
        }
        facts: dict[str, Any] = asdict(self.position) | {
            "groups": optimizer["param_groups"],
            **self.contents,
        }
        if self.average is not None:
            tensors |= _named("average", self.average.model.state_dict())
            facts["average_updates"] = self.average.updates
        save(folder, tensors, facts)

    def restore(self, folder: Path) -> str | None:
        """Go back to the newest good checkpoint; return what is damaged, None if there is none."""
        own = load_latest(folder) if rank() == 0 else None
        words = value_of_first(None if own is None else (own.facts, own.damaged), self.device)
        if words is None:
            return None
        tensors = tensors_of_first({} if own is None else own.tensors, self.device)
        facts: dict[str, Any] = words[0]
        if facts.get("data") != self.contents["data"]:
            raise CheckpointError(
                f"the data changed since the run in {folder.parent} began; "
                "bring the old data back, or start over with --fresh"
            )
        try:
            self.position = Position(**{k: facts[k] for k in asdict(Position()) if k in facts})
            self.model.load_state_dict(part_of(tensors, "model"))
            kept = part_of(tensors, "objective").items()  # 0.2 kept the weights of a sigmoid too
            self.objective.load_state_dict(
                {key: value for key, value in kept if not key.endswith("link.log_weights")}
            )
            if self.average is not None:
                self.average.model.load_state_dict(part_of(tensors, "average"))
                self.average.updates = facts["average_updates"]
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in part_of(tensors, "optimizer").items():
                number, _, key = name.partition(".")
                moments.setdefault(int(number), {})[key] = value
            restore_state(self.optimizer, {"state": moments, "param_groups": facts["groups"]})
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint in {folder} does not fit these settings ({error}); "
                "start over with --fresh"
            ) from error
        states, own_row = part_of(tensors, "random"), rank()
        if own_row < len(states["cpu"]):  # processes that are more than before keep their own seeds
            # A row is a view with an offset, which torch would read from the start of its storage.
            torch.set_rng_state(states["cpu"][own_row].clone())
            if "cuda" in states and self.device.type == "cuda":
                torch.cuda.set_rng_state(states["cuda"][own_row].clone(), self.device)
        return str(words[1])

    def save_best(self, folder: Path) -> None:
        link = self.objective.link
        kept: dict[str, Tensor] = link.state_dict() if isinstance(link, nn.Module) else {}
        tensors = _named("model", self.deployed.state_dict()) | _named("link", kept)
        with replacing(folder / _best_name(self.position.step)) as temporary:
            save_tensors(temporary, tensors)

    def restore_best(self, folder: Path) -> None:
        if self.position.best_step is None:
            return
        try:
            best = folder / _best_name(self.position.best_step)
            own = load_tensors(best) if rank() == 0 else {}
        except CheckpointError as error:
            raise CheckpointError(f"{error}; start over with --fresh") from None
        tensors = tensors_of_first(own, self.device)
        self.deployed.load_state_dict(part_of(tensors, "model"))
        if isinstance(self.objective.link, nn.Module):
            self.objective.link.load_state_dict(part_of(tensors, "link"))


def _named(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its tensors, the rest, and words on newer ones left out."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    damaged: str = ""


def save(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a new checkpoint and remove what it makes superfluous.

    The one before it stays, in case this one is damaged.
    """
    earlier = places(folder)
    path = folder / f"{int(earlier[-1].name) + 1 if earlier else 1:08d}"
    with replacing_folder(path) as temporary:
        save_tensors(temporary / "state.safetensors", tensors)
        (temporary / "state.json").write_text(json.dumps(summed(facts)), encoding="utf-8")
    keep = {path.name, _best_name(facts.get("best_step"))}
    for previous in earlier[-1:]:
        with suppress(CheckpointError):
            keep |= {_best_name(_read_facts(previous).get("best_step")), previous.name}
    _remove_others(folder, keep)


def keep_newest(folder: Path) -> None:
    """Remove all but the newest checkpoint and its best weights, of a run that is finished."""
    for newest in places(folder)[-1:]:
        with suppress(CheckpointError):
            _remove_others(folder, {newest.name, _best_name(_read_facts(newest).get("best_step"))})


def _remove_others(folder: Path, keep: set[str]) -> None:
    for other in folder.iterdir():
        if other.is_dir() and other.name not in keep:
            shutil.rmtree(other, ignore_errors=True)  # what is left is superfluous, not in the way
        elif other.name not in keep:
            other.unlink(missing_ok=True)


def load_latest(folder: Path, part: str | None = None) -> Checkpoint | None:
    """Return the newest good checkpoint (perhaps one part of its tensors), or None."""
    errors: list[str] = []
    for path in reversed(places(folder)):
        try:
            facts = _read_facts(path)
            tensors = load_tensors(path / "state.safetensors", part)
            damaged = f"{errors[0]}; going on from the checkpoint before it" if errors else ""
            return Checkpoint(tensors, facts, damaged)
        except CheckpointError as error:
            errors.append(str(error))
    if errors:
        raise CheckpointError(f"{errors[0]}; start over with --fresh")
    return None


def latest_facts(folder: Path) -> dict[str, Any]:
    """Return what the newest readable checkpoint says beside its tensors; nothing if none is."""
    for path in reversed(places(folder)):
        with suppress(CheckpointError):
            return _read_facts(path)
    return {}


def _read_facts(place: Path) -> dict[str, Any]:
    path = place / "state.json"
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line_of(error)}") from None
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} must hold an object, got {type(facts).__name__}")
    whole = without_sum(facts)  # checkpoints of 0.1 have none
    if whole is None:
        raise CheckpointError(f"{path} is damaged: it is not what was written")
    return whole


def places(folder: Path) -> list[Path]:
    """Return the checkpoints that can be gone on from, the newest last."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def _best_name(step: int | None) -> str:
    return "" if step is None else f"best-{step:08d}.safetensors"

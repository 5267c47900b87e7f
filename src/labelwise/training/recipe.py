"""Recipe: how long, with which optimiser and schedule a network is trained; Hardware: on what."""

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from labelwise.errors import SettingsError


def _at_least(settings: object, *names: str) -> None:
    values = vars(settings)
    for name in names:
        if not isfinite(values[name]):
            raise SettingsError(f"{name} must be a finite number, got {values[name]}")
        if values[name] < 0:
            raise SettingsError(f"{name} must not be negative, got {values[name]}")


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW or SGD; the backbone's learning rate is ``backbone_lr`` times ``lr``.

    Biases and norms (parameters of at most one dimension) and the objective's own parameters
    are not decayed; the latter have a multiple of ``lr`` that the objective names.
    ``stage_decay`` multiplies the rate once more a stage away from the head.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 4e-3
    weight_decay: float = 0.05
    momentum: float = 0.9
    nesterov: bool = True
    backbone_lr: float = 1.0
    stage_decay: float = 1.0
    clip: float | None = None

    def __post_init__(self) -> None:
        _at_least(self, "lr", "weight_decay", "momentum", "backbone_lr")
        if self.clip is not None and not 0 < self.clip < inf:
            raise SettingsError(f"clip must be positive, got {self.clip}")
        if not 0 < self.stage_decay <= 1:
            raise SettingsError(f"stage_decay must lie in (0, 1], got {self.stage_decay}")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate moves: see :mod:`labelwise.training.optimizer`.

    ``warmup`` is a number of epochs; ``rise`` is one-cycle's rising share of the run;
    ``milestones`` are shares of the run at which ``step`` multiplies the rate by ``gamma``.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["constant", "cosine", "step", "one-cycle"] = "one-cycle"
    warmup: float = 0.0
    rise: float = 0.2
    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        _at_least(self, "warmup", "gamma")
        if not 0 < self.rise < 1:
            raise SettingsError(f"rise must lie strictly between 0 and 1, got {self.rise}")
        if not all(0 < share < 1 for share in self.milestones):
            raise SettingsError(f"milestones must be shares of the run, got {self.milestones}")


@dataclass(frozen=True)
class Recipe:
    """How long and by which steps a model is trained.

    ``ema`` is the decay of the averaged weights (0: none). ``keep`` says which epoch is
    deployed: the best by the validation ``metric``, or the last. ``patience`` epochs without a
    better metric stop the run (None: never). ``log_steps`` steps pass between two looks at the
    loss, ``save_seconds`` between two checkpoints inside an epoch.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epochs: int = 8
    accumulate: int = 1
    ema: float = 0.0
    metric: str = "map"
    patience: int | None = None
    keep: Literal["best", "last"] = "best"
    prior_bias: bool = True
    log_steps: int = 50
    save_seconds: float = 300.0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)

    def __post_init__(self) -> None:
        _at_least(self, "save_seconds")
        counts = {"epochs": self.epochs, "accumulate": self.accumulate, "log_steps": self.log_steps}
        for name, value in counts.items():
            if value < 1:
                raise SettingsError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.ema < 1:
            raise SettingsError(f"ema must lie in [0, 1), got {self.ema}")
        if self.patience is not None and self.patience < 1:
            raise SettingsError(f"patience must be at least 1, got {self.patience}")


def _as_list(value: Any) -> Any:
    """Return one name as a list of it, and each name once."""
    values = [value] if isinstance(value, str) else value
    return list(dict.fromkeys(values)) if isinstance(values, list | tuple) else values


class Hardware(BaseModel):
    """Where and how a run is carried out.

    ``devices`` counts processes, ``workers`` decoding threads (0: one per core). ``compile`` is
    left to the run unless it is given: on one GPU, if the run is long enough for it to pay.
    ``features_cache`` is the folder in which features are kept for the next run. ``loggers`` are
    told the records of the journal (:mod:`labelwise.training.loggers`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = Field(default=1, ge=1)
    workers: int = Field(default=0, ge=0)
    compile: bool | None = None
    features_cache: str = "runs/features"
    loggers: Annotated[
        tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_as_list)
    ] = ()

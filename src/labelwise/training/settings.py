"""Settings of a run: defaults, then a YAML file, then flags, validated and saved with the run."""

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from labelwise.base.files import replacing
from labelwise.base.yaml_values import nested, read_yaml, short_value
from labelwise.decide import find_promise
from labelwise.decide.promised_rules import CROSS_FITTED_SHARE, check_cross_fit
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.pictures.transform import parse_window
from labelwise.types import nearest

# Recipe: how long, with which optimiser and schedule a network is trained; Hardware: on what.

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CLOSED = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=CLOSED)
class OptimizerSettings:
    """AdamW or SGD; the backbone's learning rate is ``backbone_lr`` times ``lr``.

    Biases and norms (parameters of at most one dimension) and the objective's own parameters
    are not decayed; the latter have a multiple of ``lr`` that the objective names.
    ``stage_decay`` multiplies the rate once more a stage away from the head.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: NotNegative = 4e-3
    weight_decay: NotNegative = 0.05
    momentum: NotNegative = 0.9
    nesterov: bool = True
    backbone_lr: NotNegative = 1.0
    stage_decay: Annotated[Positive, Field(le=1)] = 1.0
    clip: Positive | None = None


@dataclass(frozen=True, config=CLOSED)
class ScheduleSettings:
    """How the learning rate moves: see :mod:`labelwise.training.checkpoint`.

    ``warmup`` is a number of epochs; ``rise`` is one-cycle's rising share of the run;
    ``milestones`` are shares of the run at which ``step`` multiplies the rate by ``gamma``.
    """

    name: Literal["constant", "cosine", "step", "one-cycle"] = "one-cycle"
    warmup: NotNegative = 0.0
    rise: Share = 0.2
    milestones: tuple[Share, ...] = (0.5, 0.75)
    gamma: NotNegative = 0.1


@dataclass(frozen=True, config=CLOSED)
class Recipe:
    """How long and by which steps a model is trained.

    ``ema`` is the decay of the averaged weights (0: none). ``keep`` says which epoch is
    deployed: the best by the validation ``metric``, or the last. ``patience`` epochs without a
    better metric stop the run (None: never). ``log_steps`` steps pass between two looks at the
    loss, ``save_seconds`` between two checkpoints inside an epoch.
    """

    epochs: Count = 8
    accumulate: Count = 1
    ema: Annotated[NotNegative, Field(lt=1)] = 0.0
    metric: str = "map"
    patience: Count | None = None
    keep: Literal["best", "last"] = "best"
    prior_bias: bool = True
    log_steps: Count = 50
    save_seconds: NotNegative = 300.0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


def _as_list(value: object) -> object:
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


AUTO = "auto"
SMALL_NETWORK = "small-cnn"
FEATURES_BATCH = 256
# For rows of standardised features:
FEATURES_RECIPE = {"epochs": 30, "optimizer": {"lr": 1e-3, "weight_decay": 0.1}}
EFFORT_DEFAULTS = {  # for a pretrained network that is trained from a solved head
    "batch_size": 32,
    "augment": "flip",
    "freeze_batch_norm": True,
    "recipe": {"epochs": 5, "optimizer": {"lr": 3e-4, "weight_decay": 0.05}},
}
SAY_HOW = ("augment", "mirror", "crops", "freeze", "freeze_batch_norm")
NOT_OF_CROSS_FIT = (
    "{key} moves the labels of an image together, so the sets of a promise would not stay; "
    "leave out cross_fit or {key}"
)
NOT_OF_ATTRIBUTES = (
    "attributes and {key} both move the labels of an image together, and not to the same place; "
    "leave one of them out"
)
ONLY_OF_BANDS = "{key} belongs to bands; name them, or give bands=all"
NOT_OF_EFFORT = (
    "{key} does not apply to an effort, which begins with the features of a pretrained network on "
    "one device; leave out {key} or effort"
)
NOT_OF_FEATURES = (
    "{key} does not apply to features, which are computed once; leave it out, or train the network "
    "with backbone={features}"
)
Precision = Literal["32", "bf16"]
Effort = Literal["quick", "good", "best"]
GIVEN_OFTEN = (
    "data on_error skip_missing keep_val labels_are taxonomy attributes method effort minutes "
    "backbone features weights start head image_size bands composite window augment batch_size "
    "precision seed deterministic calibrate rule recipe.epochs recipe.metric recipe.patience "
    "recipe.optimizer.lr recipe.optimizer.weight_decay hardware.accelerator hardware.devices "
    "hardware.workers"
)
SHORT_NAMES = {
    **{key.rpartition(".")[2]: key for key in GIVEN_OFTEN.split()},
    "optimizer": "recipe.optimizer.name",
    "schedule": "recipe.schedule.name",
    "log": "hardware.loggers",
}


class Settings(BaseModel):
    """Everything that decides a run.

    ``on_error`` says what to do about pictures that cannot be read: ``stop`` before training, or
    ``skip`` them; ``skip_missing`` leaves out those that are not there. ``val_share`` of the
    training images become validation where the data has none (0: none). A head that is solved on
    frozen features trains on validation too, since its out-of-fold predictions choose strength,
    calibrator and rule; with ``keep_val`` it does not. ``labels_are`` ``complete`` says that a
    photo with one label noted shows no other; ``auto`` looks
    (:mod:`labelwise.calibration.noted`). ``taxonomy`` is a file of which label is a kind of which:
    labels, probabilities and sets then obey it; ``attributes`` one of groups of labels that exclude
    each other (:mod:`labelwise.taxonomy`), likewise.
    ``method`` may be ``auto``: chosen by what the labels are like. ``options`` are the method's
    own. ``backbone`` may be ``auto``: chosen by what the pictures are like
    (:mod:`labelwise.training.prepare`). ``effort`` says how much is tried with a pretrained
    network (:mod:`labelwise.training.run`), which ends after ``minutes``.
    ``start`` is the folder of a finished run with the same labels, whose backbone and head
    this one begins with; ``weights`` are the backbone's alone. ``features`` names a backbone that
    is not trained: its features are computed once, and the head is solved or trained on them.
    ``means_only`` keeps to the means of the built-in network's last layer, as timm and transformers
    compute them: their folders need such a head.
    ``squash`` scales whole pictures to the input, so that no edge is cut off. ``reduced_jpeg``
    decodes large JPEGs at a fraction of their size, in training and ever after: several times
    faster, but no other program has the same pixels, so that exports which begin with a picture
    refuse such a model. ``bands`` are what pictures hold that are not 8-bit RGB: their names, or
    ``all``; ``composite`` the one or three that are shown to people, ``window`` what of a DICOM's
    values is seen (:mod:`labelwise.pictures.transform`).
    ``batch_size`` is joined over all devices. ``freeze`` is the number of backbone stages that are
    not trained (-1: all). ``mirror`` answers with the mean over a picture and its mirror image, at
    twice the cost; ``crops=5`` with the mean over five windows of it, enlarged by 8/7.
    ``calibrate`` and ``rule`` name what is fitted on the validation split. ``promise``, such as
    ``precision=0.9``, replaces the rule by one that is tested with ``confidence`` on
    ``promise_share`` of the validation rows (half), which nothing else sees. With ``cross_fit``
    that share is 0.8, and once the promise is made the calibrator is fitted again on all
    validation rows, with thresholds that choose the same sets. ``zero_share`` is the share of
    images without labels that is expected in use, if it is another than in validation.
    ``seed`` decides all random numbers: on a CPU two runs of one seed are equal to the bit, on a
    GPU they are with ``deterministic``, which takes slower kernels.
    """

    # Whoever writes rule=0.5 or precision=32 means the text.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    data: str
    data_options: dict[str, Any] = {}
    on_error: Literal["stop", "skip"] = "stop"
    skip_missing: bool = False
    val_share: float = Field(default=0.1, ge=0, lt=1)
    keep_val: bool = False
    labels_are: Literal["auto", "complete"] = "auto"
    taxonomy: str | None = None
    attributes: str | None = None
    method: str = AUTO
    options: dict[str, Any] = {}
    effort: Effort | None = None
    minutes: float | None = Field(default=None, gt=0)
    backbone: str = AUTO
    features: str | None = None
    means_only: bool = False
    weights: str | None = None
    start: str | None = None
    image_size: int | None = Field(default=None, ge=8, le=16384)
    squash: bool = False
    reduced_jpeg: bool = False
    bands: str | None = None
    composite: str | None = None
    window: str | None = None
    freeze: int = Field(default=0, ge=-1)
    freeze_batch_norm: bool = False
    head: str | None = None
    head_options: dict[str, Any] = {}
    augment: str = "none"
    mirror: bool = False
    crops: Literal[1, 5] = 1
    batch_size: int = Field(default=64, ge=1)
    precision: Annotated[Precision, BeforeValidator(str)] = "32"
    calibrate: str = "auto"
    zero_share: float | None = Field(default=None, gt=0, lt=1)
    rule: str = AUTO
    promise: str | None = None
    promise_share: float = Field(default=0.5, gt=0, lt=1)
    cross_fit: bool = False
    confidence: float = Field(default=0.95, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    deterministic: bool = False
    recipe: Recipe = Recipe()
    hardware: Hardware = Hardware()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        if values.get("cross_fit"):
            values = {"promise_share": CROSS_FITTED_SHARE, **values}
        if values.get("effort") in ("good", "best"):
            values = with_defaults(values, EFFORT_DEFAULTS)
        eye = str(values.get("backbone", ""))
        if values.get("features") is None and eye.lower().endswith(".onnx"):
            values = {**values, "features": eye}
        if values.get("features") is None:
            return values
        name, recipe = values["features"], values.get("recipe", {})
        given = values.get("backbone", AUTO)
        if given not in (AUTO, name):
            raise SettingsError(f"features are of {name!r}, so leave backbone out, got {given!r}")
        if isinstance(recipe, dict):
            recipe = with_defaults(recipe, FEATURES_RECIPE)
        return {"batch_size": FEATURES_BATCH, **values, "backbone": name, "recipe": recipe}

    @model_validator(mode="after")
    def _parts_fit(self) -> "Settings":
        if self.taxonomy is not None:
            check_promise(self)
        if self.cross_fit:
            if self.promise is None:
                raise SettingsError("cross_fit belongs to promise; give one, such as precision=0.9")
            check_cross_fit(find_promise(self.promise), self.calibrate)
        if self.minutes is not None and self.effort not in ("good", "best"):
            raise SettingsError(
                f"minutes end the efforts good and best, got minutes {self.minutes:g} and effort "
                f"{self.effort}"
            )
        if self.bands is not None:
            if self.reduced_jpeg:
                raise SettingsError("reduced_jpeg is for JPEGs, bands are read whole; leave it out")
            try:
                parse_window("none" if self.window is None else self.window)
            except ValueError as error:
                raise SettingsError(str(error)) from None
        fields = type(self).model_fields
        given = {
            **{key: getattr(self, key) != facts.default for key, facts in fields.items()},
            "hardware.devices": self.hardware.devices > 1,
            "backbone": self.backbone == SMALL_NETWORK and self.weights is None,
        }
        conflicts = (
            (self.cross_fit, ("zero_share", "taxonomy"), NOT_OF_CROSS_FIT),
            (given["attributes"], ("taxonomy", "zero_share", "promise"), NOT_OF_ATTRIBUTES),
            (not given["bands"], ("composite", "window"), ONLY_OF_BANDS),
            (given["effort"], ("features", "start", "hardware.devices", "backbone"), NOT_OF_EFFORT),
            (given["features"], (*SAY_HOW, "start", "hardware.devices"), NOT_OF_FEATURES),
        )
        for applies, keys, sentence in conflicts:
            for key in keys if applies else ():
                if given[key]:
                    raise SettingsError(sentence.format(key=key, features=self.features))
        return self

    def save(self, path: Path) -> None:
        with replacing(path) as temporary:
            values = self.model_dump(mode="json")
            text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
            temporary.write_text(text, encoding="utf-8")


def check_promise(settings: Settings) -> None:
    """Raise if a promise means nothing, or if parents that a taxonomy adds may break it."""
    wish = None if settings.promise is None else find_promise(settings.promise)
    if wish is None or settings.taxonomy is None:
        return
    if wish.what == "tags" or (wish.what, wish.scope) == ("precision", "label"):
        raise SettingsError(
            f"the promise {settings.promise} cannot be kept with a taxonomy, which gives parents "
            "wherever a child is given; promise precision, recall or f"
        )


def with_defaults(
    values: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """Return values, and defaults where there are none, in mappings in mappings too."""
    merged = {**defaults, **values}
    for key, inner in defaults.items():
        if isinstance(inner, Mapping) and isinstance(chosen := merged[key], Mapping):
            merged[key] = with_defaults(chosen, inner)
    return merged


def read_settings(file: Path | None, flags: Mapping[str, object]) -> Settings:
    """Return the settings of an optional YAML file, overridden by ``flags`` (dotted keys)."""
    placed = {}
    for flag, value in flags.items():
        name = flag.partition(".")[0]
        known = name in Settings.model_fields or name not in _data_options()
        placed[flag if known else f"data_options.{flag}"] = value
    values = nested(placed, {} if file is None else read_yaml(file))
    try:
        made, given = Settings.model_validate(values), flattened(values)
        for key, value in flattened(made.model_dump()).items():
            if isinstance(given.get(key), bool) and type(value) in (int, float):
                raise SettingsError(f"{key}: it must be a number, got {str(given[key]).lower()}")
        return made
    except (ValidationError, LabelwiseError) as error:
        where = "" if file is None else f"{file}: "
        what = _sentence(error) if isinstance(error, ValidationError) else str(error)
        raise SettingsError(where + what) from None


def differences(one: Settings, other: Settings) -> dict[str, str]:
    """Return the keys by which two settings give different results, as 'key: old -> new'."""
    old, new = flattened(one.model_dump(mode="json")), flattened(other.model_dump(mode="json"))
    return {
        key: f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith("hardware.")
    }


def flattened(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested values by dotted names: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown setting {key!r}{_nearest_key(first['loc'])}"
    if first["type"] == "missing":
        return f"setting {key!r} is needed"
    rule = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return f"setting {key!r}: {rule}, got {short_value(first['input'])}"


@cache
def _data_options() -> set[str]:
    """Return the names of what `labelwise data` takes as --set, and of its own two options."""
    from labelwise.tables.load import options_of, readers

    return {"duplicates"}.union(*(options_of(reader.function) for reader in readers().values()))


def _nearest_key(path: tuple[int | str, ...]) -> str:
    *parents, last = map(str, path)
    keys = flattened(Settings(data="").model_dump(mode="json"))
    same = [key for key in keys if key.rpartition(".")[2] == last]
    if same:
        return f"; did you mean {' or '.join(map(repr, same))}?"
    if not parents and last in _data_options():
        return f"; it is an option of the data, which a run takes as data_options.{last}"
    prefix = "".join(f"{parent}." for parent in parents)
    inside = {key.removeprefix(prefix).partition(".")[0] for key in keys if key.startswith(prefix)}
    return nearest(last, sorted(inside if parents else {*Settings.model_fields, *SHORT_NAMES}))

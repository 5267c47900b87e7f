"""resolve: from settings and a table to a plan, in which the network and the method are named.

Whatever follows, checks included, reads the plan. The first line that applies names the network:

    the data holds features             the head is solved on them
    a run is started from, or gives     the network of that run
      the weights
    the pictures are small              small-cnn, trained from random values
    they are photos                     a network pretrained on ImageNet, which is not trained:
                                        its features are computed once, the head is solved on them

Photos have a shorter side of at least 64 pixels (the median of a few). A pretrained network needs
far fewer of them than one that begins with random values, which a photo never meets unless it is
asked for by name. The method is what the comparisons in evidence/reproduction.md recommend:

    some labels are soft                  bce
    no label is known to be absent        wan
    some labels are unknown               bce
    an image has several labels           bce
    every image has exactly one label     softmax
    otherwise                             softmax-or-none
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from labelwise.calibration import find_calibrator
from labelwise.data import LabelTable
from labelwise.decide import find_promise, find_rule
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.methods import find_head, find_method
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.spec import MODEL_FILE
from labelwise.networks.backbones.weights import PRETRAINED, architecture_of
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.training.augment import make_augment, require_any_bands
from labelwise.training.inference import higher_is_better
from labelwise.training.loggers import check_loggers
from labelwise.training.settings import AUTO, SAY_HOW, SMALL_NETWORK, Settings

PHOTO_NETWORK = "tf_efficientnet_lite0"
PHOTO_SIDE = 64
LOOKED_AT = 9
# What says how a network is trained, by the setting that is given.
OF_TRAINING = {"recipe": "the recipe (epochs, lr, ...)", **{key: key for key in SAY_HOW}}


@dataclass(frozen=True)
class Plan:
    """Settings with a network and a method, and why it is these."""

    settings: Settings
    reasons: tuple[str, ...] = ()


def resolve(settings: Settings, table: LabelTable) -> Plan:
    """Return the plan of a run on this table; raise if a name in it means nothing."""
    reasons = []
    if settings.backbone == AUTO or settings.effort is not None:
        settings, reason = choose_network(settings, table)
        reasons.append(f"network {reason}")
    if settings.method == AUTO:
        splits = table.splits()
        if "train" not in splits:
            raise DataError(
                f"{table.name} must have rows in the split train, got {', '.join(splits)}"
            )
        name, reason = choose_method(splits["train"])
        settings = settings.model_copy(update={"method": name})
        reasons.append(f"method {name}: {reason}")
    check_names(settings)
    return Plan(settings, tuple(reasons))


def choose_method(table: LabelTable) -> tuple[str, str]:
    """Return the name of a method for a training split, and why."""
    present, unknown = table.present.sizes(), table.unknown.sizes()
    if table.soft is not None:
        return "bce", "labels are soft"
    if not (present + unknown < len(table.space)).any():
        return "wan", "no label is known to be absent"
    if unknown.any() or present.max() > 1:
        return "bce", "images may have several labels"
    if present.min() == 1:
        return "softmax", "every image has exactly one label"
    return "softmax-or-none", "no image has more than one label"


def choose_network(settings: Settings, table: LabelTable) -> tuple[Settings, str]:
    """Return the settings with a network, and why it is this one."""
    if isinstance(table.images, FeatureRows):
        key = "backbone" if _of_training(settings) else "features"
        return _with(settings, **{key: "identity"}), "the data holds features"
    source = settings.start or settings.weights
    if settings.effort is None and source is not None and source != PRETRAINED:
        return _with(settings, backbone=_network_of(source)), f"the network of {source}"
    side = _side(table.images, settings.bands is not None) if settings.effort is None else None
    if side is not None and side < PHOTO_SIDE:
        words = f"{SMALL_NETWORK}, trained from random values: the pictures are small"
        return _with(settings, backbone=SMALL_NETWORK), f"{words} ({side} pixels)"
    name = PHOTO_NETWORK if settings.backbone == AUTO else settings.backbone
    refused = _of_training(settings)
    if refused is not None:
        raise SettingsError(
            f"{refused} does not apply: on photos the head is solved on the features of a "
            f"pretrained network, which is not trained; train it too with --effort good, or "
            f"name it: --backbone {name} --weights pretrained"
        )
    return (
        _with(settings, features=name, weights=settings.weights or PRETRAINED),
        f"{name}, pretrained: its features are computed once, and the head is solved on them",
    )


def _of_training(settings: Settings) -> str | None:
    """Return what was given that says how a network is trained, None if nothing was."""
    plain, given = Settings(data=""), settings.model_fields_set
    whole = len(given) == len(Settings.model_fields)  # written out, with all defaults
    for key, words in OF_TRAINING.items():
        if key in given and not (whole and getattr(settings, key) == getattr(plain, key)):
            return words
    return "hardware.devices" if settings.hardware.devices > 1 else None


def _with(settings: Settings, **network: str) -> Settings:
    """Return settings read again with a network, so that its defaults apply; no effort is left."""
    gone = {"backbone", "effort", "minutes"}
    if "features" in network:  # whose own defaults apply
        gone.add("recipe")
    return Settings(**{**settings.model_dump(exclude_unset=True, exclude=gone), **network})


def _network_of(place: str) -> str:
    """Return the network of the run whose folder or address was given as weights or start."""
    run = RunFolder(fetched_run(place, "model"))
    architecture = architecture_of(run.path)
    if architecture is not None:
        return architecture
    if not (run.path / MODEL_FILE).is_file():
        raise SettingsError(
            f"{place} does not say which network it belongs to; name it with --backbone"
        )
    return run.spec.backbone.name


def _side(images: ImageSource, of_bands: bool) -> int | None:
    """Return the median of the shorter sides of a few pictures, None if none can be read."""
    few = 1 if images.blocks is not None else LOOKED_AT
    rows = np.unique(np.linspace(0, len(images) - 1, few).astype(int))
    sides = []
    for row in rows.tolist():
        try:
            size = images.cube(row).values.shape[:2] if of_bands else images.read(row).size
            sides.append(min(size))
        except ImageError:  # whoever reads it next says so
            continue
    return int(median(sides)) if sides else None


def check_names(settings: Settings) -> None:
    """Raise, before anything is loaded or written, if a name in the settings means nothing."""
    head = settings.head
    if settings.method != AUTO:
        head = head or find_method(settings.method).head
    if head is not None:
        find_head(head)
    if settings.calibrate != AUTO:
        find_calibrator(settings.calibrate)
    if settings.rule != AUTO:
        find_rule(settings.rule)
    if settings.promise is not None:
        find_promise(settings.promise)
    per_label = settings.rule.startswith("false-alarms-") and settings.rule.endswith("-per-label")
    if settings.taxonomy is not None and per_label:
        raise SettingsError(
            f"the rule {settings.rule} cannot be kept with a taxonomy, which adds the parents "
            f"of chosen labels to a set; use {settings.rule.removesuffix('-per-label')}"
        )
    make_augment(settings.augment)
    if settings.bands is not None:
        require_any_bands(settings.augment)
    check_loggers(settings.hardware.loggers)
    higher_is_better(settings.recipe.metric)

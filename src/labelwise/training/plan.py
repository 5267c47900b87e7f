"""From settings and a table to a plan in which nothing is left to choose, without torch."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from labelwise.base.files import sha256_of
from labelwise.base.progress import Watch
from labelwise.base.storage import is_uri
from labelwise.calibration import expect_zero_share, find_calibrator
from labelwise.decide import find_rule
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.eyes.eye import PRETRAINED
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.spec import MODEL_FILE
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.tables import (
    LabelTable,
    with_validation,
)
from labelwise.tables.checks import reject_divided_groups
from labelwise.taxonomy import AttributeColumns, LabelTree, Taxonomy
from labelwise.training.loggers import check_loggers
from labelwise.training.settings import (
    AUTO,
    SAY_HOW,
    SMALL_NETWORK,
    Settings,
    check_promise,
)

# The first line that applies names the network:
#
#     the data holds features                    the head is solved on them
#     a run is started from, or gives weights    the network of that run
#     the pictures are small                     small-cnn, trained from random values
#     they are photos (64 pixels or more)        a network pretrained on ImageNet, which is not
#                                                trained: the head is solved on its features
#
# The method is what the comparisons in evidence/reproduction.md recommend.

PHOTO_NETWORK = "tf_efficientnet_lite0"
PHOTO_SIDE = 64
LOOKED_AT = 9
HASHED = "2"  # counts changes of what the hash of the data is made of
ONE_EACH = 1.05  # labels per photo, above which a split is not one of single labels
# What says how a network is trained, by the setting that is given.
OF_TRAINING = {"recipe": "the recipe (epochs, lr, ...)", **{key: key for key in SAY_HOW}}


@dataclass(frozen=True)
class Plan:
    """Settings with a network and a method, and why it is these."""

    settings: Settings
    reasons: tuple[str, ...] = ()
    chose_method: bool = False


def resolve(settings: Settings, table: LabelTable) -> Plan:
    """Return the plan of a run on this table; raise if a name in it means nothing."""
    reasons, chosen = [], settings.method == AUTO
    if settings.backbone == AUTO or settings.effort is not None:
        settings, reason = choose_network(settings, table)
        reasons.append(f"network {reason}")
    if chosen:
        name, reason = choose_method(table if table.split is None else with_train(table)["train"])
        settings = settings.model_copy(update={"method": name})
        reasons.append(f"method {name}: {reason}")
    check_names(settings)
    return Plan(settings, tuple(reasons), chosen)


def with_train(table: LabelTable) -> dict[str, LabelTable]:
    """Return the splits of a table, or raise if it has no training rows."""
    splits = table.splits()
    if "train" not in splits:
        raise DataError(f"{table.name} must have rows in the split train, got {', '.join(splits)}")
    return dict(splits)


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
        from labelwise.learn.backbones.weights import architecture_of

        run = RunFolder(fetched_run(source, "model"))
        network = architecture_of(run.path)
        if network is None and not (run.path / MODEL_FILE).is_file():
            raise SettingsError(
                f"{source} does not say which network it belongs to; name it with --backbone"
            )
        named = _with(settings, backbone=network or run.spec.backbone.name)
        return named, f"the network of {source}"
    side = _side(table.images, settings.bands is not None) if settings.effort is None else None
    if side is not None and side < PHOTO_SIDE:
        words = f"{SMALL_NETWORK}, trained from random values: the pictures are small"
        return _with(settings, backbone=SMALL_NETWORK), f"{words} ({side} pixels)"
    name = PHOTO_NETWORK if settings.backbone == AUTO else settings.backbone
    if (refused := _of_training(settings)) is not None:
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


def _side(images: ImageSource, of_bands: bool) -> int | None:
    few = 1 if images.blocks is not None else LOOKED_AT
    rows = np.unique(np.linspace(0, len(images) - 1, few).astype(int))
    sides = []
    for row in rows.tolist():
        with suppress(ImageError):  # whoever reads it next says so
            size = images.cube(row).values.shape[:2] if of_bands else images.read(row).size
            sides.append(min(size))
    return int(median(sides)) if sides else None


def weights_of(settings: Settings) -> str | None:
    """Return what the backbone's weights are; of a run in a bucket, the copy of its model."""
    weights = settings.weights
    return str(fetched_run(weights, "model")) if weights and is_uri(weights) else weights


# Methods whose head is solved without torch, where nothing else is asked for.
CLOSED = ("bce", "softmax", "softmax-or-none", "wan")


def is_closed(settings: Settings) -> bool:
    """Return whether a head is asked for that :mod:`labelwise.training.solved` knows."""
    return (
        settings.method in (AUTO, *CLOSED)
        and settings.head in (None, "linear")
        and not (settings.options or settings.head_options)
        and settings.recipe.metric == "map"
        and settings.augment == "none"
    )


def check_names(settings: Settings) -> None:
    """Raise, before anything is loaded or written, if a name in the settings means nothing."""
    if not is_closed(settings):
        from labelwise.training.prepare import check_training

        check_training(settings)
    if settings.calibrate != AUTO:
        find_calibrator(settings.calibrate)
    if settings.rule != AUTO:
        find_rule(settings.rule)
    check_promise(settings)
    per_label = settings.rule.startswith("false-alarms-") and settings.rule.endswith("-per-label")
    if settings.taxonomy is not None and per_label:
        raise SettingsError(
            f"the rule {settings.rule} cannot be kept with a taxonomy, which adds the parents "
            f"of chosen labels to a set; use {settings.rule.removesuffix('-per-label')}"
        )
    check_loggers(settings.hardware.loggers)


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(ABC):
    """One run, prepared: the rows, how they are learned, who is told."""

    settings: Settings
    run: RunFolder
    watch: Watch
    table: LabelTable
    splits: Mapping[str, LabelTable]
    taxonomy: Taxonomy | None = None
    attributes: AttributeColumns | None = None
    noted: bool = False  # whether photos may show more labels than the one that is noted

    @property
    def several(self) -> bool:
        """Whether photos that do not train the head are known to show several labels."""
        apart = (rows for name, rows in self.splits.items() if name != "train")
        return any(rows.present.sizes().mean() > ONE_EACH for rows in apart if len(rows))

    @property
    @abstractmethod
    def cross_fitted(self) -> bool:
        """Whether out-of-fold predictions of the training rows stand where validation stood."""

    @property
    def tree(self) -> LabelTree | None:
        return None if self.taxonomy is None else self.taxonomy.within(self.table.space)

    @cached_property
    def contents(self) -> dict[str, str | None]:
        """Hashes of the rows of every split, and of the weights the backbone begins with."""
        place = weights_of(self.settings)
        if place in (None, PRETRAINED) and str(self.settings.features).endswith(".onnx"):
            place = self.settings.features
        file = Path(place or "")
        file = file / "model.safetensors" if file.is_dir() else file
        weights = sha256_of(file) if place and file.is_file() else None
        return {"data": hash_of_rows(self.splits), "format": HASHED, "weights": weights}


def check_zero_share(share: float | None, rows: LabelTable | None) -> None:
    """Raise if the share of photos without labels cannot be reached from validation rows."""
    if share is None:
        return
    if rows is None:
        raise SettingsError("zero_share needs a validation split to compare with, got none")
    try:
        labels, observed = rows.targets()
        expect_zero_share(Sigmoid(), labels, share, observed)
    except ValueError as error:
        raise SettingsError(f"zero_share cannot be used with val: {error}") from None


def with_promise_split(
    splits: Mapping[str, LabelTable], share: float, seed: int
) -> dict[str, LabelTable]:
    """Return splits with a share of validation set apart, on which a promise is made."""
    if "val" not in splits:
        raise SettingsError("a promise needs a validation split to be made on, got none")
    val = splits["val"]
    units = np.arange(len(val)) if val.group is None else np.array(list(val.group))
    names = np.unique(units)
    drawn = np.random.default_rng(seed).permutation(names)[: round(share * len(names))]
    chosen = np.isin(units, drawn)
    if chosen.all() or not chosen.any():
        raise SettingsError(f"promise_share {share} leaves no rows of val, or takes none")
    kept, apart = (val.subset(np.flatnonzero(rows)) for rows in (~chosen, chosen))
    return {**splits, "val": kept, "promise": apart}


def settled_splits(
    settings: Settings, table: LabelTable, watch: Watch, *, loaded: bool, pooled: bool
) -> tuple[LabelTable, dict[str, LabelTable]]:
    """Return the table with a split for each row, and its splits, those of a guarantee among them.

    ``loaded`` data without validation gives up ``val_share`` of its training rows. Where rows are
    ``pooled`` the validation rows train the head too, but for those of a guarantee.
    """
    if loaded and settings.val_share and (not pooled or settings.promise is not None):
        validated = with_validation(table, share=settings.val_share)
        for note in () if validated is table else validated.notes[-1:]:
            watch.say(note)
        table = validated
    elif table.split is None and pooled:
        table = replace(table, split=np.full(len(table), "train"))
    reject_divided_groups(table)
    splits = with_train(table)
    if settings.promise is not None:
        splits = with_promise_split(splits, settings.promise_share, settings.seed)
    if pooled and "val" in splits:
        pool = np.isin(np.array(table.split), ("train", "val"))
        if "promise" in splits:
            pool &= ~np.isin(np.array(table.ids), np.array(splits["promise"].ids))
        splits["train"] = table.subset(np.flatnonzero(pool))
        del splits["val"]
    check_zero_share(settings.zero_share, splits.get("train" if pooled else "val"))
    return table, splits


def hash_of_rows(splits: Mapping[str, LabelTable]) -> str:
    """Return a hash of the names, images and labels of every split."""
    digest = hashlib.sha256()
    for name, table in splits.items():
        digest.update(repr((name, table.space.names, len(table))).encode())
        for text in table.ids:
            digest.update(text.encode() + b"\0")
        for sets in (table.present, table.unknown):
            for array in (sets.offsets, sets.columns, sets.inverted):
                digest.update(array.tobytes())
        if table.soft is not None:
            digest.update(table.soft.sets.keys().tobytes() + table.soft.shares.tobytes())
    return digest.hexdigest()

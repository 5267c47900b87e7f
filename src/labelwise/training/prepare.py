"""Prepare: from settings to what is trained, checked before anything is written."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from labelwise.base.allocator import memory_bytes
from labelwise.base.distributed import rank, value_of_first, world_size
from labelwise.base.files import sha256_of
from labelwise.base.progress import Watch
from labelwise.calibration import expect_zero_share, find_calibrator
from labelwise.decide import find_rule
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones.weights import PRETRAINED, architecture_of
from labelwise.learn.heads import LinearHead
from labelwise.learn.methods import find_head, find_method, make_objective
from labelwise.learn.objectives import Objective
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.spec import MODEL_FILE
from labelwise.pictures import ArrayImages, FeatureRows, ImageSource, Transform
from labelwise.pictures.batches import BatchRows, HostResizer
from labelwise.pictures.memory import MappedFeatures
from labelwise.tables import (
    LabelTable,
    find_unreadable,
    load,
    obey_taxonomy,
    with_validation,
    without_unreadable,
)
from labelwise.tables.checks import UnreadableImage, reject_divided_groups
from labelwise.tables.derived import obey_groups
from labelwise.taxonomy import AttributeColumns, AttributeGroups, LabelTree, Taxonomy
from labelwise.training import checkpoint
from labelwise.training.augment import make_augment, require_any_bands
from labelwise.training.execution import autocast_type, kernels_loading
from labelwise.training.features import (
    FrozenBackbone,
    advice_for_photos,
    bands_of,
    build_model,
    build_objective,
    frozen_features,
    inputs_of,
    set_biases_to_priors,
    standardised,
    weights_of,
)
from labelwise.training.inference import Inference, higher_is_better, infer_logits
from labelwise.training.loggers import check_loggers
from labelwise.training.settings import AUTO, SAY_HOW, SMALL_NETWORK, Settings, check_promise
from labelwise.types import Targets

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
COPIES = 8  # times the features are in memory while a head is solved on them
CHECKED, CHECKED_SIDE = 256, 16  # pictures that processes check at once, and the side they send
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
        rows = table if table.split is None else _with_train(table)["train"]
        name, reason = choose_method(rows)
        settings = settings.model_copy(update={"method": name})
        reasons.append(f"method {name}: {reason}")
    check_names(settings)
    return Plan(settings, tuple(reasons))


def _with_train(table: LabelTable) -> dict[str, LabelTable]:
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
    check_promise(settings)
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


@dataclass(frozen=True, eq=False)
class Training:
    """One run, prepared: the rows, what is trained on them, how, where, and who is told."""

    settings: Settings
    run: RunFolder
    device: torch.device
    watch: Watch
    table: LabelTable
    splits: Mapping[str, LabelTable]
    model: Model
    head: HeadSpec
    objective: Objective
    frozen: FrozenBackbone | None = None
    taxonomy: Taxonomy | None = None
    attributes: AttributeColumns | None = None
    solved: bool = False  # the head is a linear one of a convex loss on features

    @property
    def cross_fitted(self) -> bool:
        """Whether out-of-fold predictions of the training rows stand where validation stood."""
        return self.solved and "val" not in self.splits

    @property
    def tree(self) -> LabelTree | None:
        return None if self.taxonomy is None else self.taxonomy.within(self.table.space)

    @property
    def is_first(self) -> bool:
        return rank() == 0

    def targets(self, split: str) -> tuple[Tensor, Tensor | None]:
        labels, observed = self.splits[split].targets()
        return torch.from_numpy(labels), None if observed is None else torch.from_numpy(observed)

    def inferred(self, split: str, model: Model) -> Inference:
        """Return the logits of a split in full precision and its looks, in every process."""
        images, workers = self.splits[split].images, self.settings.hardware.workers
        task = f"predicting {split}"
        return infer_logits(
            model,
            images,
            self.device,
            batch_size=self.settings.batch_size // world_size(),
            workers=workers,
            looks=True,
            watch=self.watch,
            task=task,
        )

    @cached_property
    def contents(self) -> dict[str, str | None]:
        """Hashes of the rows of every split, and of the weights the backbone begins with."""
        file = Path(weights_of(self.settings) or "")
        file = file / "model.safetensors" if file.is_dir() else file
        weights = sha256_of(file) if self.settings.weights and file.is_file() else None
        return {"data": hash_of_rows(self.splits), "weights": weights}


def prepare(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    watch: Watch,
    *,
    table: LabelTable | None = None,
    fresh: bool = False,
) -> Training:
    """Return the run with new weights, or those it starts from; nothing is written yet."""
    world, size = world_size(), settings.batch_size
    if size % world:
        raise SettingsError(f"batch_size must be a multiple of {world} devices, got {size}")
    begun = not fresh and value_of_first(bool(checkpoint.places(run.checkpoint)), device)
    if settings.precision == "bf16" and not autocast_type("bf16", device.type):
        watch.say("this processor does not compute bf16: training in 32 bits")
    loaded = table is None
    table, taxonomy, attributes = _read(settings, table, watch, device)
    plan = resolve(settings, table)
    for reason in plan.reasons:
        watch.say(reason)
    settings = plan.settings
    if loaded and not begun and settings.features is None and table.images.blocks is None:
        with _first_pass(settings, table, device):
            _readable(settings, table, watch, device)
    frozen, rows = None, table
    if settings.features is not None:
        try:
            frozen, rows = frozen_features(settings, table, device, watch)
        except ImageError:
            _readable(settings, table, watch, device)  # raises with all of them
            raise
    solved = frozen is not None and is_solved(settings, rows, watch)
    pooled = solved and not settings.keep_val
    if loaded and settings.val_share and (not pooled or settings.promise is not None):
        validated = with_validation(table, share=settings.val_share)
        for note in () if validated is table else validated.notes[-1:]:
            watch.say(note)
        table, rows = validated, replace(rows, split=validated.split)
    elif table.split is None and pooled:
        split = np.full(len(table), "train")
        table, rows = replace(table, split=split), replace(rows, split=split)
    reject_divided_groups(rows)
    splits = _with_train(rows)
    if settings.promise is not None:
        splits = _with_promise_split(splits, settings.promise_share, settings.seed)
    if pooled and "val" in splits:
        apart = splits.get("promise")
        ours = np.isin(np.array(rows.split), ("train", "val"))
        if apart is not None:
            ours &= ~np.isin(np.array(rows.ids), np.array(apart.ids))
        splits = {**splits, "train": rows.subset(ours)}
        del splits["val"]
    if settings.zero_share is not None:
        if "val" not in splits and not pooled:
            raise SettingsError("zero_share needs a validation split to compare with, got none")
        try:
            labels, observed = splits["train" if pooled else "val"].targets()
            expect_zero_share(Sigmoid(), labels, settings.zero_share, observed)
        except ValueError as error:
            raise SettingsError(f"zero_share cannot be used with val: {error}") from None
    torch.manual_seed(settings.seed)
    model, head = build_model(settings, rows)
    if frozen is None:
        if advice := advice_for_photos(model.backbone, splits["train"].images):
            watch.say(advice)
    elif model.head.absorbs and not solved:
        frozen, splits = standardised(frozen, splits)
    facts = splits["train"].facts()
    counts_labels = "k" in find_method(settings.method).from_facts and "k" not in settings.options
    if counts_labels and splits["train"].has_unknown():
        if "val" not in splits or splits["val"].has_unknown():
            raise SettingsError(
                f"method {settings.method!r} needs the mean number of labels per image, and "
                "training images with unknown labels do not tell it: set options.k, or give a "
                "validation split in which every label is known"
            )
        facts = replace(facts, mean_labels=splits["val"].facts().mean_labels)
        watch.say(f"labels per image, from validation: {facts.mean_labels:.2f} (options.k)")
    objective = build_objective(settings, facts, model, device)
    if not objective.soft_labels:
        splits["train"].require_hard(
            f"the method {settings.method!r} needs labels of 0 and 1; take one that uses soft "
            "labels, such as bce, spa or softmax"
        )
    parts = (table, splits, model, head, objective, frozen, taxonomy, attributes, solved)
    training = Training(settings, run, device, watch, *parts)
    if settings.start is None:
        if settings.recipe.prior_bias:
            set_biases_to_priors(model, objective, facts)
    elif not begun:
        watch.say(_go_on_from(settings.start, training))
    return training


def _read(
    settings: Settings, table: LabelTable | None, watch: Watch, device: torch.device
) -> tuple[LabelTable, Taxonomy | None, AttributeColumns | None]:
    """Return the table with labels that obey a taxonomy, or groups that exclude each other."""
    if table is None:
        options = {"skip_missing": True} if settings.skip_missing else {}
        table = load(settings.data, **{**options, **settings.data_options})
        if settings.on_error == "skip":
            table = _readable(settings, table, watch, device)
        for note in table.notes:
            watch.say(note)
    taxonomy, attributes = None, None
    if settings.taxonomy is not None:
        taxonomy = Taxonomy.read(Path(settings.taxonomy))
        obeyed = obey_taxonomy(table, taxonomy)
        table = obeyed.table
        if obeyed.raised or obeyed.learned:
            watch.say(obeyed.sentence())
    elif settings.attributes is not None:
        settled = obey_groups(table, AttributeGroups.read(Path(settings.attributes)))
        table, attributes = settled.table, settled.columns
        watch.say(settled.sentence())
    return table, taxonomy, attributes


def is_solved(settings: Settings, rows: LabelTable, watch: Watch) -> bool:
    """Return whether the head on these features is linear, of a convex loss, and fits in memory."""
    images, method = rows.images, find_method(settings.method)
    if not isinstance(images, FeatureRows) or images.features.ndim != 2:
        return False
    head = HeadSpec(settings.head or method.head, settings.head_options)
    if not isinstance(head.make(images.features.shape[1], len(rows.space)), LinearHead):
        return False
    try:
        objective = make_objective(settings.method, rows.facts(), **settings.options)
    except (TypeError, ValueError):
        return False  # build_objective says so
    if objective.convex(Targets(torch.zeros(1, len(rows.space)))) is None:
        return False
    size = images.features.nbytes
    if isinstance(images.features, MappedFeatures) and COPIES * size > memory_bytes():
        watch.say(
            f"the features take {size / 2**30:,.1f} GiB, too much to solve the head in this "
            "machine's memory: training it in steps"
        )
        return False
    return True


def _first_pass(
    settings: Settings, table: LabelTable, device: torch.device
) -> AbstractContextManager[None]:
    """Return a block beside which a GPU gets ready for the first batch."""
    if device.type != "cuda" or settings.deterministic or settings.freeze or settings.bands:
        return nullcontext()
    make = partial(create_backbone, settings.backbone, **inputs_of(settings, table))
    precision = autocast_type(settings.precision, device.type)
    return kernels_loading(make, settings.batch_size // world_size(), device, precision)


def _unreadable(table: LabelTable, workers: int, watch: Watch) -> list[UnreadableImage]:
    """Return the images that processes cannot read, which then wait to decode for training."""
    rows = np.arange(len(table))
    batches = [BatchRows(rows[at : at + CHECKED]) for at in range(0, len(rows), CHECKED)]
    small = Transform(CHECKED_SIDE, crop=None)
    resizer = HostResizer(table.images, small, torch.device("cpu"), workers, processes=True)
    broken = []
    for batch, made in zip(batches, resizer.batches(batches), strict=True):
        for at, reason in sorted(made.failed.items()):
            row = int(batch.rows[at])
            broken.append(UnreadableImage(row, table.ids[row], reason))
        watch.advance(len(batch.rows))
    return broken


def _readable(
    settings: Settings, table: LabelTable, watch: Watch, device: torch.device
) -> LabelTable:
    workers, bands = settings.hardware.workers or os.cpu_count() or 1, settings.bands
    stored = not isinstance(table.images, FeatureRows | ArrayImages)
    watch.start("checking pictures", len(table))
    try:
        if device.type == "cuda" and bands is None and stored:
            unreadable = _unreadable(table, workers, watch)
        else:
            unreadable = find_unreadable(
                table,
                workers=workers,
                progress=lambda _: watch.advance(1),
                bands=None if bands is None else bands_of(bands, settings, table.images),
            )
    finally:
        watch.finish()
    return without_unreadable(table, unreadable, on_error=settings.on_error)


def _with_promise_split(
    splits: Mapping[str, LabelTable], share: float, seed: int
) -> dict[str, LabelTable]:
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


def _go_on_from(place: str, training: Training) -> str:
    """Load the model of a finished run and what its objective knew; return the words for it."""
    folder = fetched_run(place, "all")
    earlier = Predictor.load(folder)
    if earlier.space != training.table.space:
        raise SettingsError(f"{place} has other labels; take its backbone alone with --weights")
    try:
        training.model.load_state_dict(earlier.model.state_dict())
    except RuntimeError:
        raise SettingsError(
            f"the run in {place} has another model ({earlier.model.backbone.name}, head "
            f"{earlier.head.name!r}); start needs the same backbone and head"
        ) from None
    latest = checkpoint.load_latest(RunFolder(folder).checkpoint, "objective")
    knew = False
    if latest is not None and latest.facts.get("data") == training.contents["data"]:
        knew = training.objective.start_from(latest.tensors)
    return f"starting from {place}" + (", with its estimates of the labels" if knew else "")


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

"""Prepare: from settings to what is trained, checked before anything is written."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.base.distributed import rank, value_of_first, world_size
from labelwise.base.progress import Watch
from labelwise.errors import ImageError, SettingsError
from labelwise.learn.heads import LinearHead
from labelwise.learn.methods import find_head, find_method, make_head, make_objective
from labelwise.learn.objectives import Objective
from labelwise.learn.predictor import Model, Predictor
from labelwise.models import HeadSpec
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.pictures import FeatureRows
from labelwise.tables import LabelTable
from labelwise.training import checkpoint
from labelwise.training.augment import make_augment, require_any_bands
from labelwise.training.data import Data, read_data, readable
from labelwise.training.execution import autocast_type
from labelwise.training.features import (
    FrozenBackbone,
    advice_for_photos,
    build_model,
    build_objective,
    frozen_features,
    set_biases_to_priors,
    standardised,
)
from labelwise.training.inference import Inference, higher_is_better, infer_logits
from labelwise.training.plan import (
    Prepared,
    resolve,
    settled_splits,
)
from labelwise.training.settings import AUTO, Settings
from labelwise.training.solve import NetworkSource
from labelwise.training.solved import Solving, too_large
from labelwise.types import Targets


def check_training(settings: Settings) -> None:
    """Raise if the method, the head, the augmentation or the metric is not known."""
    head = settings.head
    if settings.method != AUTO:
        head = head or find_method(settings.method).head
    if head is not None:
        find_head(head)
    make_augment(settings.augment)
    if settings.bands is not None:
        require_any_bands(settings.augment)
    higher_is_better(settings.recipe.metric)


@dataclass(frozen=True, eq=False, kw_only=True)
class Training(Prepared):
    """One run of a network, prepared: what is trained, how and where."""

    device: torch.device
    model: Model
    head: HeadSpec
    objective: Objective
    frozen: FrozenBackbone | None = None

    @property
    def cross_fitted(self) -> bool:
        return False

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


def prepare(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    watch: Watch,
    *,
    table: LabelTable | None = None,
    data: Data | None = None,
    fresh: bool = False,
) -> Training | Solving:
    """Return the run with new weights, or those it starts from; nothing is written yet.

    A linear head of a convex loss on features is solved.
    """
    world, size = world_size(), settings.batch_size
    if size % world:
        raise SettingsError(f"batch_size must be a multiple of {world} devices, got {size}")
    begun = not fresh and value_of_first(bool(checkpoint.places(run.checkpoint)), device)
    if settings.precision == "bf16" and not autocast_type("bf16", device.type):
        watch.say("this processor does not compute bf16: training in 32 bits")
    loaded = table is None
    if data is None:
        data = read_data(settings, table, watch)
    table = data.table
    plan = resolve(settings, table)
    for reason in plan.reasons:
        watch.say(reason)
    settings = plan.settings
    if loaded and not begun and settings.features is None and table.images.blocks is None:
        readable(settings, table, watch)
    frozen, rows = None, table
    if settings.features is not None:
        try:
            frozen, rows = frozen_features(settings, table, device, watch)
        except ImageError:
            readable(settings, table, watch)  # raises with all of them
            raise
    solved = frozen is not None and is_solved(settings, rows, watch)
    pooled = solved and not settings.keep_val
    rows, splits = settled_splits(settings, rows, watch, loaded=loaded, pooled=pooled)
    table = replace(table, split=rows.split, notes=rows.notes)
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
    parts: dict[str, Any] = {
        "settings": settings,
        "run": run,
        "watch": watch,
        "table": table,
        "splits": splits,
        "taxonomy": data.taxonomy,
        "attributes": data.attributes,
    }
    if solved and frozen is not None:
        noted = pooled and plan.chose_method and settings.labels_are == AUTO
        source = NetworkSource(frozen, model, head, objective, device)
        return Solving(**parts, source=source, noted=noted)
    training = Training(
        **parts, device=device, model=model, head=head, objective=objective, frozen=frozen
    )
    if settings.start is None:
        if settings.recipe.prior_bias:
            set_biases_to_priors(model, objective, facts)
    elif not begun:
        watch.say(_go_on_from(settings.start, training))
    return training


def is_solved(settings: Settings, rows: LabelTable, watch: Watch) -> bool:
    """Return whether the head on these features is linear, of a convex loss, and fits in memory."""
    images, method = rows.images, find_method(settings.method)
    if not isinstance(images, FeatureRows) or images.features.ndim != 2:
        return False
    head = HeadSpec(settings.head or method.head, settings.head_options)
    if not isinstance(make_head(head, images.features.shape[1], len(rows.space)), LinearHead):
        return False
    try:
        objective = make_objective(settings.method, rows.facts(), **settings.options)
    except (TypeError, ValueError):
        return False  # build_objective says so
    if objective.convex(Targets(torch.zeros(1, len(rows.space)))) is None:
        return False
    count, width = images.features.shape
    return not too_large(count, width, watch)


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

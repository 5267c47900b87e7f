"""A linear classifier on an eye's features, cross-fitted, without torch.

Every labelled row that is not test is in one pool. Each row's out-of-fold logits choose the L2
weight, the link and the rule, and then all of them train the head (:mod:`labelwise.eyes.fit`).

    predictions/train.parquet  the pool, by the head that is deployed
    predictions/val.parquet    the pool, each row by a head that did not see its fold
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.allocator import memory_bytes
from labelwise.base.files import replacing
from labelwise.base.progress import Watch
from labelwise.decide import Threshold
from labelwise.errors import ImageError
from labelwise.eyes import Eye, features
from labelwise.eyes.fit import Fitted, fit, fit_noted, loss_of
from labelwise.links import Link
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.models.solved import SolvedModel
from labelwise.pictures.copies import alike_by_features
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable, with_validation
from labelwise.tables.checks import reject_divided_groups
from labelwise.training.learning import LEARNING, learning
from labelwise.training.made_eyes import eye_named
from labelwise.training.plan import (
    Data,
    Plan,
    Prepared,
    check_zero_share,
    is_closed,
    readable,
    weights_of,
    with_promise_split,
    with_train,
)
from labelwise.training.settings import AUTO, Settings

OUTPUTS = ("means",)  # of the eye, that are the features of the head
POOL = ("train", "val")  # splits whose rows are in the pool
CONTENTS_FILE = "contents.json"  # in checkpoint/: hashes of what a finished run was made from
COPIES = 8  # times the features are in memory while they are solved, most of it in float64

Logits = NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Solving(Prepared):
    """One run of a solved head, prepared; ``splits`` has the pool as ``train``."""

    eye: Eye

    @property
    def cross_fitted(self) -> bool:
        return True


def contents_of(run: RunFolder) -> Mapping[str, Any] | None:
    """Return the hashes of what a solved run was made from, None where it has none."""
    try:
        stated = json.loads((run.checkpoint / CONTENTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stated if isinstance(stated, dict) else None


def eye_of(settings: Settings) -> Eye | None:
    """Return the eye of a run that is solved without torch, None if it is another kind of run.

    On a GPU, if one is asked for by name, torch computes the features.
    """
    name, hardware = settings.features, settings.hardware
    if name is None or not is_closed(settings) or hardware.accelerator not in ("auto", "cpu"):
        return None
    if settings.bands is not None or (settings.weights is None and not name.endswith(".onnx")):
        return None
    size = settings.image_size
    eye = eye_named(name, weights_of(settings), size, hardware.features_cache, hardware.accelerator)
    if eye is None:
        return None
    transform = eye.transform
    if settings.image_size is not None:
        transform = replace(transform, size=settings.image_size)
    crop = None if settings.squash else transform.crop
    transform = replace(transform, crop=crop, reduced_jpeg=settings.reduced_jpeg)
    return eye if transform == eye.transform else eye.with_transform(transform)


def prepare_solving(
    plan: Plan, run: RunFolder, watch: Watch, data: Data, eye: Eye, *, loaded: bool
) -> Solving:
    """Return the run with its splits; nothing is computed or written yet."""
    settings = plan.settings
    table = data.table
    if loaded and settings.val_share and settings.promise is not None:
        table = with_validation(table, share=settings.val_share)
        for note in () if table is data.table else table.notes[-1:]:
            watch.say(note)
    elif table.split is None:
        table = replace(table, split=np.full(len(table), "train"))
    reject_divided_groups(table)
    splits = with_train(table)
    if settings.promise is not None:
        splits = with_promise_split(splits, settings.promise_share, settings.seed)
    pool = np.isin(np.array(table.split), POOL)
    if "promise" in splits:
        pool &= ~np.isin(np.array(table.ids), np.array(splits["promise"].ids))
    apart = {name: rows for name, rows in splits.items() if name not in POOL}
    splits = {"train": table.subset(np.flatnonzero(pool)), **apart}
    check_zero_share(settings.zero_share, splits["train"])
    return Solving(
        settings=settings,
        run=run,
        watch=watch,
        table=table,
        splits=splits,
        taxonomy=data.taxonomy,
        attributes=data.attributes,
        eye=eye,
        noted=plan.chose_method and settings.labels_are == AUTO,
    )


def too_large(solving: Solving) -> bool:
    """Return whether the features of the pool are too many to solve in memory, and say so."""
    width = sum(solving.eye.outputs[name] for name in OUTPUTS)
    size = 4 * width * len(solving.splits["train"])
    if COPIES * size <= memory_bytes():
        return False
    solving.watch.say(
        f"the features take {size / 2**30:,.1f} GiB, too much to solve the head in this machine's "
        "memory: training it in steps"
    )
    return True


def solve(solving: Solving) -> tuple[SolvedModel, dict[str, Predictions], Fitted[NDArray[Any]]]:
    """Return the model without its rule, the predictions of each split, and what was fitted."""
    settings, watch, pool = solving.settings, solving.watch, solving.splits["train"]
    seen = {name: _features(solving, table) for name, table in solving.splits.items()}
    labels, observed = pool.targets()
    run, journal = solving.run, solving.run.journal
    journal.cut(0)
    watch.say(f"solving the head: {len(pool):,} rows of features, {len(pool.space):,} labels")
    step = 0

    def tried(strength: float, value: float) -> None:
        nonlocal step
        step += 1
        journal.write({"step": step, "l2": strength, "val_loss": value})

    groups = None if pool.group is None else np.array(list(pool.group))
    x = np.asarray(seen["train"])
    how: dict[str, Any] = {"groups": groups, "seed": settings.seed, "tried": tried}
    fitted: Fitted[NDArray[Any]] | None = None
    if solving.noted:
        fitted = fit_noted(x, labels, observed, several=solving.several, **how)
    if fitted is None:
        loss, own = loss_of(settings.method, labels.astype(np.float64), observed)
        fitted = fit(x, labels, observed, loss=loss, link=own, **how)
    for note in fitted.notes:
        watch.say(note)
    folds = int(fitted.folds.max()) + 1
    watch.say(f"cross-fitted in {folds} folds: every row trains the head, and none judges itself")
    curve = learning(fitted, labels, observed, pool.space.names)
    if curve is not None:
        journal.write({"step": step + 1, LEARNING: curve.record()})
    predictions = {}
    for name, table in solving.splits.items():
        logits = np.asarray(fitted.logits(np.asarray(seen[name])), np.float32)
        predictions[name] = _predictions(table, name, logits, fitted.own)
    predictions["val"] = _predictions(pool, "val", fitted.out_of_fold, fitted.own)
    if fitted.shown is not None:
        for name in ("train", "val"):
            predictions[name] = replace(predictions[name], observed=labels > 0)
    for name, rows in predictions.items():
        rows.save(run.predictions_path(name))
    vectors = {name: np.asarray(values, np.float32) for name, values in seen.items()}
    HeldOutCopies.among(solving.splits, vectors, alike_by_features).save(run.path)
    head = np.asarray(fitted.weight), np.asarray(fitted.bias)
    parts = (solving.eye, OUTPUTS, *head, pool.space)
    method = settings.method if fitted.shown is None else "bce"
    model = SolvedModel.of(*parts, fitted.link, Threshold(0.5), method)
    return replace(model, taxonomy=solving.taxonomy), predictions, fitted


def _features(solving: Solving, table: LabelTable) -> Any:
    hardware, watch = solving.settings.hardware, solving.watch
    try:
        values = features(
            solving.eye,
            table.images,
            hardware.features_cache,
            outputs=OUTPUTS,
            workers=hardware.workers,
            watch=watch,
        )
    except ImageError:
        readable(solving.settings, solving.table, watch)  # raises with all of them
        raise
    return values


def _predictions(table: LabelTable, split: str, logits: Logits, link: Link) -> Predictions:
    labels, observed = table.targets()
    names = table.space.names
    return Predictions(table.ids, logits, labels, observed, names, split, link, table.group)


def save_contents(solving: Solving) -> None:
    """Write what the run was made from, for a command that comes back to it."""
    solving.run.checkpoint.mkdir(parents=True, exist_ok=True)
    with replacing(solving.run.checkpoint / CONTENTS_FILE) as temporary:
        temporary.write_text(json.dumps(solving.contents) + "\n", encoding="utf-8")

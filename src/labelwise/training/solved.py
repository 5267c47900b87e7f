"""A linear classifier on frozen features, cross-fitted on the rows of a run.

Every labelled row that is not test is in one pool. Each row's out-of-fold logits choose the L2
weight, the link and the rule, and then all of them train the head (:mod:`labelwise.eyes.fit`).

    predictions/train.parquet  the pool, by the head that is deployed
    predictions/val.parquet    the pool, each row by a head that did not see its fold

A source gives the features: an eye without torch, or a network of torch (GPUs, bands, data that
holds features). With ``keep_val`` validation rows stay apart, and choose link and rule.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.allocator import memory_bytes
from labelwise.base.arrays import to_numpy
from labelwise.base.convex import ConvexLoss
from labelwise.base.files import MOST_FACTS, read_regular, replacing
from labelwise.base.progress import Watch
from labelwise.decide import Rule, Threshold
from labelwise.errors import ImageError
from labelwise.evaluation import Evaluation
from labelwise.eyes import Eye, features
from labelwise.eyes.fit import MOST_NAMED, Fitted, fit, fit_named, fit_noted, loss_of
from labelwise.eyes.kinds import directions
from labelwise.links import Link
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import FEWEST_FEATURES, HeldOutCopies, sketch_of
from labelwise.models.solved import SolvedModel
from labelwise.pictures import FeatureRows
from labelwise.pictures.copies import alike_by_features
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.training.data import Data, readable
from labelwise.training.finish import Finish, Promises, Save, finish_again_needed
from labelwise.training.learning import LEARNING, learning
from labelwise.training.loggers import log_history
from labelwise.training.made_eyes import eye_named
from labelwise.training.plan import (
    Plan,
    Prepared,
    is_closed,
    settled_splits,
    weights_of,
)
from labelwise.training.settings import AUTO, Settings

CONTENTS_FILE = "contents.json"  # in checkpoint/: hashes of what a finished run was made from
COPIES = 8  # times the features are in memory while they are solved, most of it in float64


class FeatureSource(ABC):
    """What gives the features of a run, the loss of its method, and the model that is deployed."""

    @abstractmethod
    def features(self, solving: "Solving", table: LabelTable) -> Any:
        """Return the features (n, D) of the photos of a split, as an array or a tensor."""

    @abstractmethod
    def loss(self, solving: "Solving") -> tuple[ConvexLoss[Any], Link]:
        """Return the loss of the rows of the pool, and the link of its logits."""

    @property
    def parts(self) -> Sequence[tuple[int, float]]:
        """The width and the weight of each group of features that are scaled together."""
        return ()

    def directions(self, names: tuple[str, ...], features: Any) -> NDArray[np.float64] | None:
        """Return the directions (K, D) of scores by the names of labels, None without any."""
        return None

    @abstractmethod
    def saver(self, solving: "Solving", fitted: Fitted[Any] | None, method: str) -> Save:
        """Return what writes the model under a link and a rule; None: the one that is saved."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Solving(Prepared):
    """One run of a solved head, prepared; ``splits`` has the pool as ``train``."""

    source: FeatureSource

    @property
    def cross_fitted(self) -> bool:
        return "val" not in self.splits


@dataclass(frozen=True)
class EyeSource(FeatureSource):
    """An eye, whose run is its own export."""

    eye: Eye

    @property
    def parts(self) -> Sequence[tuple[int, float]]:
        return self.eye.head_parts

    def features(self, solving: Solving, table: LabelTable) -> Any:
        hardware, watch = solving.settings.hardware, solving.watch
        try:
            return features(
                self.eye,
                table.images,
                hardware.features_cache,
                workers=hardware.workers,
                watch=watch,
                outputs=self.eye.head_features,
            )
        except ImageError:
            readable(solving.settings, solving.table, watch)  # raises with all of them
            raise

    def loss(self, solving: Solving) -> tuple[ConvexLoss[Any], Link]:
        labels, observed = solving.splits["train"].targets()
        return loss_of(solving.settings.method, labels.astype(np.float64), observed)

    def directions(self, names: tuple[str, ...], features: Any) -> NDArray[np.float64] | None:
        return directions(self.eye, names, features)

    def saver(self, solving: Solving, fitted: Fitted[Any] | None, method: str) -> Save:
        folder, space = solving.run.path, solving.table.space
        if fitted is None:
            model = SolvedModel.load(folder)
        else:
            weight, bias = np.asarray(fitted.weight), np.asarray(fitted.bias)
            outputs, rule = self.eye.head_features, Threshold(0.5)
            parts = (self.eye, outputs, weight, bias, space, fitted.link, rule)
            model = SolvedModel.of(*parts, method)
        model = replace(model, taxonomy=solving.taxonomy)

        def save(link: Link | None, rule: Rule, promises: Promises) -> None:
            replace(model, link=link, rule=rule, promises=promises).save(folder)

        return save


def contents_of(run: RunFolder) -> Mapping[str, object] | None:
    """Return the hashes of what a solved run was made from, None where it has none."""
    try:
        stated = json.loads(read_regular(run.checkpoint / CONTENTS_FILE, MOST_FACTS)[0])
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
    eye = eye.of_means() if settings.means_only else eye
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
    settings, pooled = plan.settings, not plan.settings.keep_val
    table, splits = settled_splits(settings, data.table, watch, loaded=loaded, pooled=pooled)
    return Solving(
        settings=settings,
        run=run,
        watch=watch,
        table=table,
        splits=splits,
        taxonomy=data.taxonomy,
        attributes=data.attributes,
        source=EyeSource(eye),
        noted=pooled and plan.chose_method and settings.labels_are == AUTO,
    )


def too_large(rows: int, width: int, watch: Watch) -> bool:
    """Return whether so many features are too many to solve in memory, and say so."""
    size = 4 * width * rows
    if COPIES * size <= memory_bytes():
        return False
    watch.say(
        f"the features take {size / 2**30:,.1f} GiB, too much to solve the head in this machine's "
        "memory: training it in steps"
    )
    return True


def solve(solving: Solving) -> tuple[dict[str, Predictions], Fitted[Any]]:
    """Return the predictions of each split, which are saved, and what was fitted."""
    settings, watch, pool = solving.settings, solving.watch, solving.splits["train"]
    run, journal, names = solving.run, solving.run.journal, pool.space.names
    seen = {name: solving.source.features(solving, rows) for name, rows in solving.splits.items()}
    labels, observed = pool.targets()
    journal.cut(0)
    watch.say(f"solving the head: {len(pool):,} rows of features, {len(names):,} labels")
    step = 0

    def tried(strength: float, value: float) -> None:
        nonlocal step
        step += 1
        journal.write({"step": step, "l2": strength, "val_loss": value / len(names)})

    groups = None if pool.group is None else np.array(list(pool.group))
    how: dict[str, Any] = {"groups": groups, "seed": settings.seed, "tried": tried}
    how["parts"] = solving.source.parts
    fitted: Fitted[Any] | None = None
    if solving.noted:
        fitted = fit_noted(seen["train"], labels, observed, several=solving.several, **how)
    if fitted is None:
        loss, own = solving.source.loss(solving)
        how |= {"loss": loss, "link": own}
        fitted = fit(seen["train"], labels, observed, **how)
        towards = None
        if settings.method == "bce" and len(pool) <= MOST_NAMED:
            towards = solving.source.directions(names, seen["train"])
        if towards is not None:
            named = fit_named(seen["train"], labels, observed, towards, fitted, **how)
            if named is not None:
                fitted = named
                watch.say("the head begins with what the network knows of the labels' names")
    for note in fitted.notes:
        watch.say(note)
    folds = int(fitted.folds.max()) + 1
    watch.say(f"cross-fitted in {folds} folds: every row trains the head, and none judges itself")
    curve = learning(fitted, labels, observed, names)
    if curve is not None:
        journal.write({"step": step + 1, LEARNING: curve.record()})
    score = float(average_precision(fitted.out_of_fold, labels > 0.5, observed).value)
    typical = float(np.exp(np.log(fitted.strength).mean()))
    found = score if np.isfinite(score) else None
    journal.write({"step": step + 1, "l2": typical, "val_map": found})
    predictions = {}
    for name, table in solving.splits.items():
        logits = to_numpy(fitted.logits(seen[name])).astype(np.float32)
        predictions[name] = _predictions(table, name, logits, fitted.own)
    if solving.cross_fitted:
        out_of_fold = _predictions(pool, "val", fitted.out_of_fold, fitted.own)
        predictions = {"train": predictions["train"], "val": out_of_fold, **predictions}
    if fitted.shown is not None:
        for name in ("train", "val"):
            predictions[name] = replace(predictions[name], observed=labels > 0)
    for name, rows in predictions.items():
        rows.save(run.predictions_path(name))
    vectors = {name: to_numpy(values).astype(np.float32) for name, values in seen.items()}
    if not isinstance(pool.images, FeatureRows):
        HeldOutCopies.among(solving.splits, vectors, alike_by_features).save(run.path)
    elif vectors["train"].shape[1] >= FEWEST_FEATURES:
        sketches = {name: sketch_of(values) for name, values in vectors.items()}
        HeldOutCopies.among_features(sketches).save(run.path)
    return predictions, fitted


def _predictions(
    table: LabelTable, split: str, logits: NDArray[np.float32], link: Link
) -> Predictions:
    labels, observed = table.targets()
    names = table.space.names
    return Predictions(table.ids, logits, labels, observed, names, split, link, table.group)


def solved_run(
    solving: Solving, facts: Mapping[str, object] | None, *, fresh: bool
) -> tuple[Evaluation, LabelTable, bool]:
    """Solve and measure, or measure again, and return the figures, the table, and whether finished.

    ``facts`` say what the run in the folder was made from; None where there is none.
    """
    run, settings = solving.run, solving.settings
    with run.lock():
        changed = finish_again_needed(solving, facts, fresh=fresh)
        run.claim()
        finished = run.is_finished
        if not finished:
            settings.save(run.settings_path)
            run.publish()
            predictions, fitted = solve(solving)
            noted = fitted.shown is not None
            save = solving.source.saver(solving, fitted, "bce" if noted else settings.method)
            run.checkpoint.mkdir(parents=True, exist_ok=True)
            with replacing(run.checkpoint / CONTENTS_FILE) as temporary:
                temporary.write_text(json.dumps(solving.contents) + "\n", encoding="utf-8")
        elif changed:
            predictions = {name: run.predictions(name) for name in run.splits}
            noted = solving.noted and run.spec.method != settings.method
            save = solving.source.saver(solving, None, run.spec.method)
        log_history(run, settings)
        if finished and not changed:
            evaluation = run.evaluation
        else:
            own = predictions["train"].link
            evaluation = Finish(solving, predictions, own, noted=noted).measured(save)
        if finished:  # last: a command that is stopped before this finishes it again
            settings.save(run.settings_path)
        run.publish()
    return evaluation, solving.table, finished

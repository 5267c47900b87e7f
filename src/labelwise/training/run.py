"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from.

A command goes on with the run in a folder that was started with the same settings. The same content
under another path is the same. What is fitted after training (calibrator, rule, share of images
without labels) may change: it is then fitted again, without training. So may a taxonomy, or groups
of labels that exclude each other, where no label changes by that.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.base.progress import LimitedWatch, Silent, TimeIsUp, Watch
from labelwise.errors import SettingsError
from labelwise.evaluation import Evaluation
from labelwise.evaluation.intervals import mean_ap_influence
from labelwise.eyes.eye import PRETRAINED
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.training.data import Data, read_data
from labelwise.training.finish import as_odds
from labelwise.training.plan import (
    OF_TRAINING,
    PHOTO_NETWORK,
    check_names,
    is_closed,
    resolve,
)
from labelwise.training.settings import AUTO, Settings, read_settings
from labelwise.training.solved import (
    contents_of,
    eye_of,
    prepare_solving,
    solved_run,
    too_large,
)

# Effort: how much is tried with a pretrained network, and what of it is kept.
#
#     quick   the head is solved on the features of the network
#     good    quick with better networks, where their weights can be had; then the network of the
#             best head is trained from it (Kumar et al. 2022)
#     best    with larger pictures too; the best of these is trained once as it is and once with
#             averaged weights
#
# Each try is a run in ``trials/``. It replaces the best so far if its mAP on validation is higher
# by more than the standard error of the difference.

BETTER_NETWORKS = (
    "hgnetv2_b1.ssld_stage2_ft_in1k",
    "hgnetv2_b4.ssld_stage2_ft_in1k",
    "tiny_vit_21m_224.dist_in22k_ft_in1k",
)
LARGER = 9 / 7  # times the side of the input: 288 pixels instead of 224
AVERAGED = 0.99  # decay of the averaged weights
EPOCH = 3  # times the solved try, which sees each photo once, that an epoch of training takes

PERFECT = 1 - 1e-9  # an mAP that cannot be raised, but for rounding

Try = Callable[[Settings, Path, Watch], None]


def better_by(one: Predictions, other: Predictions) -> tuple[float, float]:
    """Return by how much the mAP of one is above that of another, and its standard error."""
    if list(one.ids) != list(other.ids):
        raise ValueError("two models are compared on the same rows, got others")
    present, observed = one.labels > 0.5, one.observed
    mine, theirs = (mean_ap_influence(rows.logits, present, observed) for rows in (one, other))
    moved = mine - theirs
    return _score(one) - _score(other), sqrt(float(moved @ moved))


def _score(rows: Predictions) -> float:
    return float(average_precision(rows.logits, rows.labels > 0.5, rows.observed).value)


def tried(settings: Settings, run: RunFolder, begin: Try, watch: Watch) -> Evaluation:
    """Try what the effort asks for, keep the best in the run's folder, return its evaluation."""
    effort, stopped = _Effort(settings, run, begin, watch), "All that this effort tries was tried."
    try:
        effort.try_all()
    except _EnoughError as why:
        stopped = str(why)
        watch.say(stopped)
    effort.use_all_rows()
    run.take_over(effort.run)
    evaluation, sentences = effort.run.evaluation, "; ".join(effort.sentences)
    note = f"Tried, by mAP on validation: {sentences}. Kept: {effort.words}. {stopped}"
    evaluation = replace(evaluation, notes=(*evaluation.notes, note))
    run.measured(evaluation)
    return evaluation


class _EnoughError(Exception):
    """Why nothing more is tried."""


class _Effort:
    """The best of what was tried so far (in words, its run, its validation rows), and notes."""

    words: str
    run: RunFolder
    validation: Predictions

    def __init__(self, settings: Settings, run: RunFolder, begin: Try, watch: Watch) -> None:
        self.settings, self.trials, self.begin, self.watch = settings, run.trials, begin, watch
        minutes = settings.minutes
        self.until = None if minutes is None else time.monotonic() + 60 * minutes
        self.seconds: dict[str, float] = {}  # that each try took, in words
        self.sentences: list[str] = []

    def try_all(self) -> None:
        settings, best = self.settings, self.settings.effort == "best"
        name = PHOTO_NETWORK if settings.backbone == AUTO else settings.backbone
        self._take(f"{name}, head solved", "solved", self._solved())
        if best:
            large = round(LARGER * self.run.spec.transform.size / 32) * 32
            words = f"{name} at {large} pixels, head solved"
            self._take(words, f"solved-{large}", self._solved(image_size=large))
        if settings.backbone == AUTO and settings.weights is None:
            for other in BETTER_NETWORKS:
                chosen = self._solved(backbone=other)
                self._take(f"{other}, head solved", f"solved-{other}", chosen)
        start, words = self.run, self.words.replace("head solved", "trained from there")
        epochs = self._epochs()
        if epochs == 0:
            raise _EnoughError(f"The {settings.minutes:g} minutes leave no time for {words}.")
        self._take(words, "trained", self._trained(start, epochs=epochs))
        if best:
            averaged = self._trained(start, epochs=epochs, ema=AVERAGED)
            self._take(f"{words}, weights averaged", "averaged", averaged)

    def use_all_rows(self) -> None:
        """Solve the head that was kept once more with the rows that compared the tries."""
        settings = Settings.model_validate(self.run.settings)
        folder = RunFolder(self.trials / "solved-all")
        if settings.features is not None and settings.keep_val:
            chosen = settings.model_copy(update={"keep_val": self.settings.keep_val})
            self.begin(chosen, folder.path, self.watch)
            self.run = folder

    def _epochs(self) -> int:
        epochs, earlier = self.settings.recipe.epochs, RunFolder(self.trials / "trained")
        if earlier.settings_path.exists():  # which is resumed
            return Settings.model_validate(earlier.settings).recipe.epochs
        each = EPOCH * self.seconds[self.words] * (2 if self.settings.effort == "best" else 1)
        if self.until is None or each == 0 or each * epochs <= self.until - time.monotonic():
            return epochs
        fit = max(0, int((self.until - time.monotonic()) / each))
        minutes = self.settings.minutes
        self.watch.say(f"{minutes:g} minutes: training {fit:,} instead of {epochs:,} epochs")
        return fit

    def _take(self, words: str, name: str, settings: Settings) -> None:
        minutes, watch, first = self.settings.minutes, self.watch, not self.seconds
        if not first and self.until is not None:
            if time.monotonic() > self.until:
                raise _EnoughError(f"The {minutes:g} minutes were over before {words}.")
            watch = LimitedWatch(watch, self.until)
        self.watch.say(f"trying {words}")
        run, began = RunFolder(self.trials / name), time.monotonic()
        try:
            self.begin(settings, run.path, watch)
        except TimeIsUp:
            over = f"The {minutes:g} minutes were over: {words} was given up."
            raise _EnoughError(over) from None
        except SettingsError as error:
            if first or "cannot be reached" not in str(error):
                raise
            self.watch.say(f"{words}: its weights cannot be had here")
            self.sentences.append(f"{words}: not tried, its weights cannot be had here")
            return
        self.seconds[words] = time.monotonic() - began
        without_network = run.spec.backbone.name == "identity"
        if without_network:
            words = "head solved on the features of the data"
        validation, kept = run.predictions("val"), first
        sentence = f"{words}: {_score(validation):.4f}"
        if not first:
            gain, deviation = better_by(validation, self.validation)
            kept = gain > deviation
            verdict = "kept" if kept else "not"
            sentence += f" ({gain:+.4f}, standard error {deviation:.4f}: {verdict})"
        self.watch.say(sentence)
        self.sentences.append(sentence)
        if kept:
            self.words, self.run, self.validation = words, run, validation
        if without_network:
            raise _EnoughError("Nothing more was tried: the data holds features, and no network.")
        if _score(self.validation) > PERFECT:
            raise _EnoughError("Nothing more was tried: the mAP on validation is 1.")

    def _solved(self, **changed: object) -> Settings:
        gone = {*OF_TRAINING, "minutes", "batch_size"}
        given = self.settings.model_dump(exclude_unset=True, exclude=gone)
        return Settings.model_validate({**given, "effort": "quick", "keep_val": True, **changed})

    def _trained(self, start: RunFolder, **recipe: Any) -> Settings:
        solved = Settings.model_validate(start.settings)
        keys = (*OF_TRAINING, "batch_size", "precision")
        given = {
            **{key: getattr(self.settings, key) for key in keys},
            "recipe": replace(self.settings.recipe, **recipe),
            "features": None,
            "backbone": start.spec.backbone.name,
            "weights": solved.weights or PRETRAINED,
            "start": str(start.path),
        }
        return solved.model_copy(update=given)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its evaluation, and whether this call had anything to do."""

    folder: Path
    evaluation: Evaluation
    table: LabelTable
    was_finished: bool = False


def train(
    settings: Settings,
    folder: Path | RunFolder,
    *,
    table: LabelTable | None = None,
    data: Data | None = None,
    watch: Watch | None = None,
    fresh: bool = False,
    by_eye: bool = True,
) -> Run | None:
    """Train, or go on training, and return the finished run; None in helper processes.

    ``table`` is used instead of the data that the settings name; ``data`` is that, read before.
    Only the first process reads and writes the folder. On a CPU a head on the features of an eye is
    solved without torch, unless ``by_eye`` is false.
    Ctrl-C stops between two steps with a checkpoint written, and raises KeyboardInterrupt.
    """
    check_names(settings)
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    if by_eye and _may_be_solved(settings):
        told = watch or Silent()
        if not fresh:
            run.fetch()
        data = data or read_data(settings, table, told)
        plan = resolve(settings, data.table)
        eye = None if isinstance(data.table.images, FeatureRows) else eye_of(plan.settings)
        if eye is not None and (fresh or not run.is_trained):
            for reason in plan.reasons:
                told.say(reason)
            loaded = table is None
            solving = prepare_solving(plan, run, told, data, eye, loaded=loaded)
            width = sum(eye.outputs[name] for name in eye.head_features)
            if not too_large(len(solving.splits["train"]), width, told):
                return Run(run.path, *solved_run(solving, contents_of(run), fresh=fresh))
    if settings.effort in ("good", "best"):
        return _train_with_effort(settings, run, table, data, watch or Silent(), fresh=fresh)
    from labelwise.training.trained import train_network

    done = train_network(settings, run, watch, table=table, data=data, fresh=fresh)
    return None if done is None else Run(run.path, *done)


def _may_be_solved(settings: Settings) -> bool:
    """Return whether the data decides if the head of this run is solved on an eye's features."""
    named = settings.features is None and settings.backbone != AUTO and settings.effort is None
    return (
        not named
        and settings.effort in (None, "quick")
        and is_closed(settings)
        and settings.start is None
        and settings.bands is None
        and settings.hardware.devices == 1
        and int(os.environ.get("WORLD_SIZE", "1")) == 1
    )


def _train_with_effort(
    settings: Settings,
    run: RunFolder,
    table: LabelTable | None,
    data: Data | None,
    watch: Watch,
    *,
    fresh: bool,
) -> Run:
    runs: list[Run] = []

    def begin(chosen: Settings, folder: Path, told: Watch) -> None:
        read = runs[0].table if runs else table
        first = None if runs else data
        done = train(chosen, folder, table=read, data=first, watch=told, fresh=fresh, by_eye=False)
        if done is not None:
            runs.append(done)
        run.publish()

    with run.lock():
        if fresh:
            run.clear()
        else:
            run.fetch()
        if run.settings_path.exists() and not run.trials.exists():
            raise SettingsError(
                f"{run.address} was trained without this effort; choose another folder with -o, "
                "or start over with --fresh"
            )
        run.claim()
        evaluation = tried(settings, run, begin, watch)
    finished = all(run.was_finished for run in runs)
    return Run(run.path, evaluation, runs[0].table, was_finished=finished)


# Out-of-fold predictions: what a run says of each of its training photos without having seen it.
#
# Each fold is a run in ``RUN/folds/N-of-M``. ``RUN/folds.parquet`` joins their answers as log-odds
# under each fold's own calibrated link: logits of different fits need not mean the same.


def train_folds(
    run: Run,
    folds: int,
    *,
    watch: Watch | None = None,
    fresh: bool = False,
    publish: Callable[[], None] = lambda: None,
) -> Predictions:
    """Return predictions of every training row of a run, by runs trained on the others."""
    files, watch = RunFolder(run.folder), watch or Silent()
    if "val" in files.splits and files.ids("val") == files.ids("train"):
        watch.say("the head was cross-fitted when it was solved, so no folds are trained")
        return Predictions.load(files.folds_path)
    settings = read_settings(files.settings_path, {})
    if settings.hardware.devices > 1:
        raise SettingsError("folds are trained one after the other on one device; leave --devices")
    from labelwise.answers.suspects import deal_folds
    from labelwise.training.execution import launch
    from labelwise.training.features import frozen_features

    rows = np.flatnonzero(run.table.split == "train")
    group = None if run.table.group is None else np.array(list(run.table.group))[rows]
    dealt = deal_folds(len(rows), folds, seed=settings.seed, group=group)
    table = run.table
    if settings.features is not None and not isinstance(table.images, FeatureRows):
        table = frozen_features(settings, table, launch(settings.hardware), watch)[1]
    # A promise and a share of photos without labels are the run's own, and change no row's order.
    plain = settings.model_copy(update={"promise": None, "cross_fit": False, "zero_share": None})
    parts = []
    for fold in range(folds):
        watch.say(f"fold {fold + 1} of {folds}")
        folder = files.path / "folds" / f"{fold + 1}-of-{folds}"
        held = rows[dealt == fold]
        # The rows held out are the test split; the run's own test rows are gone.
        split, kept = np.array(table.split), np.array(table.split) != "test"
        split[held] = "test"
        others = replace(table, split=split).subset(np.flatnonzero(kept))
        train(plain, folder, table=others, watch=watch, fresh=fresh, by_eye=False)
        parts.append(_odds(folder))
        if sorted(parts[-1].ids) != sorted(run.table.ids[row] for row in held.tolist()):
            raise SettingsError(
                f"{folder} was trained on other rows; start over with --fresh, or choose another "
                "folder with -o"
            )
        publish()
    joined = reduce(Predictions.joined, parts)
    places: dict[str, list[int]] = {}  # rows of one id keep their order
    for place, name in enumerate(joined.ids):
        places.setdefault(name, []).append(place)
    made = joined.take(np.array([places[run.table.ids[row]].pop(0) for row in rows.tolist()]))
    observed = None if made.observed is None or made.observed.all() else made.observed
    made = replace(made, split="train", observed=observed)
    made.save(files.folds_path)
    publish()
    return made


def _odds(folder: Path) -> Predictions:
    run = RunFolder(folder)
    predictions, link = run.predictions("test"), run.spec.made_link
    return predictions if link is None else as_odds(predictions.with_link(link))

"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from.

A command goes on with the run in a folder that was started with the same settings. The same content
under another path is the same. What is fitted after training (calibrator, rule, share of images
without labels) may change: it is then fitted again, without training. So may a taxonomy, or groups
of labels that exclude each other, where no label changes by that.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from math import sqrt
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.suspects import deal_folds
from labelwise.base.arrays import to_numpy
from labelwise.base.distributed import rank, value_of_first, wait_for_all
from labelwise.base.progress import LimitedWatch, Silent, TimeIsUp, Watch
from labelwise.calibration import expect_zero_share
from labelwise.calibration.auto import SHRUNKEN
from labelwise.calibration.shrunken import LabelErrors, shrunken_with_errors
from labelwise.decide import Promise, Promised, Rule, Threshold, WithParents, find_promise
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation, evaluate
from labelwise.evaluation import Training as Made
from labelwise.evaluation.intervals import mean_ap_influence
from labelwise.learn.backbones.weights import PRETRAINED
from labelwise.links import Consistent, Link, Sigmoid
from labelwise.metrics import average_precision
from labelwise.models import Model, Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.scores.fit import (
    check_promises,
    cross_fitted,
    fit_calibrator,
    fit_groups,
    fit_rule,
    make_promise,
    one_per_group,
)
from labelwise.tables import LabelTable
from labelwise.training import checkpoint
from labelwise.training.execution import errors_told_by_the_first, kernels, launch
from labelwise.training.features import frozen_features
from labelwise.training.loggers import log_history
from labelwise.training.loop import Loop
from labelwise.training.prepare import OF_TRAINING, PHOTO_NETWORK, Training, check_names, prepare
from labelwise.training.settings import AUTO, Settings, differences, read_settings
from labelwise.training.solve import solve_head

# After training: link and rule are fitted on validation alone and measured on test alone. What
# cannot be fitted is left out with a note: the trained model is saved in any case.


def finish(
    training: Training, model: Model, out_of_fold: NDArray[np.float32] | None = None
) -> Evaluation | None:
    """Write predictions, evaluation and model to the run's folder; None in helper processes.

    ``out_of_fold`` are the logits of training rows by a cross-fitted head: validation where no rows
    are held out.
    """
    inferred = {name: training.inferred(name, model) for name in training.splits}
    if not training.is_first:
        return None
    own = training.objective.final_link(inferred["train"].logits, *training.targets("train"))
    predictions = {}
    for name, table in training.splits.items():
        labels, observed = table.targets()
        logits, names = to_numpy(inferred[name].logits), table.space.names
        predictions[name] = Predictions(
            table.ids, logits, labels, observed, names, name, own, table.group
        )
    if out_of_fold is not None and training.cross_fitted:
        rows = replace(predictions["train"], logits=out_of_fold, split="val")
        predictions = {"train": predictions["train"], "val": rows, **predictions}
    for name, rows in predictions.items():
        rows.save(training.run.predictions_path(name))
    looks = {
        name: split.looks.numpy() for name, split in inferred.items() if split.looks is not None
    }
    features = isinstance(training.splits["train"].images, FeatureRows)
    copies = HeldOutCopies.among_features if features and looks else HeldOutCopies.among
    copies(looks).save(training.run.path)
    return _Finish(training, predictions, own).measured(model.cpu())


def finish_again(training: Training) -> Evaluation:
    """Fit link and rule once more on the saved predictions, and measure again; no training."""
    run, predictions = training.run, {}
    for name in run.splits:
        rows, table = run.predictions(name), training.splits.get(name)
        if rows.group is None and table is not None and list(rows.ids) == list(table.ids):
            rows = replace(rows, group=table.group)  # runs used to save predictions without
        predictions[name] = rows
    return _Finish(training, predictions, predictions["train"].link).measured(run.model().model)


class _Finish:
    """Fits a calibrated link (None: the model's own) and a rule on validation, and measures."""

    def __init__(
        self, training: Training, predictions: Mapping[str, Predictions], own: Link | None
    ) -> None:
        self.training, self.settings, self.own = training, training.settings, own
        self.predictions, self.val = predictions, predictions.get("val")
        self.test = predictions.get("test")
        self.notes: list[str] = []
        self.fitted: Link | None = None
        self.words, self.calibrator = "", "none"
        self.promises: tuple[Promise, ...] = ()
        self.errors = LabelErrors(0.0, 0.0)

    @property
    def link(self) -> Link | None:
        return self.fitted or self.own

    def measured(self, model: Model) -> Evaluation:
        training, settings, folder = self.training, self.settings, self.training.run.path
        rows = "out-of-fold predictions" if training.cross_fitted else "validation"
        what = "" if self.val is None else f"fitting the calibrator and the rule on {rows}, "
        training.watch.say(f"{what}measuring on {'what is there' if self.test is None else 'test'}")
        judged = self.test
        if judged is None:
            judged = self.predictions["train"] if self.val is None else self.val
            self.notes.append(
                f"There is no test split: these figures are of {judged.split}, which took part in "
                "fitting the model, and so are too good. `labelwise data split --shares` draws one."
            )
        copies = HeldOutCopies.of_run(folder).sentence()
        self.notes += [copies] if copies else []
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            self._fit_link()
            rule, rule_words = self._fit_rule()
        self.notes += [str(warning.message) for warning in caught]
        self.notes += [f"{self.errors}."] if self.errors.rate else []
        if training.frozen is not None and model.backbone.name == "identity":
            model = training.frozen.deployed(model)
        promises = tuple(promise.spec() for promise in self.promises)
        parts = (model, training.head, training.table.space, self.link, rule, settings.method)
        Predictor(*parts, promises, training.taxonomy).save(folder)
        counts = training.splits["train"].present.counts().tolist()
        evaluation = evaluate(
            judged,
            self.own,
            rule,
            calibrated=self.fitted,
            calibrator=self.words or None,
            rule_words=rule_words,
            train_counts=counts,
            training=Made.of(self.val, self.link, counts),
            seed=settings.seed,
            taxonomy=training.taxonomy,
            curves=True,
            notes=self.notes,
        )
        evaluation.save(training.run.evaluation_path)
        return evaluation

    def _fit_link(self) -> None:
        settings, training, val = self.settings, self.training, self.val
        if val is None:
            self.notes.append("There is no validation split, so nothing was calibrated or tuned.")
        else:
            name = self._calibrator()
            try:
                if name == SHRUNKEN:
                    fitted = shrunken_with_errors(val.logits, val.labels, self.own, val.observed)
                    self.fitted, self.errors = fitted
                    self.words, self.calibrator = "Platt per label, shrunk to a shared one", name
                else:
                    made = fit_calibrator(name, val, self.own, source=val.split)
                    self.fitted, self.words, choice = made
                    self.calibrator = name if choice is None else choice.name
                if self.fitted is None and name != "none":
                    self.notes.append("No calibrator beat the model's own probabilities.")
            except (DataError, ValueError) as error:
                self._not_fitted(str(error))
        link = self.link
        if link is None:
            return
        if val is not None and training.cross_fitted:
            as_odds(val.with_link(link)).save(training.run.folds_path)
        if training.tree is not None:
            link = self.fitted = Consistent(link, training.tree.parent)
            self.words = f"{self.words or 'own probabilities'}, made consistent"
        if training.attributes is not None:
            self.fitted, self.words = fit_groups(val, link, training.attributes, self.words)
        if val is not None and settings.zero_share is not None:
            try:
                self.fitted = expect_zero_share(link, val.labels, settings.zero_share, val.observed)
                shift = f"shifted to {settings.zero_share:.0%} images without labels"
                self.words = f"{self.words}; {shift}" if self.words else shift
            except ValueError as error:
                self._not_fitted(f"zero_share cannot be used: {error}")

    def _calibrator(self) -> str:
        """Return the calibrator: of a cross-fitted head one that no choice can make worse."""
        own, name = self.own, self.settings.calibrate
        if name != AUTO or not self.training.cross_fitted or own is None:
            return name
        return "none" if own.couples_labels else SHRUNKEN  # a softmax has its temperature

    def _fit_rule(self) -> tuple[Rule, str]:
        training, promised = self.training, self._promised()
        if promised is not None:
            self.promises = promised.promises
            rule, words = promised.rule, f"promised {self.settings.promise}"
        else:
            rule, words = Threshold(0.5), "p >= 0.5, not tuned"
            if self.val is not None and self.link is None:
                self.notes.append("The model only ranks labels, so no rule was tuned.")
            elif self.val is not None and self.link is not None:
                try:
                    rule, words = fit_rule(self.settings.rule, self.val, self.link)
                except (SettingsError, ValueError) as error:
                    self._not_fitted(str(error))
        if training.tree is not None:
            rule = WithParents(rule, training.tree.parent)
        if training.attributes is not None:
            rule, words = one_per_group(rule, words, training.attributes)
        return rule, words

    def _promised(self) -> Promised | None:
        """Return the rule that keeps the promise, None where none is asked for or can be made."""
        settings, link = self.settings, self.link
        if settings.promise is None or link is None:
            return None
        val, kept = self.predictions["val"], self.predictions["promise"]
        promised = make_promise(
            find_promise(settings.promise),
            link,
            kept,
            val,
            photos=f"{len(kept):,} of validation that fitted nothing",
            confidence=settings.confidence,
            seed=settings.seed,
        )
        self.notes += [f"Not promised: {sentence}." for sentence in promised.refused]
        if not promised.promises:
            refused = promised.refused[0]
            self.training.watch.say(f"{refused}; the rule {settings.rule} is used instead")
            return None
        if settings.cross_fit and self.fitted is not None:
            rows = val.joined(kept)
            fits = self.calibrator, self.fitted, self.own
            try:
                promised, link = cross_fitted(promised, *fits, rows)
                self.fitted = link
                self.words += f", fitted again on all {len(rows):,} rows of validation"
            except LabelwiseError as error:
                self._not_fitted(f"not cross-fitted, {error}")
        sentences = [str(promise) for promise in promised.promises]
        if self.test is not None:
            checks = check_promises(promised.promises, promised.rule, self.test.with_link(link))
            for number, check in enumerate(checks):
                sentences[number] += f"; on test {check}"
        sentences += [] if promised.warning is None else [promised.warning]
        self.notes += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]
        return promised

    def _not_fitted(self, sentence: str) -> None:
        self.notes.append(f"Not fitted: {sentence}.")
        self.training.watch.say(
            f"{sentence}; the model is saved without it: the same command with another rule, "
            "calibrator or share will not train again"
        )


# Effort: how much is tried with a pretrained network, and what of it is kept.
#
#     quick   the head is solved on the features of the network
#     good    quick; then the network is trained from that head (Kumar et al. 2022)
#     best    quick with larger pictures and other networks; the best of these is trained, once as
#             it is and once with averaged weights
#
# Each try is a run in ``trials/``. It replaces the best so far if its mAP on validation is higher
# by more than the standard error of the difference.

OTHER_NETWORKS = ("resnet50", "convnext_tiny", "vit_small_patch16_224")
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
    evaluation.save(run.evaluation_path)
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
                for other in OTHER_NETWORKS:
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
        settings, folder = Settings(**self.run.settings), RunFolder(self.trials / "solved-all")
        if settings.features is not None and settings.keep_val:
            chosen = settings.model_copy(update={"keep_val": self.settings.keep_val})
            self.begin(chosen, folder.path, self.watch)
            self.run = folder

    def _epochs(self) -> int:
        epochs, earlier = self.settings.recipe.epochs, RunFolder(self.trials / "trained")
        if earlier.settings_path.exists():  # which is resumed
            return Settings(**earlier.settings).recipe.epochs
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

    def _solved(self, **changed: Any) -> Settings:
        gone = {*OF_TRAINING, "minutes", "batch_size"}
        given = self.settings.model_dump(exclude_unset=True, exclude=gone)
        return Settings(**{**given, "effort": "quick", "keep_val": True, **changed})

    def _trained(self, start: RunFolder, **recipe: Any) -> Settings:
        solved = Settings(**start.settings)
        keys = (*OF_TRAINING, "batch_size", "precision")
        given = {
            **{key: getattr(self.settings, key) for key in keys},
            "recipe": replace(self.settings.recipe, **recipe),
            "features": None,
            "backbone": solved.backbone,
            "weights": solved.weights or PRETRAINED,
            "start": str(start.path),
        }
        return solved.model_copy(update=given)


AFTERWARDS = {"calibrate", "rule", "zero_share", "confidence", "taxonomy", "attributes"}
# Settings that only say where things are or which rows are taken: their content is compared.
CONTENTS = {"data": {"data", "on_error", "skip_missing", "val_share"}, "weights": {"weights"}}


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
    watch: Watch | None = None,
    fresh: bool = False,
) -> Run | None:
    """Train, or go on training, and return the finished run; None in helper processes.

    ``table`` spares reading the data. Only the first process reads and writes the folder.
    Ctrl-C stops between two steps with a checkpoint written, and raises KeyboardInterrupt.
    """
    check_names(settings)
    if settings.deterministic:
        # Lets cuBLAS compute the same sums each time; it reads this when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = launch(settings.hardware)
    if rank() > 0 or watch is None:
        watch = Silent()
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    if settings.effort in ("good", "best"):
        return _train_with_effort(settings, run, table, watch, fresh=fresh)
    with errors_told_by_the_first():
        if rank() == 0 and not fresh:
            run.fetch()
        training = prepare(settings, run, device, watch, table=table, fresh=fresh)
        return _fit_and_finish(training, fresh=fresh)


def _fit_and_finish(training: Training, *, fresh: bool) -> Run | None:
    run, settings, first = training.run, training.settings, training.is_first
    changed, evaluation = False, None
    with run.lock() if first else nullcontext():
        if first:
            changed = _finish_again(training, fresh=fresh)
            run.claim()
            if not run.is_finished:
                settings.save(run.settings_path)
                run.publish()
        wait_for_all()
        finished = value_of_first(run.is_finished, training.device)
        if not finished:
            with kernels(deterministic=settings.deterministic):
                out_of_fold = None
                if training.solved:
                    model, fitted = solve_head(training)
                    out_of_fold = fitted.out_of_fold
                    if first:
                        log_history(run, settings)
                else:
                    model = Loop(training).run()
                evaluation = finish(training, model, out_of_fold)
        elif first:
            log_history(run, settings)
            evaluation = finish_again(training) if changed else run.evaluation
        if first:
            if finished:  # last: a command that is stopped before this finishes it again
                settings.save(run.settings_path)
            run.publish()
    if evaluation is None:
        return None
    return Run(run.path, evaluation, training.table, was_finished=finished)


def _train_with_effort(
    settings: Settings, run: RunFolder, table: LabelTable | None, watch: Watch, *, fresh: bool
) -> Run:
    runs: list[Run] = []

    def begin(chosen: Settings, folder: Path, told: Watch) -> None:
        read = runs[0].table if runs else table
        done = train(chosen, folder, table=read, watch=told, fresh=fresh)
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


def _finish_again(training: Training, *, fresh: bool) -> bool:
    """Return whether a finished run must be finished again; raise if it may not be resumed."""
    run, changed = training.run, {}
    if fresh:
        run.clear()
    if run.settings_path.exists():
        try:
            before = read_settings(run.settings_path, {})
        except SettingsError as error:
            raise CheckpointError(f"{error}; start over with --fresh") from None
        facts = checkpoint.latest_facts(run.checkpoint)
        changed, may_change = differences(before, training.settings), set(AFTERWARDS)
        for content, keys in CONTENTS.items():
            if facts and facts.get(content) == training.contents[content]:
                may_change |= keys
        others = [text for key, text in changed.items() if key not in may_change]
        if others:
            raise SettingsError(
                f"{run.address} was started with other settings ({'; '.join(others)}); "
                "choose another folder with -o, or start over with --fresh"
            )
        if run.is_finished and facts and facts.get("data") != training.contents["data"]:
            since = f"the data changed since the run in {run.address} was trained"
            if changed:
                raise SettingsError(f"{since}; bring the old data back, or start over with --fresh")
            training.watch.say(f"{since}: its figures are of old rows; --fresh trains on new ones")
    elif run.checkpoint.exists():
        raise CheckpointError(f"{run.address} has a checkpoint but no settings.yaml; use --fresh")
    if AFTERWARDS & changed.keys() or not run.is_finished:
        return bool(AFTERWARDS & changed.keys())
    # A file of the same name may hold another taxonomy, or other groups, than the run's model.
    parents = None if training.taxonomy is None else dict(training.taxonomy.parents)
    link = run.spec.made_link
    groups = None if link is None else link.exclusive
    return run.spec.taxonomy != parents or groups != training.attributes


# Out-of-fold predictions: what a run says of each of its training photos without having seen it.
#
# Each fold is a run in ``RUN/folds/N-of-M``. ``RUN/folds.parquet`` joins their answers as log-odds
# under each fold's own calibrated link: logits of different fits need not mean the same.

FAR = 50.0  # log-odds beyond which nothing changes


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
        train(plain, folder, table=others, watch=watch, fresh=fresh)
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


def as_odds(rows: Predictions) -> Predictions:
    """Return predictions of training rows as calibrated log-odds, cut at +-FAR."""
    if rows.link is None:
        return rows
    odds = rows.link.log_odds(rows.logits.astype(np.float64)).clip(-FAR, FAR)
    return replace(rows, logits=odds.astype(np.float32), link=Sigmoid(), split="train")

"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from.

A command goes on with the run in a folder that was begun with the same settings. The same content
under another path is the same. What is fitted after training (calibrator, rule, share of images
without labels) may change: it is then fitted again, without training. So may a taxonomy, or groups
of labels that exclude each other, where no label changes by that.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from math import sqrt
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.suspects import deal_folds
from labelwise.calibration import expect_zero_share
from labelwise.data import LabelTable
from labelwise.decide import Promise, Promised, Rule, Threshold, WithParents, find_promise
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation, evaluate
from labelwise.evaluation.intervals import mean_ap_influence
from labelwise.links import Consistent, Link, Sigmoid
from labelwise.metrics import average_precision
from labelwise.models import Model, Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.networks.backbones.weights import PRETRAINED
from labelwise.numeric.arrays import to_numpy
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
from labelwise.system.distributed import rank, value_of_first, wait_for_all
from labelwise.system.progress import LimitedWatch, Silent, TimeIsUp, Watch
from labelwise.training import checkpoint
from labelwise.training.execution import kernels, reserve_workspace
from labelwise.training.features import frozen_features
from labelwise.training.loggers import log_history
from labelwise.training.loop import Loop
from labelwise.training.plan import OF_TRAINING, PHOTO_NETWORK, check_names
from labelwise.training.prepare import Training, prepare
from labelwise.training.processes import errors_told_by_the_first, launch
from labelwise.training.settings import AUTO, Settings, differences, read_settings
from labelwise.training.solve import solve_head

# After training: predictions of every split, a calibrated link, a rule, figures, the predictor.
#
# Link and rule are fitted on validation alone and measured on test alone. With a taxonomy the link
# takes the calibrated probabilities to the nearest ones that obey it, and the rule adds parents to
# sets. Of labels that exclude each other the link makes one distribution, and the rule takes one.
# What cannot be fitted is said and left out: the trained model is saved in any case, and the same
# command with another rule, calibrator or ``zero_share`` fits them again on the saved predictions,
# without training.


@dataclass(frozen=True)
class Fitted:
    """What was fitted on validation: a calibrated link (None: the model's own), and a rule."""

    link: Link | None
    calibrator: str
    rule: Rule
    rule_words: str
    promises: tuple[Promise, ...] = ()


def _known(training: Training, split: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    labels, observed = training.targets(split)
    return to_numpy(labels), None if observed is None else to_numpy(observed)


def finish(training: Training, model: Model) -> Evaluation | None:
    """Write predictions, evaluation and model to the run's folder; None in helper processes."""
    inferred = {name: training.inferred(name, model) for name in training.splits}
    if not training.is_first:
        return None
    own = training.objective.final_link(inferred["train"].logits, *training.targets("train"))
    predictions = {
        name: Predictions(
            table.ids,
            to_numpy(inferred[name].logits),
            *_known(training, name),
            table.space.names,
            name,
            own,
            table.group,
        )
        for name, table in training.splits.items()
    }
    for name, rows in predictions.items():
        rows.save(training.run.predictions_path(name))
    looks = {
        name: split.looks.numpy() for name, split in inferred.items() if split.looks is not None
    }
    features = isinstance(training.splits["train"].images, FeatureRows)
    copies = HeldOutCopies.among_features if features and looks else HeldOutCopies.among
    copies(looks).save(training.run.path)
    return _fit_and_measure(training, predictions, own, model.cpu())


def finish_again(training: Training) -> Evaluation:
    """Fit link and rule once more on the saved predictions, and measure again; no training."""
    run = training.run
    predictions = {
        name: _in_groups(run.predictions(name), training.splits.get(name)) for name in run.splits
    }
    model = run.model()
    return _fit_and_measure(training, predictions, predictions["train"].link, model.model)


def _in_groups(rows: Predictions, table: LabelTable | None) -> Predictions:
    """Return the rows with the groups of their table: runs used to save predictions without."""
    if rows.group is not None or table is None or list(rows.ids) != list(table.ids):
        return rows
    return replace(rows, group=table.group)


def _fit_and_measure(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    model: Model,
) -> Evaluation:
    settings, folder = training.settings, training.run.path
    fits = "val" in predictions
    what = "fitting the calibrator and the rule on validation, " if fits else ""
    training.watch.say(f"{what}measuring on {'test' if 'test' in predictions else 'what is there'}")
    notes: list[str] = []
    judged = predictions.get("test")
    if judged is None:
        judged = predictions.get("val", predictions["train"])
        notes.append(
            f"There is no test split: these figures are of {judged.split}, which took part in "
            "fitting the model, and so are too good. `labelwise data split --shares` draws one."
        )
    copies = HeldOutCopies.of_run(folder).sentence()
    notes += [copies] if copies else []
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        fitted = _fit(training, predictions, own, notes)
    notes += [str(warning.message) for warning in caught]
    link, space = fitted.link or own, training.table.space
    promises = tuple(promise.spec() for promise in fitted.promises)
    if training.frozen is not None and model.backbone.name == "identity":
        model = training.frozen.deployed(model)
    parts = (model, training.head, space, link, fitted.rule, settings.method, promises)
    Predictor(*parts, training.taxonomy).save(folder)
    evaluation = evaluate(
        judged,
        own,
        fitted.rule,
        calibrated=fitted.link,
        calibrator=fitted.calibrator or None,
        rule_words=fitted.rule_words,
        train_counts=training.splits["train"].present.counts().tolist(),
        seed=settings.seed,
        taxonomy=training.taxonomy,
        curves=True,
        notes=notes,
    )
    evaluation.save(training.run.evaluation_path)
    return evaluation


def _fit(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    notes: list[str],
) -> Fitted:
    """Return the calibrated link and the rule; what cannot be fitted is noted."""
    settings = training.settings
    link, words, calibrator = _fit_link(training, predictions, own, notes)
    promised = _promise(training, predictions, link or own, notes)
    if promised is None:
        rule, rule_words = _fit_rule(training, predictions, link or own, notes)
    else:
        if settings.cross_fit and link is not None:
            rows = predictions["val"].joined(predictions["promise"])
            try:
                promised, link = cross_fitted(promised, calibrator, link, own, rows)
                words += f", fitted again on all {len(rows):,} rows of validation"
            except LabelwiseError as error:
                _say_not_fitted(training, notes, f"not cross-fitted, {error}")
        _note_promises(promised, link or own, predictions.get("test"), notes)
        rule, rule_words = promised.rule, f"promised {settings.promise}"
    if training.tree is not None:
        rule = WithParents(rule, training.tree.parent)
    if training.attributes is not None:
        rule, rule_words = one_per_group(rule, rule_words, training.attributes)
    promises = () if promised is None else promised.promises
    return Fitted(link, words, rule, rule_words, promises)


def _fit_link(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    notes: list[str],
) -> tuple[Link | None, str, str]:
    """Return the link that is used instead of the model's own, None if that is kept.

    Beside it, what it is in words, and the name of the calibrator.
    """
    settings = training.settings
    fitted, words, calibrator = None, "", "none"
    val = predictions.get("val")
    if val is None:
        notes.append("There is no validation split, so nothing was calibrated or tuned.")
    else:
        try:
            fitted, words, choice = fit_calibrator(settings.calibrate, val, own, source=val.split)
            calibrator = settings.calibrate if choice is None else choice.name
            if fitted is None and settings.calibrate != "none":
                notes.append("No calibrator was better than the model's own probabilities.")
        except DataError as error:
            _say_not_fitted(training, notes, str(error))
    link = fitted or own
    if link is None:
        return None, words, calibrator
    if training.tree is not None:
        link = fitted = Consistent(link, training.tree.parent)
        words = f"{words or 'own probabilities'}, made consistent"
    if training.attributes is not None:
        fitted, words = fit_groups(val, link, training.attributes, words)
    if val is not None and settings.zero_share is not None:
        try:
            fitted = expect_zero_share(link, val.labels, settings.zero_share, val.observed)
            shift = f"shifted to {settings.zero_share:.0%} images without labels"
            words = f"{words}; {shift}" if words else shift
        except ValueError as error:
            _say_not_fitted(training, notes, f"zero_share cannot be used: {error}")
    return fitted, words, calibrator


def _fit_rule(
    training: Training,
    predictions: Mapping[str, Predictions],
    link: Link | None,
    notes: list[str],
) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of validation, and what it is in words."""
    untuned = Threshold(0.5), "p >= 0.5, not tuned"
    if "val" not in predictions:
        return untuned
    if link is None:
        notes.append("The model only ranks labels, so it has no probabilities and no tuned rule.")
        return untuned
    try:
        return fit_rule(training.settings.rule, predictions["val"], link)
    except (SettingsError, ValueError) as error:
        _say_not_fitted(training, notes, str(error))
        return untuned


def _promise(
    training: Training, predictions: Mapping[str, Predictions], link: Link | None, notes: list[str]
) -> Promised | None:
    """Return the rule that keeps the promise, None where none is asked for or can be made."""
    settings = training.settings
    if settings.promise is None or link is None:
        return None
    kept = predictions["promise"]
    promised = make_promise(
        find_promise(settings.promise),
        link,
        kept,
        predictions["val"],
        photos=f"{len(kept):,} of validation that fitted nothing",
        confidence=settings.confidence,
        seed=settings.seed,
    )
    notes += [f"Not promised: {sentence}." for sentence in promised.refused]
    if not promised.promises:
        training.watch.say(f"{promised.refused[0]}; the rule {settings.rule} is used instead")
        return None
    return promised


def _note_promises(
    promised: Promised, link: Link | None, test: Predictions | None, notes: list[str]
) -> None:
    """Note each promise and how it stands on test."""
    sentences = [str(promise) for promise in promised.promises]
    if test is not None and link is not None:
        for number, check in enumerate(
            check_promises(promised.promises, promised.rule, test.with_link(link))
        ):
            sentences[number] += f"; on test {check}"
    sentences += [] if promised.warning is None else [promised.warning]
    notes += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]


def _say_not_fitted(training: Training, notes: list[str], sentence: str) -> None:
    """Note what could not be fitted, and say how to try another without training again."""
    notes.append(f"Not fitted: {sentence}.")
    training.watch.say(
        f"{sentence}; the model is saved without it: the same command with another rule, "
        "calibrator or share will not train again"
    )


# Effort: how much is tried with a pretrained network, and what of it is kept.
#
#     quick   the head is solved on the features of the network
#     good    quick; then the network is trained too, from that head (linear probing, then
#             fine-tuning: Kumar et al. 2022)
#     best    quick with larger pictures and other networks, as far as their weights can be had; the
#             best of these is trained, once as it is and once with averaged weights
#
# Each try is a run in ``trials/``. The next one is kept instead of the best so far if its mAP on
# validation is higher by more than the standard error of the difference, from how much each image
# moves it (:mod:`labelwise.evaluation.intervals`): what cannot be told apart stays simple. Nothing
# more is tried once that mAP is 1, or where the data holds features and there is no network. When
# ``minutes`` have passed, the try that is going on is given up, unless it is the first; training
# plans as many epochs as the first tries say will fit. The files
# of the one that is kept become those of the run, and what was tried stands in its notes.


OTHER_NETWORKS = ("resnet50", "convnext_tiny", "vit_small_patch16_224")
LARGER = 9 / 7  # times the side of the input: 288 pixels instead of 224
AVERAGED = 0.99  # decay of the averaged weights
EPOCH = 3  # times the solved try, which sees each photo once, that an epoch of training takes

PERFECT = 1 - 1e-9  # an mAP that cannot be raised, but for rounding

Try = Callable[[Settings, Path, Watch], None]


@dataclass(frozen=True)
class Trial:
    """A finished run, what it is in words, and its mAP on validation."""

    words: str
    run: RunFolder
    validation: Predictions

    @property
    def score(self) -> float:
        rows = self.validation
        return float(average_precision(rows.logits, rows.labels > 0.5, rows.observed).value)


def better_by(one: Predictions, other: Predictions) -> tuple[float, float]:
    """Return by how much the mAP of one is above that of another, and its standard error."""
    if list(one.ids) != list(other.ids):
        raise ValueError("two models are compared on the same rows, got others")
    present = one.labels > 0.5
    scores = [
        float(average_precision(rows.logits, present, one.observed).value) for rows in (one, other)
    ]
    moved = mean_ap_influence(one.logits, present, one.observed) - mean_ap_influence(
        other.logits, present, one.observed
    )
    return scores[0] - scores[1], sqrt(float(moved @ moved))


def tried(settings: Settings, run: RunFolder, begin: Try, watch: Watch) -> Evaluation:
    """Try what the effort asks for, keep the best in the run's folder, return its evaluation.

    ``begin`` trains settings in a folder, or goes on there, and tells a watch.
    """
    effort = _Effort(settings, run, begin, watch)
    for words, name, chosen in effort.plan():
        if not effort.take(words, name, chosen):
            break
    return effort.finish()


class _Effort:
    """What was tried so far, the best of it, and the sentences for the notes."""

    def __init__(self, settings: Settings, run: RunFolder, begin: Try, watch: Watch) -> None:
        self.settings, self.run, self.begin, self.watch = settings, run, begin, watch
        minutes = settings.minutes
        self.until = None if minutes is None else time.monotonic() + 60 * minutes
        self.best: Trial | None = None
        self.seconds: dict[str, float] = {}  # that each try took, in words
        self.sentences: list[str] = []
        self.stopped = "All that this effort tries was tried."

    def plan(self) -> Iterator[tuple[str, str, Settings]]:
        """Yield what to try next: in words, the name of its folder, its settings.

        What is trained begins with the best that was solved by then.
        """
        name = PHOTO_NETWORK if self.settings.backbone == AUTO else self.settings.backbone
        yield f"{name}, head solved", "solved", self._solved()
        if self.settings.effort == "best":
            side = self._kept.run.spec.transform.size
            large = round(LARGER * side / 32) * 32
            words = f"{name} at {large} pixels, head solved"
            yield words, f"solved-{large}", self._solved(image_size=large)
            if self.settings.backbone == AUTO and self.settings.weights is None:
                for other in OTHER_NETWORKS:
                    yield f"{other}, head solved", f"solved-{other}", self._solved(backbone=other)
        begun = self._kept
        words = begun.words.replace("head solved", "trained from there")
        epochs = self._epochs(begun)
        if epochs == 0:
            self._stop(f"The {self.settings.minutes:g} minutes leave no time for {words}.")
            return
        yield words, "trained", self._trained(begun, epochs=epochs)
        if self.settings.effort == "best":
            averaged = f"{words}, weights averaged"
            yield averaged, "averaged", self._trained(begun, epochs=epochs, ema=AVERAGED)

    def _epochs(self, begun: Trial) -> int:
        """Return how many epochs fit into the minutes that are left, those that were asked for."""
        epochs, earlier = self.settings.recipe.epochs, RunFolder(self.run.trials / "trained")
        if earlier.settings_path.exists():  # which is resumed
            return Settings(**earlier.settings).recipe.epochs
        each = EPOCH * self.seconds[begun.words] * (2 if self.settings.effort == "best" else 1)
        if self.until is None or each == 0 or each * epochs <= self.until - time.monotonic():
            return epochs
        fit = max(0, int((self.until - time.monotonic()) / each))
        minutes = self.settings.minutes
        self.watch.say(f"{minutes:g} minutes: training {fit:,} instead of {epochs:,} epochs")
        return fit

    def take(self, words: str, name: str, settings: Settings) -> bool:
        minutes, watch = self.settings.minutes, self.watch
        if self.best is not None and self.until is not None:
            if time.monotonic() > self.until:
                return self._stop(f"The {minutes:g} minutes were over before {words}.")
            watch = LimitedWatch(watch, self.until)
        self.watch.say(f"trying {words}")
        run, began = RunFolder(self.run.trials / name), time.monotonic()
        try:
            self.begin(settings, run.path, watch)
        except TimeIsUp:
            return self._stop(f"The {minutes:g} minutes were over: {words} was given up.")
        except SettingsError as error:
            if self.best is None or "cannot be reached" not in str(error):
                raise
            self.watch.say(f"{words}: its weights cannot be had here")
            self.sentences.append(f"{words}: not tried, its weights cannot be had here")
            return True
        self.seconds[words] = time.monotonic() - began
        without_network = run.spec.backbone.name == "identity"
        if without_network:
            words = "head solved on the features of the data"
        self._judge(Trial(words, run, run.predictions("val")))
        if without_network:
            return self._stop("Nothing more was tried: the data holds features, and no network.")
        if self._kept.score > PERFECT:
            return self._stop("Nothing more was tried: the mAP on validation is 1.")
        return True

    def _stop(self, why: str) -> bool:
        self.stopped = why
        self.watch.say(why)
        return False

    @property
    def _kept(self) -> Trial:
        if self.best is None:
            raise ValueError("nothing was tried")
        return self.best

    def _judge(self, trial: Trial) -> None:
        sentence = f"{trial.words}: {trial.score:.4f}"
        if self.best is None:
            self.best = trial
        else:
            gain, error = better_by(trial.validation, self.best.validation)
            kept = gain > error
            sentence += f" ({gain:+.4f}, standard error {error:.4f}: {'kept' if kept else 'not'})"
            if kept:
                self.best = trial
        self.watch.say(sentence)
        self.sentences.append(sentence)

    def _solved(self, **changed: Any) -> Settings:
        given = self.settings.model_dump(exclude_unset=True)
        for key in (*OF_TRAINING, "minutes", "batch_size"):
            given.pop(key, None)
        return Settings(**{**given, "effort": "quick", **changed})

    def _trained(self, begun: Trial, **recipe: Any) -> Settings:
        solved = Settings(**begun.run.settings)
        given = {
            key: getattr(self.settings, key) for key in (*OF_TRAINING, "batch_size", "precision")
        }
        given["recipe"] = replace(self.settings.recipe, **recipe)
        network = {
            "features": None,
            "backbone": solved.backbone,
            "weights": solved.weights or PRETRAINED,
            "start": str(begun.run.path),
        }
        return solved.model_copy(update={**given, **network})

    def finish(self) -> Evaluation:
        """Make the files of the best those of the run; return its evaluation with the notes."""
        best = self._kept
        self.run.take_over(best.run)
        note = (
            f"Tried, by mAP on validation: {'; '.join(self.sentences)}. Kept: {best.words}. "
            f"{self.stopped}"
        )
        evaluation = best.run.evaluation
        evaluation = replace(evaluation, notes=(*evaluation.notes, note))
        evaluation.save(self.run.evaluation_path)
        return evaluation


AFTERWARDS = {"calibrate", "rule", "zero_share", "confidence", "taxonomy", "attributes"}
# Settings that only say where things are or which rows are taken: their content is compared.
CONTENTS = {
    "data": ("data", "on_error", "skip_missing", "val_share"),
    "weights": ("weights",),
}


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
        reserve_workspace()
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
    first = training.is_first
    with _opened(training, fresh=fresh) if first else nullcontext(False) as changed:
        wait_for_all()
        if value_of_first(training.run.is_finished, training.device):
            finished, evaluation = True, None
            if first:
                log_history(training.run, training.settings)
                evaluation = finish_again(training) if changed else training.run.evaluation
        else:
            with kernels(deterministic=training.settings.deterministic):
                model = None if training.frozen is None else solve_head(training)
                if model is None:
                    model = Loop(training).run()
                elif first:
                    log_history(training.run, training.settings)
                evaluation = finish(training, model)
            finished = False
    if evaluation is None:
        return None
    return Run(training.run.path, evaluation, training.table, was_finished=finished)


def _train_with_effort(
    settings: Settings,
    run: RunFolder,
    table: LabelTable | None,
    watch: Watch,
    *,
    fresh: bool,
) -> Run:
    """Train what the effort asks for, each in a folder of its own, and keep the best."""
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


@contextmanager
def _opened(training: Training, *, fresh: bool) -> Iterator[bool]:
    """Have the folder for a run while the block runs; yield whether it must be finished again.

    Settings of a finished run are written when what follows from them is: a command that is
    stopped in between finishes it again the next time.
    """
    run = training.run
    with run.lock():
        again = _finish_again(training, fresh=fresh)
        run.claim()
        finished = run.is_finished
        if not finished:
            training.settings.save(run.settings_path)
            run.publish()
        yield again
        if finished:
            training.settings.save(run.settings_path)
        run.publish()


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
        same = {
            key
            for content, keys in CONTENTS.items()
            for key in keys
            if facts and facts.get(content) == training.contents[content]
        }
        changed = differences(before, training.settings)
        others = [text for key, text in changed.items() if key not in AFTERWARDS | same]
        if others:
            raise SettingsError(
                f"{run.address} was begun with other settings ({'; '.join(others)}); "
                "choose another folder with -o, or start over with --fresh"
            )
        if run.is_finished and facts and facts.get("data") != training.contents["data"]:
            since = f"the data changed since the run in {run.address} was trained"
            if changed:
                raise SettingsError(f"{since}; bring the old data back, or start over with --fresh")
            training.watch.say(
                f"{since}: its figures are of the old rows; --fresh trains on the new ones"
            )
    elif run.checkpoint.exists():
        raise CheckpointError(f"{run.address} has a checkpoint but no settings.yaml; use --fresh")
    other = run.is_finished and (_other_taxonomy(training) or _other_groups(training))
    return bool(AFTERWARDS & changed.keys()) or other


def _other_taxonomy(training: Training) -> bool:
    """Return whether a file of the same name holds another taxonomy than the run's model."""
    parents = None if training.taxonomy is None else dict(training.taxonomy.parents)
    return training.run.spec.taxonomy != parents


def _other_groups(training: Training) -> bool:
    """Return whether a file of the same name holds other groups than the run's model."""
    link = training.run.spec.made_link
    return (None if link is None else link.exclusive) != training.attributes


# Out-of-fold predictions: what a run says of each of its training photos without having seen it.
#
# The training rows are dealt into folds, whole groups to one. Each fold is a run of its own in
# ``RUN/folds/N-of-M``, with the settings of the run, trained on the other folds and calibrated on
# the same validation rows; the rows held out are its test split. Features of a frozen backbone are
# computed once for all of them.
#
# ``RUN/folds.parquet`` joins the answers in the order of the training rows, as log-odds under each
# fold's own calibrated link: logits of different fits need not mean the same.


FAR = 50.0  # log-odds beyond which nothing changes


def train_folds(
    run: Run,
    folds: int,
    *,
    watch: Watch | None = None,
    fresh: bool = False,
    publish: Callable[[], None] = lambda: None,
) -> Predictions:
    """Return predictions of every training row of a run, by runs that were trained on the others.

    Folds that were finished before are taken as they are; one that was stopped goes on. ``publish``
    is called after each, and at the end.
    """
    files, watch = RunFolder(run.folder), watch or Silent()
    settings = read_settings(files.settings_path, {})
    if settings.hardware.devices > 1:
        raise SettingsError("folds are trained one after the other on one device; leave --devices")
    rows = np.flatnonzero(run.table.split == "train")
    group = None if run.table.group is None else np.array(list(run.table.group))[rows]
    dealt = deal_folds(len(rows), folds, seed=settings.seed, group=group)
    table = _as_features(settings, run.table, watch)
    # A promise and a share of photos without labels are the run's own, and change no row's order.
    plain = settings.model_copy(update={"promise": None, "cross_fit": False, "zero_share": None})
    parts = []
    for fold in range(folds):
        watch.say(f"fold {fold + 1} of {folds}")
        folder = files.path / "folds" / f"{fold + 1}-of-{folds}"
        held = rows[dealt == fold]
        train(plain, folder, table=_held_out(table, held), watch=watch, fresh=fresh)
        parts.append(_odds(folder))
        if sorted(parts[-1].ids) != sorted(run.table.ids[row] for row in held.tolist()):
            raise SettingsError(
                f"{folder} was trained on other rows; start over with --fresh, or choose another "
                "folder with -o"
            )
        publish()
    made = _joined(parts, [run.table.ids[row] for row in rows.tolist()])
    made.save(files.folds_path)
    publish()
    return made


def _as_features(settings: Settings, table: LabelTable, watch: Watch) -> LabelTable:
    if settings.features is None or isinstance(table.images, FeatureRows):
        return table
    return frozen_features(settings, table, launch(settings.hardware), watch)[1]


def _held_out(table: LabelTable, held: NDArray[np.intp]) -> LabelTable:
    """Return the table with some training rows as its test split; its own test rows are gone."""
    split = np.array(table.split)
    kept = split != "test"
    split[held] = "test"
    return replace(table, split=split).subset(np.flatnonzero(kept))


def _odds(folder: Path) -> Predictions:
    """Return the held-out rows of a fold with log-odds as logits; as they are without a link."""
    run = RunFolder(folder)
    predictions, link = run.predictions("test"), run.spec.made_link
    if link is None:
        return predictions
    odds = link.log_odds(predictions.logits.astype(np.float64)).clip(-FAR, FAR)
    return replace(predictions, logits=odds.astype(np.float32), link=Sigmoid())


def _joined(parts: list[Predictions], ids: list[str]) -> Predictions:
    """Return the parts as one, in the order of ``ids``; rows of one id keep theirs."""
    rows = reduce(Predictions.joined, parts)
    places: dict[str, list[int]] = {}
    for position, name in enumerate(rows.ids):
        places.setdefault(name, []).append(position)
    ordered = rows.take(np.array([places[name].pop(0) for name in ids]))
    known = ordered.observed
    observed = None if known is None or known.all() else known
    return replace(ordered, split="train", observed=observed)

"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from.

A command goes on with the run in a folder that was begun with the same settings. The same content
under another path is the same. What is fitted after training (calibrator, rule, share of images
without labels) may change: it is then fitted again, without training. So may a taxonomy, or groups
of labels that exclude each other, where no label changes by that.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

from labelwise.data import LabelTable
from labelwise.errors import CheckpointError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.evaluation.jackknife import mean_ap_influence
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.networks.backbones.weights import PRETRAINED
from labelwise.predictions import Predictions
from labelwise.system.distributed import rank, value_of_first, wait_for_all
from labelwise.system.progress import LimitedWatch, Silent, TimeIsUp, Watch
from labelwise.training import checkpoint
from labelwise.training.execution import kernels, reserve_workspace
from labelwise.training.finish import finish, finish_again
from labelwise.training.loggers import log_history
from labelwise.training.loop import Loop
from labelwise.training.plan import OF_TRAINING, PHOTO_NETWORK, check_names
from labelwise.training.prepare import Training, prepare
from labelwise.training.processes import errors_told_by_the_first, launch
from labelwise.training.settings import AUTO, Settings, differences, read_settings
from labelwise.training.solve import solve_head

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
# moves it (:mod:`labelwise.evaluation.jackknife`): what cannot be told apart stays simple. Nothing
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
        """The mAP over labels on validation."""
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
        """Try one; return whether to go on."""
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
    finished = all(one.was_finished for one in runs)
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

"""Effort: how much is tried with a pretrained network, and what of it is kept.

    quick   the head is solved on the features of the network
    good    quick; then the network is trained too, from that head (linear probing, then
            fine-tuning: Kumar et al. 2022)
    best    quick with larger pictures and other networks, as far as their weights can be had; the
            best of these is trained, once as it is and once with averaged weights

Each try is a run in ``trials/``. The next one is kept instead of the best so far if its mAP on
validation is higher by more than the standard error of the difference, from how much each image
moves it (:mod:`labelwise.evaluation.jackknife`): what cannot be told apart stays simple. Nothing
more is tried once that mAP is 1, or where the data holds features and there is no network. When
``minutes`` have passed, the try that is going on is given up, unless it is the first. The files
of the one that is kept become those of the run, and what was tried stands in its notes.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

from labelwise.errors import SettingsError
from labelwise.evaluation import Evaluation
from labelwise.evaluation.jackknife import mean_ap_influence
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.networks.backbones.weights import PRETRAINED
from labelwise.predictions import Predictions
from labelwise.system.progress import LimitedWatch, TimeIsUp, Watch
from labelwise.training.network import OF_TRAINING, PHOTO_NETWORK
from labelwise.training.settings import AUTO, Settings

OTHER_NETWORKS = ("resnet50", "convnext_tiny", "vit_small_patch16_224")
LARGER = 9 / 7  # times the side of the input: 288 pixels instead of 224
AVERAGED = 0.99  # decay of the averaged weights

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
        yield words, "trained", self._trained(begun)
        if self.settings.effort == "best":
            averaged = f"{words}, weights averaged"
            yield averaged, "averaged", self._trained(begun, ema=AVERAGED)

    def take(self, words: str, name: str, settings: Settings) -> bool:
        """Try one; return whether to go on."""
        minutes, watch = self.settings.minutes, self.watch
        if self.best is not None and self.until is not None:
            if time.monotonic() > self.until:
                return self._stop(f"The {minutes:g} minutes were over before {words}.")
            watch = LimitedWatch(watch, self.until)
        self.watch.say(f"trying {words}")
        run = RunFolder(self.run.trials / name)
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

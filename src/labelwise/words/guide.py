"""QuestionGuide: which photos people are asked about first, where a run already has guesses.

Photos that are set aside follow from their content alone (:mod:`labelwise.words.answers`). They are
asked about in the random order of the word, whatever a model says, so that promises and counts can
rest on them. All others are asked about by the value of an answer: those that the model is least
sure of first, by p (1 - p). Of five questions in a row, one is about a photo set aside. A guess can
be shown of the others, to those who ask for it; never of a photo set aside, because guesses sway.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import SettingsError
from labelwise.models import Predictor
from labelwise.pictures import PictureImages
from labelwise.system.progress import Watch
from labelwise.words.answer_log import asking_order
from labelwise.words.answers import is_set_aside
from labelwise.words.photos import features_of
from labelwise.words.start import EMBEDDINGS, SET_ASIDE

__all__ = ["QuestionGuide"]

EVERY = 5  # questions, one of which is about a photo set aside


@dataclass(frozen=True, eq=False)
class QuestionGuide:
    """The photos that are set aside, and what a run thinks of each photo: probabilities (n, K)."""

    aside: frozenset[str]
    photos: tuple[str, ...]
    labels: tuple[str, ...]
    probs: NDArray[np.float64]

    @classmethod
    def of(
        cls, run: Path, photos: Sequence[Path], *, share: float = SET_ASIDE, watch: Watch
    ) -> "QuestionGuide":
        """Return the guide of a run that began with words; its features are used again."""
        predictor = Predictor.load(run)
        if predictor.answers is None or predictor.link is None:
            raise SettingsError(
                f"{run} did not begin with words, so it cannot guide questions about them; give a "
                "run of `labelwise start`"
            )
        found = features_of(
            PictureImages(photos), predictor.model.backbone, run / EMBEDDINGS, watch=watch
        )
        rows = sorted(found.digests)
        digests = [found.digests[row] for row in rows]
        names = [str(photos[row].absolute()) for row in rows]
        layer = predictor.model.head.state_dict()
        logits = found.of(digests) @ layer["classifier.weight"].T + layer["classifier.bias"]
        with torch.no_grad():
            probs = predictor.link(logits).double().numpy()
        aside = {
            name for name, digest in zip(names, digests, strict=True) if is_set_aside(digest, share)
        }
        return cls(frozenset(aside), tuple(names), predictor.space.names, probs)

    def order(self, label: str, photos: Iterable[str]) -> list[str]:
        """Return photos in the order in which they are asked about for a word."""
        drawn = asking_order(label, photos)
        random = [photo for photo in drawn if photo in self.aside]
        others = [photo for photo in drawn if photo not in self.aside]
        others.sort(key=lambda photo: -self._value(label, photo))
        found: list[str] = []
        while random or others:
            found += [*random[:1], *others[: EVERY - 1]]
            del random[:1], others[: EVERY - 1]
        return found

    def guess(self, label: str, photo: str) -> bool | None:
        """Return whether a run thinks that a photo shows a word; None of photos set aside."""
        p = None if photo in self.aside else self._prob(label, photo)
        return None if p is None else p >= 0.5

    def _value(self, label: str, photo: str) -> float:
        p = self._prob(label, photo)
        return 0.0 if p is None else p * (1 - p)

    def _prob(self, label: str, photo: str) -> float | None:
        """Return the probability of a word; None where the run does not know word or photo."""
        if label not in self.labels or photo not in self._rows:
            return None
        return float(self.probs[self._rows[photo], self.labels.index(label)])

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {photo: row for row, photo in enumerate(self.photos)}

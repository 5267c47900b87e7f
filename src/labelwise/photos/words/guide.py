"""QuestionGuide: which photos people are asked about first, where a run already has guesses.

Photos that are set aside follow from their content alone (``answers.py``). They are
asked about in the random order of the word, whatever a model says, so that promises and counts can
rest on them. All others are asked about by the value of an answer: those that the model is least
sure of first, by p (1 - p). Answers about other words alone do not make the probabilities of a word
comparable with one half, so it has its likeliest photos first, until it has answers of its own: it
needs a yes to learn from. Of five questions in a row, one is about a photo set aside. A guess can
be shown of the others, to those who ask for it; never of a photo set aside, because guesses sway.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

EVERY = 5  # questions, one of which is about a photo set aside


@dataclass(frozen=True, eq=False)
class QuestionGuide:
    """The photos that are set aside, and what a run thinks of each photo: probabilities (n, K).

    ``learnt_from`` is how many answered photos moved these probabilities; ``unanswered`` are the
    words of which none of them says anything.
    """

    aside: frozenset[str]
    photos: tuple[str, ...]
    labels: tuple[str, ...]
    probs: NDArray[np.float64]
    learnt_from: int = 0
    unanswered: frozenset[str] = frozenset()

    def order(
        self, label: str, drawn: Sequence[str], answered: Collection[str] = frozenset()
    ) -> list[str]:
        """Return photos, given in the random order of a word, as they are asked about for it.

        Those that were ``answered`` take the first places of their kind, so that one of five of
        all questions is about a photo set aside, however often a new guide orders them anew.
        """
        drawn = sorted(drawn, key=lambda photo: photo not in answered)
        random = [photo for photo in drawn if photo in self.aside]
        others = [photo for photo in drawn if photo not in self.aside]
        is_open = np.array([photo not in answered for photo in others], dtype=bool)
        by_value = np.lexsort((-self._values(label, others), is_open))
        places = [(EVERY * n, photo) for n, photo in enumerate(random)]
        for n, row in enumerate(by_value.tolist()):
            turn, place = divmod(n, EVERY - 1)
            places.append((EVERY * turn + 1 + place, others[row]))
        return [photo for _, photo in sorted(places)]

    def guess(self, label: str, photo: str) -> bool | None:
        """Return whether a run thinks that a photo shows a word; None of photos set aside.

        None too where the run does not know word or photo, or has learnt of other words alone.
        """
        if photo in self.aside or photo not in self._rows or label not in self.labels:
            return None
        if label in self.unanswered:
            return None
        return bool(self.probs[self._rows[photo], self.labels.index(label)] >= 0.5)

    def _values(self, label: str, photos: Sequence[str]) -> NDArray[np.float64]:
        """Return p (1 - p) of photos, or p; 0 where the run does not know word or photo."""
        if label not in self.labels:
            return np.zeros(len(photos))
        p = np.append(self.probs[:, self.labels.index(label)], 0.0)  # the last: unknown photos
        own = p[[self._rows.get(photo, -1) for photo in photos]]
        values: NDArray[np.float64] = own if label in self.unanswered else own * (1 - own)
        return values

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {photo: row for row, photo in enumerate(self.photos)}

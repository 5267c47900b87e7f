"""The order in which people are asked about photos, and what a run thinks of them meanwhile.

A run that learns while people answer. One of five questions is about a photo set aside, in the
random order of the word, so that guarantees can rest on these. All others come by p (1 - p); a
word without answers has its likeliest photos first, since it needs a yes. No guess is shown of a
photo set aside, because guesses sway.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

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
        """Return photos, given in the random order of a word, as they are asked about for it:
        ``answered`` ones first, so that one of five questions is about a photo set aside.
        """
        drawn = sorted(drawn, key=lambda photo: photo not in answered)
        random = [photo for photo in drawn if photo in self.aside]
        others = [photo for photo in drawn if photo not in self.aside]
        worth = dict.fromkeys(others, 0.0)  # p (1 - p), or p; 0 where word or photo is not known
        if label in self.labels:
            p = np.append(self.probs[:, self.labels.index(label)], 0.0)
            p = p[[self._rows.get(photo, -1) for photo in others]]
            values = p if label in self.unanswered else p * (1 - p)
            worth = dict(zip(others, values.tolist(), strict=True))
        others.sort(key=lambda photo: (photo not in answered, -worth[photo]))
        places = [(EVERY * n, photo) for n, photo in enumerate(random)]
        places += [(n + n // (EVERY - 1) + 1, photo) for n, photo in enumerate(others)]
        return [photo for _, photo in sorted(places)]

    def guess(self, label: str, photo: str) -> bool | None:
        """Return whether a run thinks that a photo shows a word; None of photos set aside."""
        known = photo in self._rows and label in self.labels
        if photo in self.aside or not known or label in self.unanswered:
            return None
        return bool(self.probs[self._rows[photo], self.labels.index(label)] >= 0.5)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {photo: row for row, photo in enumerate(self.photos)}


def asking_order(label: str, photos: Iterable[str]) -> list[str]:
    """Return photos in the order they are asked about for a word: by the hash of both."""
    return sorted(photos, key=lambda photo: sha256(os.fsencode(f"{label}\0{photo}")).digest())

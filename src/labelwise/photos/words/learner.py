"""WordsLearner: a run of words that learns from answers while people give them.

Each time it is given all answers, it fits the head with the words as its prior again, as ``train
--words`` does, on the answered photos and at most 5,000 others. Nothing is written.

Photos that are set aside are asked about in the random order of the word, whatever a model says, so
that promises and counts can rest on them: one of five questions. All others are asked about by p (1
- p); a word without answers has its likeliest photos first, since it needs a yes to learn from. A
guess is never shown of a photo that is set aside, because guesses sway.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import SettingsError
from labelwise.links import Consistent, Link
from labelwise.models import Predictor
from labelwise.photos.words.answered import answered_head
from labelwise.photos.words.start import (
    ANSWERS_FILE,
    EMBEDDINGS,
    SET_ASIDE,
    TEXT_HEAD_FILE,
    WORDS_FILE,
    KeptAnswers,
    PhotoAnswer,
    can_teach,
    features_of,
    is_set_aside,
    targets_of,
)
from labelwise.photos.words.text_image import TextHead
from labelwise.photos.words.word_list import WordList
from labelwise.pictures import PictureImages
from labelwise.system.progress import Watch

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
        worth = dict.fromkeys(others, 0.0)  # p (1 - p), or p; 0 where word or photo is not known
        if label in self.labels:
            p = np.append(self.probs[:, self.labels.index(label)], 0.0)
            p = p[[self._rows.get(photo, -1) for photo in others]]
            values = p if label in self.unanswered else p * (1 - p)
            worth = dict(zip(others, values.tolist(), strict=True))
        others.sort(key=lambda photo: (photo not in answered, -worth[photo]))
        places = [(EVERY * n, photo) for n, photo in enumerate(random)]
        for n, photo in enumerate(others):
            turn, step = divmod(n, EVERY - 1)
            places.append((EVERY * turn + 1 + step, photo))
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


POOL = 5000  # photos


class WordsLearner:
    """What a run of words thinks of some photos, and what it would think with more answers.

    ``guide`` is that of the run as it is. A run of an earlier version does not learn: it keeps no
    text head.
    """

    def __init__(
        self, run: Path, photos: Sequence[Path], *, share: float = SET_ASIDE, watch: Watch
    ) -> None:
        """Read a run, and the features of photos; those that it knows are used again.

        ``share`` is the share of the photos that is set aside.
        """
        predictor = Predictor.load(run)
        if predictor.answers is None or predictor.link is None:
            raise SettingsError(
                f"{run} did not begin with words; give a run of `labelwise train --words`"
            )
        images, backbone = PictureImages(photos), predictor.model.backbone
        self._features = features_of(images, backbone, run / EMBEDDINGS, watch=watch)
        rows = sorted(self._features.digests)
        self._digests = [self._features.digests[row] for row in rows]
        self._names = tuple(str(photos[row].absolute()) for row in rows)
        self._share = share
        self._aside = frozenset(
            name
            for name, digest in zip(self._names, self._digests, strict=True)
            if is_set_aside(digest, share)
        )
        self._words = WordList.read(run / WORDS_FILE)
        self._kept = KeptAnswers.load(run / ANSWERS_FILE)
        path = run / TEXT_HEAD_FILE
        self._text = TextHead.load(path) if path.is_file() else None
        layer = predictor.model.head.state_dict()
        head = TextHead(layer["classifier.weight"].T, layer["classifier.bias"])
        self.guide = self._guide(head, predictor.link, predictor.answers, predictor.unanswered)

    def learnt(self, answers: Mapping[str, Mapping[str, bool]]) -> QuestionGuide:
        """Return the guide that follows from answers, by the path of the photo and the word."""
        of_path = dict(zip(self._names, self._digests, strict=True))
        given = {
            of_path[path]: PhotoAnswer(path, dict(said), is_set_aside(of_path[path], self._share))
            for path, said in answers.items()
            if path in of_path
        }
        kept, known = self._kept.merged(KeptAnswers(given)), self._features.known
        digests, labels, observed = targets_of(self._words, kept, known, aside=False)
        if self._text is None or not can_teach(digests, labels, observed):
            return self.guide
        x = self._features.of(digests)
        pool = self._features.of(sorted(set(self._digests))[-POOL:])
        made = answered_head(self._text, x, labels, observed, pool=pool)
        link: Link = made.calibration.link
        if self._words.taxonomy is not None:
            link = Consistent(link, self._words.taxonomy.within(self._words.space).parent)
        answered = observed.any(dim=0).tolist()
        named = zip(self._words.names, answered, strict=True)
        return self._guide(made.head, link, len(digests), [name for name, own in named if not own])

    def _guide(
        self, head: TextHead, link: Link, learnt_from: int, unanswered: Sequence[str]
    ) -> QuestionGuide:
        """Return the guide of the probabilities (n, K) of all photos by a head and its link."""
        words, single = self._words.names, TextHead(head.weight.float(), head.bias.float())
        parts = [np.empty((0, len(words)))]
        with torch.no_grad():
            for start in range(0, len(self._digests), POOL):
                features = self._features.of(self._digests[start : start + POOL])
                parts.append(link(single.scores(features)).double().numpy())
        probs, others = np.concatenate(parts), frozenset(unanswered)
        return QuestionGuide(self._aside, self._names, words, probs, learnt_from, others)

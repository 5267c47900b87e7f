"""What scores photos for words.

A ``TextImageModel`` makes a linear head of words, features . weight_k + bias_k; its
``TextDirections`` score any text.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import replacing
from labelwise.base.tensors import load_arrays, save_tensors
from labelwise.calibration import Platt
from labelwise.errors import CheckpointError
from labelwise.eyes import Eye
from labelwise.links import Link
from labelwise.photos.words.word_list import WordList

if TYPE_CHECKING:
    from labelwise.learn.backbones import Backbone

TextImageKind = Literal["classes", "towers"]
GUESSED_SLOPE, GUESSED_OFFSET = 0.8, -3.6
FAR = 1e6  # beyond every score: nothing is cut off


@dataclass(frozen=True, eq=False)
class TextHead:
    """Scores of words, linear in pooled features: ``features @ weight + bias``, (D, K) and (K,).

    Answers move words more easily along ``common`` (D, E): directions in which captions differ.
    """

    weight: NDArray[Any]
    bias: NDArray[Any]
    common: NDArray[Any] | None = None

    def scores(self, features: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(features.astype(self.weight.dtype) @ self.weight + self.bias)

    def save(self, path: Path) -> None:
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        with replacing(path) as temporary:
            save_tensors(temporary, arrays)

    @staticmethod
    def load(path: Path) -> "TextHead":
        arrays = load_arrays(path)
        weight, bias = (arrays.get(name, np.empty(0)) for name in ("weight", "bias"))
        common = arrays.get("common")
        fits = weight.ndim == 2 and bias.shape == weight.shape[1:]
        fits &= common is None or common.shape[:-1] == weight.shape[:1]
        every = arrays.values()
        if not fits or not all(a.dtype.kind == "f" and bool(np.isfinite(a).all()) for a in every):
            raise CheckpointError(
                f"{path} must hold a weight (D, K) and a bias (K,) of finite numbers; run "
                "`labelwise train --words` again"
            )
        return TextHead(weight, bias, common)


def pairs_above(units: NDArray[Any], cosine: float) -> list[tuple[int, int]]:
    """Return the pairs of unit vectors (K, D) nearer to each other than a cosine."""
    near = np.triu(units @ units.T, 1) > cosine
    return [(first, other) for first, other in np.argwhere(near).tolist()]


class TextDirections(ABC):
    """The text half of a scorer."""

    @abstractmethod
    def directions(self, texts: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Return the directions (D, K) of things, each of which some texts describe."""

    @abstractmethod
    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        """Return a sentence about a word that cannot be scored well, None about others."""

    @abstractmethod
    def alike(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        """Return the pairs of things that get nearly the same scores."""


class TextImageModel(ABC):
    """A text-image model of a folder; ``digest`` is the hash of what makes its texts.

    ``network`` sees the photos: an eye, or a backbone of torch.
    """

    kind: TextImageKind
    folder: Path
    network: "Eye | Backbone"
    digest: str

    @property
    @abstractmethod
    def texts(self) -> TextDirections: ...

    @abstractmethod
    def head(
        self,
        texts: Sequence[Sequence[str]],
        mean_features: NDArray[Any],
        features: NDArray[Any] | None = None,
    ) -> TextHead:
        """Return the scores of things that texts describe, for photos of these features (N, D)."""

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        return self.texts.doubt(name, texts)

    def nearest_classes(self, words: WordList) -> list[str]:
        """Return the class that each word leans on most."""
        return []

    def disagreements(self, words: WordList, features: NDArray[Any]) -> list[str]:
        """Return a sentence for each word that means two things by different routes."""
        return []

    def guessed(self, scores: NDArray[Any]) -> Link:
        """Return the link before anyone has answered, p = sigma(.8 x - 3.6), from all scores.

        x is the standardised score: the best curve for all labels of COCO together.
        """
        spread = max(float(scores.std(ddof=1)), 1e-6)
        slope = GUESSED_SLOPE / spread
        return Platt(None, slope, GUESSED_OFFSET - slope * float(scores.mean()), FAR)

    def doubts(self, words: WordList) -> list[str]:
        own = [self.doubt(word.name, word.texts) for word in words.words]
        names = words.names
        return [sentence for sentence in own if sentence is not None] + [
            f"{names[first]!r} and {names[other]!r} get nearly the same first scores: keep "
            "one, describe them apart, or answer about photos"
            for first, other in self.texts.alike([word.texts for word in words.words])
            if own[first] is None and own[other] is None
        ]

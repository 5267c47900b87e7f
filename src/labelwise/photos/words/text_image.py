"""What scores photos for texts: a text is a direction among the features of photos.

    score of text k = features . weight_k + bias_k

A ``TextImageModel`` makes that linear head of words; its ``TextDirections`` stay with a run, for
any text.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from labelwise.calibration import Platt
from labelwise.errors import CheckpointError
from labelwise.links import Link
from labelwise.networks.backbones import Backbone
from labelwise.photos.words.word_list import Word, WordList
from labelwise.system.files import replacing
from labelwise.system.tensors import load_tensors, save_tensors

TextImageKind = Literal["classes", "towers"]
GUESSED_SLOPE, GUESSED_OFFSET = 0.8, -3.6
FAR = 1e6  # beyond every score: nothing is cut off


@dataclass(frozen=True, eq=False)
class TextHead:
    """Scores of words, linear in pooled features: ``features @ weight + bias``, (D, K) and (K,).

    ``common`` (D, E) are directions of the features in which captions differ, if they are known:
    answers move words along them more easily.
    """

    weight: Tensor
    bias: Tensor
    common: Tensor | None = None

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores (N, K) of features (N, D)."""
        return features.to(self.weight) @ self.weight + self.bias

    def save(self, path: Path) -> None:
        """Write the head; an interrupted write leaves the old one whole."""
        with replacing(path) as temporary:
            tensors = {"weight": self.weight, "bias": self.bias}
            if self.common is not None:
                tensors["common"] = self.common
            save_tensors(temporary, tensors)

    @staticmethod
    def load(path: Path) -> "TextHead":
        """Return the head that was written."""
        tensors = load_tensors(path)
        try:
            weight, bias = tensors["weight"], tensors["bias"]
        except KeyError as error:
            raise CheckpointError(
                f"{path} must hold {error}; run `labelwise train --words` again"
            ) from None
        common = tensors.get("common")
        every = [weight, bias] if common is None else [weight, bias, common]
        fits = weight.ndim == 2 and bias.shape == weight.shape[1:]
        fits &= common is None or common.shape[:-1] == weight.shape[:1]
        if not fits or not all(t.is_floating_point() and bool(t.isfinite().all()) for t in every):
            raise CheckpointError(
                f"{path} must hold a weight (D, K) and a bias (K,) of finite numbers; run "
                "`labelwise train --words` again"
            )
        return TextHead(weight, bias, common)


class TextDirections(ABC):
    """The text half of a scorer."""

    @abstractmethod
    def directions(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Return the directions (D, K) of things, each of which some texts describe."""

    @abstractmethod
    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        """Return a sentence about a word that cannot be scored well, None about others."""

    @abstractmethod
    def alike(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        """Return the pairs of things that get nearly the same scores."""

    def kept(self) -> tuple[tuple[str, ...], dict[str, Tensor]]:
        """Return names and tensors that a run must keep, besides where the model's folder is."""
        return (), {}


class TextImageModel(ABC):
    """A text-image model of a folder.

    ``digest`` is the hash of what makes its texts, by which a run knows the folder again.
    """

    kind: TextImageKind
    folder: Path
    backbone: Backbone
    digest: str

    @property
    @abstractmethod
    def texts(self) -> TextDirections:
        """The text half."""

    @abstractmethod
    def head(
        self, texts: Sequence[Sequence[str]], mean_features: Tensor, features: Tensor | None = None
    ) -> TextHead:
        """Return the scores of things that texts describe, for photos of these mean features.

        The photos' features (N, D) themselves let routes that are not linear join in.
        """

    def nearest_classes(self, words: WordList) -> list[str]:
        """Return the class that each word leans on most; none where there are no classes."""
        return []

    def disagreements(self, words: WordList, features: Tensor) -> list[str]:
        """Return a sentence for each word that means different things by different routes."""
        return []

    def guessed(self, scores: Tensor) -> Link:
        """Return the link that is taken before anyone has answered, from all photos' scores."""
        spread = max(float(scores.std()), 1e-6)
        slope = GUESSED_SLOPE / spread
        return Platt(None, slope, GUESSED_OFFSET - slope * float(scores.mean()), FAR)

    def doubt(self, word: Word) -> str | None:
        """Return a sentence about a word that cannot be scored well, None about others."""
        return self.texts.doubt(word.name, word.texts)

    def doubts(self, words: WordList) -> list[str]:
        """Return a sentence for each word, or pair of words, that cannot be scored well."""
        own, names = [self.doubt(word) for word in words.words], words.names
        return [sentence for sentence in own if sentence is not None] + [
            f"{names[first]!r} and {names[other]!r} get nearly the same first scores: keep "
            "one, describe them apart, or answer about photos"
            for first, other in self.texts.alike([word.texts for word in words.words])
            if own[first] is None and own[other] is None
        ]

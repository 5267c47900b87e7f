"""Words, each with the texts that describe it, and what scores photos for them.

    dog                              described by "a photo of a dog" and "dog"
    dog: a dog, a puppy              described by these texts alone
    dog: a dog, a puppy; pet         and a kind of pet, which is one of the words too
    dog; pet                         the usual texts, and a kind of pet

One word per line; empty lines and lines that start with # are left out. A ``TextImageModel`` makes
a linear head of words, features . weight_k + bias_k; its ``TextDirections`` score any text.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unicodedata import normalize

from torch import Tensor

from labelwise.base.files import replacing
from labelwise.base.tensors import load_tensors, save_tensors
from labelwise.base.text import for_terminal, shortened
from labelwise.calibration import Platt
from labelwise.errors import CheckpointError, DataError
from labelwise.learn.backbones import Backbone
from labelwise.links import Link
from labelwise.tables.reading import can_name_label
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace, nearest

TEMPLATES = ("a photo of a {}", "{}")
MOST_WORDS = 1000  # beyond, words are too near each other to be told apart
LONGEST = 200  # letters of a word


@dataclass(frozen=True)
class Word:
    """A label, the texts that describe it, and the label it is a kind of, if any."""

    name: str
    texts: tuple[str, ...]
    parent: str | None = None


def usual_texts(name: str) -> tuple[str, ...]:
    """Return the texts that describe a name for which none were written."""
    return tuple(template.format(name) for template in TEMPLATES)


@dataclass(frozen=True)
class WordList:
    """The words of a list, in its order."""

    words: tuple[Word, ...]
    source: str = "the words"

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise DataError(f"{self.source}: {fault}")
        if self.taxonomy is not None:
            self.taxonomy.within(self.space)

    def _faults(self) -> Iterator[str]:
        if not self.words:
            yield "there are no words; write one per line, such as: dog"
        if len(self.words) > MOST_WORDS:
            start = "start with those you search for, and add others later"
            yield f"a list may have {MOST_WORDS:,} words, got {len(self.words):,}; {start}"
        seen: dict[str, str] = {}
        for word in self.words:
            folded = " ".join(normalize("NFC", word.name).casefold().split())
            if folded in seen:
                yield f"{word.name!r} and {seen[folded]!r} are the same word"
            seen[folded] = word.name
            if not can_name_label(word.name):  # answers are kept in a label table
                column = (
                    "already means something as a column of the tables that answers are kept in"
                )
                other = f"'a {word.name}: {', '.join(usual_texts(word.name))}'"
                yield f"{word.name!r} {column}; name the word otherwise, as in {other}"
        for word in self.words:
            if word.parent is not None and word.parent not in self.names:
                known = f"one of the words{nearest(word.parent, self.names)} Add a line for it"
                yield f"{word.name!r} is a kind of {word.parent!r}, which is not {known}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(word.name for word in self.words)

    @property
    def space(self) -> LabelSpace:
        return LabelSpace(self.names)

    @property
    def taxonomy(self) -> Taxonomy | None:
        parents = {word.name: word.parent for word in self.words if word.parent is not None}
        return Taxonomy(parents) if parents else None

    @classmethod
    def of(cls, *names: str) -> "WordList":
        return cls(tuple(Word(name, usual_texts(name)) for name in names))

    @classmethod
    def read(cls, path: str | Path) -> "WordList":
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            why = "there is no such file; write one with a word per line"
        except UnicodeDecodeError as error:
            why = f"a list must be in UTF-8, and byte {error.start + 1:,} is not; save it as UTF-8"
        except OSError as error:
            why = f"the words cannot be read ({error.strerror})"
        else:
            return cls(tuple(_words_of(text, str(path))), str(path))
        raise DataError(f"{path}: {why}")

    def text(self) -> str:
        text = ""
        for word in self.words:
            own = "" if word.texts == usual_texts(word.name) else ": " + ", ".join(word.texts)
            text += word.name + own + (f"; {word.parent}" if word.parent else "") + "\n"
        return text


def _words_of(text: str, source: str) -> Iterator[Word]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        before, _, after = line.partition(";")
        name, colon, written = before.partition(":")
        name, parent = name.strip(), after.strip()
        texts = tuple(text.strip() for text in written.split(",") if text.strip())
        why = ""
        if not name:
            why = f"a line must start with a word, got {line!r}"
        elif "," in name:
            why = f"a word must have no comma, got {shortened(name)!r}; write one word per line"
        elif '"' in name:
            why = f"a word must have no quotation marks, got {shortened(name)!r}; leave them out"
        elif len(name) > LONGEST:
            why = f"a word may have {LONGEST} letters, got {len(name):,} ({shortened(name, 40)!r})"
        elif colon and not texts:
            why = f"after the colon of {name!r} must come texts that describe it; or leave it out"
        elif ";" in line and (not parent or ";" in parent or "," in parent):
            why = f"after the semicolon must come one word that {name!r} is of, got {parent!r}"
        elif any(for_terminal(text) != text for text in (name, *texts, parent)):
            why = "a line must have no tabs or control characters between its words, got "
            why += f"{shortened(for_terminal(line))!r}; write one word per line"
        if why:
            raise DataError(f"{source}, line {number}: {why}")
        yield Word(name, texts or usual_texts(name), parent or None)


# What scores photos for them

TextImageKind = Literal["classes", "towers"]
GUESSED_SLOPE, GUESSED_OFFSET = 0.8, -3.6
FAR = 1e6  # beyond every score: nothing is cut off


@dataclass(frozen=True, eq=False)
class TextHead:
    """Scores of words, linear in pooled features: ``features @ weight + bias``, (D, K) and (K,).

    Answers move words more easily along ``common`` (D, E): directions in which captions differ.
    """

    weight: Tensor
    bias: Tensor
    common: Tensor | None = None

    def scores(self, features: Tensor) -> Tensor:
        return features.to(self.weight) @ self.weight + self.bias

    def save(self, path: Path) -> None:
        tensors = {name: value for name, value in vars(self).items() if value is not None}
        with replacing(path) as temporary:
            save_tensors(temporary, tensors)

    @staticmethod
    def load(path: Path) -> "TextHead":
        tensors = load_tensors(path)
        weight, bias = (tensors.get(name, Tensor()) for name in ("weight", "bias"))
        common = tensors.get("common")
        fits = weight.ndim == 2 and bias.shape == weight.shape[1:]
        fits &= common is None or common.shape[:-1] == weight.shape[:1]
        every = tensors.values()
        if not fits or not all(t.is_floating_point() and bool(t.isfinite().all()) for t in every):
            raise CheckpointError(
                f"{path} must hold a weight (D, K) and a bias (K,) of finite numbers; run "
                "`labelwise train --words` again"
            )
        return TextHead(weight, bias, common)


def pairs_above(units: Tensor, cosine: float) -> list[tuple[int, int]]:
    """Return the pairs of unit vectors (K, D) nearer to each other than a cosine."""
    near = (units @ units.T).triu(1) > cosine
    return [(int(first), int(other)) for first, other in near.nonzero().tolist()]


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


class TextImageModel(ABC):
    """A text-image model of a folder; ``digest`` is the hash of what makes its texts."""

    kind: TextImageKind
    folder: Path
    backbone: Backbone
    digest: str

    @property
    @abstractmethod
    def texts(self) -> TextDirections: ...

    @abstractmethod
    def head(
        self, texts: Sequence[Sequence[str]], mean_features: Tensor, features: Tensor | None = None
    ) -> TextHead:
        """Return the scores of things that texts describe, for photos of these features (N, D)."""

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        return self.texts.doubt(name, texts)

    def nearest_classes(self, words: WordList) -> list[str]:
        """Return the class that each word leans on most."""
        return []

    def disagreements(self, words: WordList, features: Tensor) -> list[str]:
        """Return a sentence for each word that means two things by different routes."""
        return []

    def guessed(self, scores: Tensor) -> Link:
        """Return the link before anyone has answered, p = sigma(.8 x - 3.6), from all scores.

        x is the standardised score: the best curve for all labels of COCO together.
        """
        spread = max(float(scores.std()), 1e-6)
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

"""What is known about words before anyone answers: kinds of things, and captions of photos.

    imagenet_synsets.tsv    WordNet 3.0: ImageNet's 1,000 classes, and all that they are kinds of
    caption_maps.npz        two linear maps, learned from captions, into one space

    p(dog)       = sum of the classifier's probabilities over its 118 classes of dogs
    caption(t)   = cos(A (features - mean) / deviation, B (text - mean))

``benchmarks/words_data.py`` makes both files. The maps belong to EfficientNet-Lite0 and
all-MiniLM-L6-v2, which a row of weights and a text identify.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SYNSETS_FILE, MAPS_FILE = "imagenet_synsets.tsv", "caption_maps.npz"
CLASSES = 1000
SAME_NAMES = 0.95  # of the classes, to be ImageNet's
SAME_TEXT, SAME_ROW = 0.95, 0.999  # cosines
PROBE = "a photo of a dog"
BEFORE = ("a photo of a ", "a photo of ", "a ", "an ", "the ")
ENDINGS = (  # WordNet's own rules for plurals
    *(("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
    *(("men", "man"), ("ies", "y"), ("s", "")),
)

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Kinds:
    """The classes that are kinds of a thing, by its name; of several things the most usual one."""

    classes: dict[str, tuple[int, ...]]

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Return the classes of all things that some texts name."""
        classes = [self.classes[name] for text in texts for name in self._names(text)]
        return tuple(sorted({number for own in classes for number in own}))

    def _names(self, text: str) -> list[str]:
        """Return the name in a text, without what stands before it, if it is known."""
        name = " ".join(text.casefold().split())
        for start in BEFORE:
            if name.startswith(start):
                name = name.removeprefix(start)
                break
        singular = [name.removesuffix(old) + new for old, new in ENDINGS if name.endswith(old)]
        return [noun for noun in (name, *singular) if noun in self.classes][:1]

    def are_of(self, names: Sequence[str]) -> bool:
        """Return whether these are ImageNet's classes, in its order."""
        if len(names) != CLASSES:
            return False
        first = [name.partition(",")[0].casefold() for name in names]
        same = sum(n in self.classes.get(name, ()) for n, name in enumerate(first))
        return same >= SAME_NAMES * CLASSES


@cache
def imagenet_kinds() -> Kinds:
    """Return the hierarchy above ImageNet's classes."""
    lines = Path(__file__).with_name(SYNSETS_FILE).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    parents = {synset: above.split() for synset, _, above in rows}
    below: dict[str, set[int]] = {synset: set() for synset in parents}
    for number, (synset, _, _) in enumerate(rows[:CLASSES]):
        todo = [synset]
        while todo:
            below[todo[-1]].add(number)
            todo += parents[todo.pop()]
    senses: dict[str, tuple[int, str]] = {}  # of a name the most usual one
    for synset, written, _ in rows:
        for name, _, sense in (entry.partition("%") for entry in written.split("|")):
            own = (int(sense or 1), synset)
            senses[name.casefold()] = min(own, senses.get(name.casefold(), own))
    return Kinds({name: tuple(sorted(below[synset])) for name, (_, synset) in senses.items()})


@dataclass(frozen=True, eq=False)
class CaptionMaps:
    """Photos (D,) and texts (E,) in one space, and what each of three routes counts.

    ``weights`` (2, 3) are those of class names, kinds and captions; the first row is of words that
    are not a kind of any class.
    """

    image: Vectors  # (d, D), of standardised features
    text: Vectors  # (d, E)
    deviation: Vectors  # (D,)
    text_mean: Vectors  # (E,)
    weights: Vectors
    row: Vectors  # (D,), of the classifier's weights
    probe: Vectors  # (E,), of a text

    def fit(self, weight: Vectors, encode: Callable[[str], Vectors]) -> bool:
        """Return whether the maps belong to a classifier (C, D) and to an encoder."""
        if weight.shape[1:] != self.row.shape or _cosine(weight[0], self.row) < SAME_ROW:
            return False
        vector = encode(PROBE)
        return vector.shape == self.probe.shape and _cosine(vector, self.probe) > SAME_TEXT

    def texts(self, vectors: Vectors) -> Vectors:
        """Return the unit vectors (K, d) of texts that have these vectors (K, E)."""
        mapped = (vectors - self.text_mean) @ self.text.T
        unit: Vectors = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
        return unit

    def directions(self, vectors: Vectors) -> Vectors:
        """Return the directions (D, K) of texts among the features, without photos' lengths."""
        weights: Vectors = (self.texts(vectors) @ self.image / self.deviation).T
        return weights

    def scores(self, features: Vectors, vectors: Vectors) -> Vectors:
        """Return the cosines (N, K) of photos and texts."""
        mapped = ((features - features.mean(0)) / self.deviation) @ self.image.T
        mapped /= np.maximum(np.linalg.norm(mapped, axis=1, keepdims=True), 1e-12)
        scores: Vectors = mapped @ self.texts(vectors).T
        return scores


@cache
def caption_maps() -> CaptionMaps:
    """Return the maps of the package."""
    with np.load(Path(__file__).with_name(MAPS_FILE), allow_pickle=False) as file:
        return CaptionMaps(**{name: np.asarray(file[name], np.float32) for name in file.files})


def _cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12))

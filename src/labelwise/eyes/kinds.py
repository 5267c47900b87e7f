"""Kinds: which of ImageNet's classes are a kind of a named thing, by an extract of WordNet.

A network that tells ImageNet's classes apart has a first score for such a label, with which its
head can begin (:func:`directions`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.eyes.eye import Eye

SYNSETS_FILE = "imagenet_synsets.tsv"
CLASSES = 1000
SAME_NAMES = 0.95  # of the classes, to be ImageNet's
BEFORE = ("a photo of a ", "a photo of ", "a ", "an ", "the ")
ENDINGS = (  # WordNet's own rules for plurals
    *(("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
    *(("men", "man"), ("ies", "y"), ("s", "")),
)


@dataclass(frozen=True)
class Kinds:
    """The classes that are kinds of a thing, by its name; of several things the most usual one."""

    classes: dict[str, tuple[int, ...]]

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        numbers = set[int]()
        for text in texts:
            name = " ".join(text.casefold().split())
            name = name.removeprefix(next((word for word in BEFORE if name.startswith(word)), ""))
            singular = [name.removesuffix(old) + new for old, new in ENDINGS if name.endswith(old)]
            numbers.update(
                next((self.classes[n] for n in (name, *singular) if n in self.classes), ())
            )
        return tuple(sorted(numbers))

    def are_of(self, names: Sequence[str]) -> bool:
        if len(names) != CLASSES:
            return False
        first = [name.partition(",")[0].casefold() for name in names]
        same = sum(n in self.classes.get(name, ()) for n, name in enumerate(first))
        return same >= SAME_NAMES * CLASSES


def imagenet_names() -> tuple[str, ...]:
    """Return what ImageNet's classes are called, such as "tench, Tinca tinca"."""
    return tuple(
        ", ".join(entry.partition("%")[0] for entry in written.split("|"))
        for _, written, _ in _synsets()[:CLASSES]
    )


def _synsets() -> list[list[str]]:
    """Return number, names and numbers above of each synset; the classes come first."""
    lines = Path(__file__).with_name(SYNSETS_FILE).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


@cache
def imagenet_kinds() -> Kinds:
    """Return the hierarchy above ImageNet's classes."""
    rows = _synsets()
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


def directions(
    eye: Eye, names: Sequence[str], features: NDArray[np.float32]
) -> NDArray[np.float64] | None:
    """Return what scores labels by their names: (K, D) for the features (N, D) of a head.

    The log-odds of all classes of a label together, log P - log(1 - P), bend with the features.
    Their mean slope over the rows is taken. Rows of labels without such a class are 0.
    None where all are, or where the eye does not tell these classes apart.
    """
    if eye.outputs.get("classes") != CLASSES:
        return None
    weight, bias = eye.classifier()
    logits = features[:, : weight.shape[1]] @ weight.T + bias
    likely = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64))
    kinds = imagenet_kinds()
    towards = np.zeros((len(names), features.shape[1]))
    for label, name in enumerate(names):
        classes = list(kinds.of([name]))
        if classes:
            others = likely.copy()
            others[:, classes] = 0
            slopes = -(others / others.sum(1, keepdims=True)).mean(0)
            inside = likely[:, classes]
            slopes[classes] += (inside / inside.sum(1, keepdims=True)).mean(0)
            towards[label, : weight.shape[1]] = slopes @ weight
    return towards if towards.any() else None

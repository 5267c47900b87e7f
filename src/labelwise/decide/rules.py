"""Rule: a map from probabilities (N, K) to label sets, a boolean mask (N, K).

    TopK(k)           the k most probable labels of each image; ties go to the lower column
    Threshold(t)      p >= t, with one t, or one per label
    ExpectedF(beta)   per image, the set with the most expected F-beta
    AtMost(rule, k)   of a rule's set, the k most probable labels
    WithParents(rule) a rule's set with all that its labels are kinds of
    OnePerGroup(rule) a rule's set with one label of each group whose labels exclude each other

A threshold of ``NEVER`` lies above every probability.

    E F(S) = sum over i, j of P(hits in S = i) P(labels outside S = j)
             (1 + beta^2) i / (|S| + beta^2 (i + j)),         F = 1 if both sets are empty

with labels independent given the image. The best set of a size then holds the most probable labels
(Lewis, 1995); E F <= (1 + beta^2) E[labels] / s ends the search early. Both counts follow a Poisson
binomial law, built label by label; chances below 1e-12 of more labels are dropped.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from labelwise.base.arrays import Numbers, is_tensor, to_numpy, to_tensor
from labelwise.links import made_from_spec
from labelwise.taxonomy import AttributeColumns, LabelTree

if TYPE_CHECKING:  # rules choose sets of numpy arrays without torch
    from torch import Tensor


Array = TypeVar("Array", np.ndarray, "Tensor")

NEVER = 2.0

CHUNK = 1 << 22  # numbers of the tables of a chunk of images
DROPPED = 1e-12


@dataclass(frozen=True)
class Rule(ABC):
    """A map from probabilities to label sets; subclasses are frozen dataclasses."""

    kind: ClassVar[str]

    @abstractmethod
    def __call__(self, probs: Array) -> Array:
        """Return the (N, K) boolean mask of chosen labels, of the same array type as ``probs``."""

    def thresholds(self, labels: int) -> tuple[float, ...] | None:
        """Return the threshold of each label, None for a rule without any."""
        inner: Rule | None = getattr(self, "rule", None)  # whose sets this one changes
        return None if inner is None else inner.thresholds(labels)

    def spec(self) -> dict[str, object]:
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class TopK(Rule):
    """The ``k`` most probable labels of each image; equal probabilities go to the lower column."""

    k: int
    kind: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

    def __call__(self, probs: Array) -> Array:
        k = min(self.k, probs.shape[-1])
        if is_tensor(probs):
            import torch

            best = probs.argsort(dim=-1, descending=True, stable=True)[..., :k]
            return torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, best, True)
        # As floats, since the negative of unsigned numbers is a large one.
        order = np.argsort(np.negative(probs, dtype=np.float64), axis=-1, kind="stable")[..., :k]
        sets = np.zeros(probs.shape, dtype=bool)
        np.put_along_axis(sets, order, True, axis=-1)
        return sets

    def __str__(self) -> str:
        return f"the {self.k} most probable labels of each image"


@dataclass(frozen=True)
class Threshold(Rule):
    """The labels with ``p >= value``; ``value`` is one number, or one per label."""

    value: float | tuple[float, ...]
    kind: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        numbers = np.asarray(self.value, dtype=np.float64)
        if numbers.ndim > 1 or np.isnan(numbers).any():
            raise ValueError(f"thresholds must be one number or one per label, got {self.value}")
        value = tuple(numbers.tolist()) if numbers.ndim else float(numbers)
        object.__setattr__(self, "value", value)

    def __call__(self, probs: Array) -> Array:
        # Compared in float64, where every float32 probability is itself.
        value = np.atleast_1d(np.asarray(self.value, dtype=np.float64))
        if value.size not in (1, probs.shape[-1]):
            shape = tuple(probs.shape)
            raise ValueError(f"probs need one column per threshold ({value.size}), got {shape}")
        if is_tensor(probs):
            return probs >= to_tensor(value, probs.device)
        return probs >= value

    def thresholds(self, labels: int) -> tuple[float, ...]:
        return self.value if isinstance(self.value, tuple) else (self.value,) * labels

    def __str__(self) -> str:
        if isinstance(self.value, tuple):
            return f"each label at its own threshold ({len(set(self.value)):,} different ones)"
        return f"every label with probability at least {self.value:.4g}"


@dataclass(frozen=True)
class ExpectedF(Rule):
    """The set of each image with the most expected F-beta."""

    beta: float = 1.0
    kind: ClassVar[str] = "expected-f"

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta must be positive, got {self.beta}")

    def __call__(self, probs: Array) -> Array:
        values = to_numpy(probs).astype(np.float64, copy=False)
        if values.ndim != 2:
            raise ValueError(f"probs must be (N, K), got shape {values.shape}")
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("probs must lie in [0, 1]")
        order = np.argsort(-values, axis=1, kind="stable")
        ranked = np.take_along_axis(values, order, axis=1)
        sets = np.zeros(values.shape, dtype=bool)
        # Images with similar numbers of labels need tables of similar size: take them together.
        rows, labels, sizes = np.argsort(values.sum(1), kind="stable"), values.shape[1], sets.sum(1)
        step = max(1, CHUNK // max(1, labels * min(labels, 64)))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            sizes[block] = expected_f(ranked[block], self.beta).argmax(axis=1)
        np.put_along_axis(sets, order, np.arange(labels) < sizes[:, None], axis=1)
        return to_tensor(sets, probs.device) if is_tensor(probs) else sets

    def __str__(self) -> str:
        return f"the set of each image with the most expected F{self.beta:g}"


@dataclass(frozen=True)
class AtMost(Rule):
    """The labels that ``rule`` chooses, of these at most the ``k`` most probable."""

    rule: Rule
    k: int
    kind: ClassVar[str] = "at-most"

    def __post_init__(self) -> None:
        TopK(self.k)  # checks k

    def __call__(self, probs: Array) -> Array:
        sets: Array = self.rule(probs) & TopK(self.k)(probs)
        return sets

    def __str__(self) -> str:
        return f"{self.rule}, and of these at most the {self.k} most probable"


@dataclass(frozen=True)
class WithParents(Rule):
    """The labels that ``rule`` chooses, and all that they are kinds of (``parents``, -1: none)."""

    rule: Rule
    parents: tuple[int, ...]
    kind: ClassVar[str] = "with-parents"

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        self.tree  # noqa: B018  parents that are not a tree raise here

    @cached_property
    def tree(self) -> LabelTree:
        return LabelTree(self.parents)

    def __call__(self, probs: Array) -> Array:
        if probs.shape[-1] != len(self.parents):
            labels = len(self.parents)
            raise ValueError(f"the taxonomy is of {labels} labels, got {probs.shape[-1]} columns")
        return self.tree.closed(self.rule(probs))

    def __str__(self) -> str:
        return f"{self.rule}, with what these are kinds of"


@dataclass(frozen=True)
class OnePerGroup(Rule):
    """The labels that ``rule`` chooses, but the best of each group: if chosen, or in any case."""

    rule: Rule
    exactly_one: tuple[tuple[int, ...], ...] = ()
    at_most_one: tuple[tuple[int, ...], ...] = ()
    kind: ClassVar[str] = "one-per-group"

    def __post_init__(self) -> None:
        columns = AttributeColumns.of(self.exactly_one, self.at_most_one)
        object.__setattr__(self, "exactly_one", columns.exactly_one)
        object.__setattr__(self, "at_most_one", columns.at_most_one)

    def __call__(self, probs: Array) -> Array:
        sets = self.rule(probs)
        for group in (*self.exactly_one, *self.at_most_one):
            columns = list(group)
            if max(columns) >= probs.shape[-1]:
                raise ValueError(f"the groups reach column {max(columns)}, got {probs.shape[-1]}")
            own = TopK(1)(probs[..., columns])
            if group not in self.exactly_one:
                some: Any = sets[..., columns].any(-1)
                own = own & some[..., None]
            if is_tensor(sets):
                sets = sets.index_copy(-1, to_tensor(np.array(columns), sets.device), own)
            else:
                sets = sets.copy()
                sets[..., columns] = own
        return sets

    def __str__(self) -> str:
        return f"{self.rule}, with one label of each group that excludes others"


RULES: dict[str, type[Rule]] = {
    rule.kind: rule for rule in (AtMost, ExpectedF, OnePerGroup, Threshold, TopK, WithParents)
}


def rule_to_spec(rule: Rule) -> dict[str, object]:
    """Return a rule as plain data."""
    return {"kind": rule.kind, **rule.spec()}


def rule_from_spec(spec: Mapping[str, object]) -> Rule:
    """Return the rule that ``rule_to_spec`` described."""
    return made_from_spec(spec, RULES, "rule")


def _plain(value: object) -> object:
    if isinstance(value, Rule):
        return rule_to_spec(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def just_below(score: float) -> float:
    """Return a threshold that keeps ``score``, also where it is rounded to float32 later."""
    rounded = np.float32(score)
    if float(rounded) > float(score):  # in float64
        rounded = np.nextafter(rounded, np.float32(-1))
    return float(rounded)


def just_above(score: float) -> float:
    """Return a threshold that leaves out ``score``, also where it is rounded to float32 later."""
    return float(np.nextafter(np.float32(score), np.float32(2)))


def expected_f(ranked: Numbers, beta: float) -> Numbers:
    """Return the expected F-beta (n, sizes) of the 0, 1, 2, ... most probable labels.

    ``ranked`` (n, K) falls along each row. Sizes that cannot be the best are left out.
    """
    count, labels = ranked.shape
    mean, weight = ranked.sum(1), float(beta) ** 2
    hits, law = np.ones((count, 1)), np.ones((count, 1))
    outside = [law]  # laws of the number of labels beyond the first K, ..., 1, 0
    for p in ranked.T[::-1]:
        law = _with(law, p)
        if law[:, -1].max() < DROPPED:
            law = law[:, :-1]
        outside.append(law)
    outside.reverse()
    scores = [outside[0][:, 0]]  # no label chosen: right if there is none
    best = scores[0].copy()
    for size in range(1, labels + 1):
        if (size * best > (1 + weight) * mean).all():
            break
        hits = _with(hits, ranked[:, size - 1])
        rest = outside[size]
        i, j = np.arange(hits.shape[1])[:, None], np.arange(rest.shape[1])
        gain = (1 + weight) * i / (size + weight * (i + j))
        score = (hits @ gain * rest).sum(1)
        best = np.maximum(best, score)
        scores.append(score)
    return np.stack(scores, axis=1)


def _with(law: Numbers, p: Numbers) -> Numbers:
    """Return the law (n, m + 1) of a count and one more label of probability ``p`` (n,)."""
    longer = np.zeros((len(law), law.shape[1] + 1))
    longer[:, :-1] = law * (1 - p[:, None])
    longer[:, 1:] += law * p[:, None]
    return longer


def far_apart(chosen: float, true: float) -> bool:
    """Return whether an image has twice or half the labels it should, by half a label or more."""
    return abs(chosen - true) >= 0.5 and not true / 2 < chosen < 2 * true

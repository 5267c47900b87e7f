"""Sets with the most expected F-beta, from calibrated probabilities.

    E F(S) = sum over i, j of P(hits in S = i) P(labels outside S = j)
             (1 + beta^2) i / (|S| + beta^2 (i + j)),         F = 1 if both sets are empty

Labels are taken as independent given the image. The best set of a size then holds the most
probable labels (Lewis, 1995), so only sizes need be tried. Since i <= labels present, a set of
size s has E F <= (1 + beta^2) E[labels] / s, which ends the search early and exactly. Both counts
follow a Poisson binomial law, built label by label; what it holds beyond a chance of 1e-12 of
more labels is dropped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.decide.arrays import as_numpy
from labelwise.decide.rules import Array, Rule

__all__ = ["ExpectedF", "expected_f"]

Numbers = NDArray[np.float64]
CHUNK = 1 << 22  # numbers of the tables of a chunk of images
DROPPED = 1e-12


@dataclass(frozen=True)
class ExpectedF(Rule):
    """The set of each image with the most expected F-beta."""

    beta: float = 1.0
    kind: ClassVar[str] = "expected-f"

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta must be positive, got {self.beta}")

    def __call__(self, probs: Array) -> Array:
        values = as_numpy(probs).astype(np.float64, copy=False)
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("probs must lie in [0, 1]")
        order = np.argsort(-values, axis=1, kind="stable")
        ranked = np.take_along_axis(values, order, axis=1)
        sets = np.zeros(values.shape, dtype=bool)
        # Images with alike numbers of labels need alike tables: work on them together.
        rows = np.argsort(values.sum(1), kind="stable")
        labels = values.shape[1]
        step = max(1, CHUNK // max(1, labels * min(labels, 64)))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            sizes = expected_f(ranked[part], self.beta).argmax(axis=1)
            chosen = np.arange(labels) < sizes[:, None]
            inside = np.zeros_like(chosen)
            np.put_along_axis(inside, order[part], chosen, axis=1)
            sets[part] = inside
        if isinstance(probs, Tensor):
            return torch.from_numpy(sets).to(probs.device)
        return sets

    def spec(self) -> dict[str, Any]:
        return {"beta": self.beta}


def expected_f(ranked: Numbers, beta: float) -> Numbers:
    """Return the expected F-beta (n, sizes) of the 0, 1, 2, ... most probable labels.

    ``ranked`` (n, K) falls along each row. Sizes that cannot be the best are left out.
    """
    count, labels = ranked.shape
    mean = ranked.sum(1)
    hits = np.ones((count, 1))
    outside = _tails(ranked)
    scores = [outside[0][:, 0]]  # no label chosen: right if there is none
    best = scores[0].copy()
    for size in range(1, labels + 1):
        if (size * best > (1 + beta**2) * mean).all():
            break
        hits = _with(hits, ranked[:, size - 1])
        rest = outside[size]
        i, j = np.arange(hits.shape[1])[:, None], np.arange(rest.shape[1])
        gain = (1 + beta**2) * i / (size + beta**2 * (i + j))
        score = np.einsum("ni,ij,nj->n", hits, gain, rest, optimize=True)
        best = np.maximum(best, score)
        scores.append(score)
    return np.stack(scores, axis=1)


def _with(law: Numbers, p: Numbers) -> Numbers:
    """Return the law (n, m + 1) of a count and one more label of probability ``p`` (n,)."""
    longer = np.zeros((len(law), law.shape[1] + 1))
    longer[:, :-1] = law * (1 - p[:, None])
    longer[:, 1:] += law * p[:, None]
    return longer


def _tails(ranked: Numbers) -> list[Numbers]:
    """Return the laws of the number of labels beyond the first 0, 1, ..., K."""
    law = np.ones((len(ranked), 1))
    laws = [law]
    for p in ranked.T[::-1]:
        law = _with(law, p)
        if law[:, -1].max() < DROPPED:
            law = law[:, :-1]
        laws.append(law)
    return laws[::-1]

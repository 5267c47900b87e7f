"""What a rule does to each label: precision, recall, F1 and size, with exact intervals.

    precision = hits / chosen,  recall = hits / present,  F1 = 2 J / (1 + J),
    J = hits / (chosen or present)

Each is a share of images, so Clopper and Pearson's interval is exact; F1 rises with J, so its
interval is that of J, mapped.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.decide.arrays import Matrix, as_numpy, read_answers
from labelwise.numeric.bounds import clopper_pearson

__all__ = ["LabelFigures", "label_figures"]


@dataclass(frozen=True)
class LabelFigures:
    """Counts of a label's images, and (value, lower, upper) of its figures; None if undefined."""

    name: str
    known: int
    present: int
    chosen: int
    precision: tuple[float, float, float] | None
    recall: tuple[float, float, float] | None
    f1: tuple[float, float, float] | None

    def spec(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)


def label_figures(
    sets: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    *,
    names: Sequence[str],
    confidence: float = 0.95,
) -> tuple[LabelFigures, ...]:
    """Return the figures of each label under sets (N, K); both ends of an interval together hold
    with ``confidence``.
    """
    answers = read_answers(as_numpy(sets).astype(np.float64), labels, observed)
    found = []
    for k, name in enumerate(names):
        chosen = answers.probs[:, k] == 1
        present, known = answers.present[:, k], answers.present[:, k] | answers.absent[:, k]
        hits, size = int((chosen & present).sum()), int((chosen & known).sum())
        held = int(present.sum())
        jaccard = _share(hits, size + held - hits, confidence)
        found.append(
            LabelFigures(
                name,
                int(known.sum()),
                held,
                size,
                _share(hits, size, confidence),
                _share(hits, held, confidence),
                None if jaccard is None else _f1(jaccard),
            )
        )
    return tuple(found)


def _share(hits: int, count: int, confidence: float) -> tuple[float, float, float] | None:
    if count == 0:
        return None
    return hits / count, *clopper_pearson(hits, count, (1 + confidence) / 2)


def _f1(jaccard: tuple[float, float, float]) -> tuple[float, float, float]:
    value, lower, upper = (2 * share / (1 + share) for share in jaccard)
    return value, lower, upper

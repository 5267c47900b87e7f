"""What a rule does to each label: shares of its images, with exact intervals.

    precision = hits / chosen,  recall (sensitivity) = hits / present,
    specificity = absent and not chosen / absent,  false alarms = absent and chosen / known,
    F1 = 2 J / (1 + J),  J = hits / (chosen or present)

Each is a share of images, so Clopper and Pearson's interval is exact; F1 rises with J, so its
interval is that of J, mapped.

Images that come in groups are not exact trials. As Korn and Graubard (1998) do for surveys, the
interval is then that of as many independent images as these are worth
(:meth:`labelwise.numeric.groups.Groups.worth`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.decide.arrays import read_answers
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.bounds import clopper_pearson
from labelwise.numeric.groups import Groups


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
    specificity: tuple[float, float, float] | None
    false_alarms: tuple[float, float, float] | None

    def spec(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)


def label_figures(
    sets: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    names: Sequence[str],
    confidence: float = 0.95,
    groups: Groups | None = None,
) -> tuple[LabelFigures, ...]:
    """Return the figures of each label under sets (N, K); both ends of an interval together hold
    with ``confidence``. ``groups`` are those the images come in.
    """
    answers = read_answers(to_numpy(sets).astype(np.float64), labels, observed)
    figures = []
    for k, name in enumerate(names):
        chosen = answers.probs[:, k] == 1
        present, known = answers.present[:, k], answers.present[:, k] | answers.absent[:, k]
        hits, given, absent = chosen & present, chosen & known, answers.absent[:, k]
        jaccard = _share(hits, given | present, confidence, groups)
        figures.append(
            LabelFigures(
                name,
                int(known.sum()),
                int(present.sum()),
                int(given.sum()),
                _share(hits, given, confidence, groups),
                _share(hits, present, confidence, groups),
                None if jaccard is None else _f1(jaccard),
                _share(absent & ~chosen, absent, confidence, groups),
                _share(absent & chosen, known, confidence, groups),
            )
        )
    return tuple(figures)


def _share(
    hits: Any, counted: Any, confidence: float, groups: Groups | None
) -> tuple[float, float, float] | None:
    """Return the share of hits among the images (N,) that count, with its interval."""
    count = int(counted.sum())
    if count == 0:
        return None
    share = int(hits.sum()) / count
    worth = float(count) if groups is None else groups.worth(hits - share * counted, counted)
    number = int(hits.sum()) if groups is None else share * worth
    return share, *clopper_pearson(number, worth, (1 + confidence) / 2)


def _f1(jaccard: tuple[float, float, float]) -> tuple[float, float, float]:
    value, lower, upper = (2 * share / (1 + share) for share in jaccard)
    return value, lower, upper

"""What a rule does to each label: shares of its images, with exact intervals.

    precision = hits / chosen,  recall (sensitivity) = hits / present,
    specificity = absent and not chosen / absent,  false alarms = absent and chosen / known,
    F1 = 2 J / (1 + J),  J = hits / (chosen or present)

Each is a share of images, so Clopper and Pearson's interval is exact; F1 rises with J, so its
interval is that of J, mapped.

Images that come in groups have the interval of as many independent images as these are worth
(Korn and Graubard 1998; :meth:`labelwise.numeric.groups.Groups.worth`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.decide.arrays import read_answers
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.bounds import clopper_pearson
from labelwise.numeric.groups import Groups

Share = tuple[float, float, float]  # value, lower, upper


@dataclass(frozen=True)
class LabelFigures:
    """Counts of a label's images, and its figures; None if undefined."""

    name: str
    known: int
    present: int
    chosen: int
    precision: Share | None
    recall: Share | None
    f1: Share | None
    specificity: Share | None
    false_alarms: Share | None

    def spec(self) -> dict[str, Any]:
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

    def share(hits: Any, counted: Any) -> Share | None:
        count = int(counted.sum())
        if count == 0:
            return None
        value = int(hits.sum()) / count
        worth = float(count) if groups is None else groups.worth(hits - value * counted, counted)
        number = int(hits.sum()) if groups is None else value * worth
        return value, *clopper_pearson(number, worth, (1 + confidence) / 2)

    figures = []
    for name, own in zip(names, answers.labels(), strict=True):
        present, absent, known = own.present[:, 0], own.absent[:, 0], own.known[:, 0]
        chosen = (own.probs[:, 0] == 1) & known
        jaccard, f1 = share(chosen & present, chosen | present), None
        if jaccard is not None:
            value, lower, upper = (2 * side / (1 + side) for side in jaccard)
            f1 = value, lower, upper
        count, carry, given = (int(side.sum()) for side in (known, present, chosen))
        precision, recall = share(chosen & present, chosen), share(chosen & present, present)
        others = share(absent & ~chosen, absent), share(absent & chosen, known)
        figures.append(LabelFigures(name, count, carry, given, precision, recall, f1, *others))
    return tuple(figures)

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

    def share(hits: Any, counted: Any) -> tuple[float, float, float] | None:
        """Return the share of hits among the images (N,) that count, with its interval."""
        count = int(counted.sum())
        if count == 0:
            return None
        value = int(hits.sum()) / count
        worth = float(count) if groups is None else groups.worth(hits - value * counted, counted)
        number = int(hits.sum()) if groups is None else value * worth
        return value, *clopper_pearson(number, worth, (1 + confidence) / 2)

    figures = []
    for name, own in zip(names, answers.labels(), strict=True):
        present, absent, known = own.present, own.absent, own.known
        chosen = (own.probs == 1) & known
        jaccard, f1 = share((chosen & present)[:, 0], (chosen | present)[:, 0]), None
        if jaccard is not None:
            value, lower, upper = (2 * side / (1 + side) for side in jaccard)
            f1 = value, lower, upper
        pairs = [(chosen, chosen & present), (present, chosen & present)]
        pairs += [(absent, absent & ~chosen), (known, absent & chosen)]
        precision, recall, specificity, alarms = (
            share(hits[:, 0], counted[:, 0]) for counted, hits in pairs
        )
        carry, given = int(present.sum()), int(chosen.sum())
        figures.append(
            LabelFigures(
                name, int(known.sum()), carry, given, precision, recall, f1, specificity, alarms
            )
        )
    return tuple(figures)

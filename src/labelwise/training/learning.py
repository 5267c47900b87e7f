"""How much more would help: mean average precision by a quarter, a half and all of the photos.

Each photo is judged by heads that were solved on one, two and four fifths of the photos, none of
which it is in (:mod:`labelwise.eyes.fit`). With L = log(1 - mAP), the next doubling gains .8 of
what the last one did: after d doublings

    L(d) = L(0) + g (.8 + .8^2 + ...) = L(0) + 4 g (1 - .8^d),    g = L(.8 n) - L(.4 n)

.8 was measured on three sets. The interval is that of the influence of photos on both levels, and
of a fifth of the gain for the law itself.
"""

from dataclasses import dataclass
from math import exp, log, log2, sqrt
from typing import Any

import numpy as np

from labelwise.base.arrays import Mask, Values
from labelwise.evaluation.intervals import mean_ap_influence
from labelwise.eyes.fit import Fitted
from labelwise.metrics import average_precision

LEARNING = "learning"  # of the journal: the record of this curve
NEXT = 0.8  # of the gain of a doubling, that the next one gains
LAW_ERROR = 0.2  # of the gain, standard error
NINETY = 1.645
LEAST_PHOTOS, LEAST_PRESENT = 100, 5
WIDEST = 0.12  # interval of what twice as many would bring, above which nothing is said
WORST = 5
SHARES = (0.2, 0.4, 0.8)  # of the photos, on which heads were solved


@dataclass(frozen=True)
class Learning:
    """The mAP by share of the photos, what twice as many would bring, and the worst labels."""

    photos: int
    levels: tuple[float, ...]  # at SHARES
    errors: tuple[float, ...]
    half: float
    all: float
    twice: float
    low: float
    high: float
    worst: tuple[tuple[str, int, float, float], ...]  # name, photos, with half, with all

    @property
    def is_clear(self) -> bool:
        return self.photos >= LEAST_PHOTOS and self.high - self.low <= WIDEST

    def __str__(self) -> str:
        if not self.is_clear:
            return f"Whether more photos would help cannot be told yet from {self.photos:,}."
        names = ", ".join(
            f"{name} ({count:,} photos: {half:.0%} with half, {level:.0%} with all)"
            for name, count, half, level in self.worst
        )
        return (
            f"mAP with half of your photos {self.half:.0%}, with all {self.all:.0%}; twice as many "
            f"would bring about {self.twice:.0%} ({self.low:.0%} to {self.high:.0%}). The "
            f"labels with the lowest average precision: {names}."
        )

    def record(self) -> dict[str, object]:
        """Return what the journal holds: the sentence, and the mAP by number of photos."""
        shares, levels = (*SHARES, 1.0, 2.0), (*self.levels, self.all, self.twice)
        errors = [NINETY * error for error in (*self.errors, self.errors[-1])]
        errors.append((self.high - self.low) / 2)
        points = [
            {"photos": round(share * self.photos), "map": level, "error": error}
            for share, level, error in zip(shares, levels, errors, strict=True)
        ]
        return {"sentence": str(self), "points": points if self.is_clear else []}


def learning(
    fitted: Fitted[Any], labels: Values, observed: Mask | None, names: tuple[str, ...]
) -> Learning | None:
    """Return what the folds of a head say of more photos, None where they cannot."""
    if not fitted.fewer or fitted.shown is not None:
        return None
    present = labels > 0.5 if observed is None else (labels > 0.5) & observed
    counts = present.sum(0)
    chosen = np.flatnonzero(counts >= LEAST_PRESENT)
    if not len(chosen):
        return None
    present, known = present[:, chosen], None if observed is None else observed[:, chosen]
    sides = [logits[:, chosen] for logits in (*fitted.fewer, fitted.out_of_fold)]
    precisions = [average_precision(side, present, known) for side in sides]
    levels = [min(max(float(found.value), 1e-6), 1 - 1e-6) for found in precisions]
    moved = [mean_ap_influence(side, present, known) for side in sides]
    logs = [log(1 - level) for level in levels]
    slopes = [-side / (1 - level) for side, level in zip(moved, levels, strict=True)]
    gain = logs[2] - logs[1]

    def further(doublings: float) -> float:
        return float(NEXT * (1 - NEXT**doublings) / (1 - NEXT))

    to_all, to_twice = further(log2(1.25)), further(log2(2.5))
    twice = logs[2] + gain * to_twice
    error = slopes[2] + to_twice * (slopes[2] - slopes[1])
    deviation = sqrt(float(error @ error) + (LAW_ERROR * gain * to_twice) ** 2)
    low, high = (1 - exp(twice + sign * NINETY * deviation) for sign in (1, -1))
    middle = logs[1] + (logs[2] - logs[1]) * log2(1.25)
    halves, wholes = (np.asarray(found.items, np.float64) for found in precisions[1:])
    order = [k for k in np.argsort(wholes)[:WORST] if np.isfinite(wholes[k])]
    return Learning(
        len(labels),
        tuple(levels),
        tuple(sqrt(float(side @ side)) for side in moved),
        1 - exp(middle),
        1 - exp(logs[2] + gain * to_all),
        1 - exp(twice),
        max(low, 0.0),
        high,
        tuple(
            (names[chosen[k]], int(counts[chosen[k]]), float(halves[k]), float(wholes[k]))
            for k in order
        ),
    )

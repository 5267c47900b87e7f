"""Platt scaling: a logistic regression on the log-odds.

    p = sigma(slope u + offset)        u: log-odds of the link, or raw logits where there is none

``scope`` says what the labels share: everything ("shared"), the slope ("offset": each label has
its own offset), or nothing ("label"). What they do not share is drawn towards the shared fit. The
slope stays positive, so calibration never turns a label's ranking round.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from labelwise.calibration.entries import (
    Floats,
    Numbers,
    OnLogOdds,
    check_options,
    limited_log_odds,
    read_entries,
)
from labelwise.calibration.regression import fit_labels, fit_shared
from labelwise.links import Link
from labelwise.numeric.array_api import A, like, log_sigmoid
from labelwise.numeric.arrays import Array

Scope = Literal["shared", "offset", "label"]
PerLabelNumber = float | Sequence[float]
LEAST_SLOPE = 1e-6


class Platt(OnLogOdds):
    """``p = sigma(slope u + offset)`` with one slope and offset, or one for each label."""

    kind = "platt"
    numbers = ("slope", "offset")

    def __init__(
        self, link: Link | None, slope: PerLabelNumber, offset: PerLabelNumber, limit: float
    ) -> None:
        super().__init__(link, limit)
        self.slope, self.offset = np.asarray(slope, np.float32), np.asarray(offset, np.float32)
        if not (self.slope > 0).all():
            raise ValueError(f"slopes must be positive, got {slope}")

    def log_probs(self, logits: A) -> tuple[A, A]:
        u = limited_log_odds(self.link, logits, self.limit)
        z = like(self.slope, u) * u + like(self.offset, u)
        return log_sigmoid(z), log_sigmoid(-z)

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers] | None:
        return self.straight(self.slope, self.offset, labels)


def platt(
    logits: Array,
    labels: Array,
    link: Link | None = None,
    observed: Array | None = None,
    *,
    scope: Scope = "label",
    strength: float | None = None,
) -> Platt:
    """Return the Platt link with the least log loss.

    ``link=None`` is for objectives that only rank: their raw logits stand in for log-odds.
    ``strength`` draws each label towards the shared fit; None chooses it on held-out images.
    """
    check_options(scope, ("shared", "offset", "label"), strength)
    entries = read_entries(logits, labels, link, observed)
    if scope == "shared":
        weights = fit_shared(entries, _features, LEAST_SLOPE)
    else:
        weights = fit_labels(entries, _features, LEAST_SLOPE, strength, tied=scope == "offset")
    return Platt(link, weights[:, 0].tolist(), weights[:, 1].tolist(), entries.limit)


def _features(u: Floats) -> tuple[Floats]:
    return (u,)


# Beta calibration (Kull, Silva Filho and Flach, 2017): a slope for each end of the scale,
#
#     p = sigma(a log p0 - b log(1 - p0) + c)        a, b >= 0;  a = b is Platt scaling


class Beta(OnLogOdds):
    """``p = sigma(a log p0 - b log(1 - p0) + c)``, with one triple, or one for each label."""

    kind = "beta"
    numbers = ("a", "b", "c")

    def __init__(
        self,
        link: Link | None,
        a: PerLabelNumber,
        b: PerLabelNumber,
        c: PerLabelNumber,
        limit: float,
    ) -> None:
        super().__init__(link, limit)
        self.a, self.b, self.c = (np.asarray(side, np.float32) for side in (a, b, c))
        if not ((self.a >= 0) & (self.b >= 0)).all():
            raise ValueError(f"a and b must not be negative, got {a} and {b}")

    def log_probs(self, logits: A) -> tuple[A, A]:
        u = limited_log_odds(self.link, logits, self.limit)
        rise, fall = log_sigmoid(u), log_sigmoid(-u)
        z = like(self.a, u) * rise - like(self.b, u) * fall + like(self.c, u)
        return log_sigmoid(z), log_sigmoid(-z)


def beta(
    logits: Array,
    labels: Array,
    link: Link | None = None,
    observed: Array | None = None,
    *,
    scope: Literal["shared", "label"] = "label",
    strength: float | None = None,
) -> Beta:
    """Return the beta link with the least log loss; see :func:`platt` for the arguments."""
    check_options(scope, ("shared", "label"), strength)
    entries = read_entries(logits, labels, link, observed)
    if scope == "shared":
        weights = fit_shared(entries, _both_ends, 0.0)
    else:
        weights = fit_labels(entries, _both_ends, 0.0, strength)
    a, b, c = (column.tolist() for column in weights.T)
    return Beta(link, a, b, c, entries.limit)


def _both_ends(u: Floats) -> tuple[Floats, Floats]:
    return log_sigmoid(u), -log_sigmoid(-u)

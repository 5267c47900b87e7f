"""Platt scaling: a logistic regression on the log-odds.

    p = sigma(slope u + offset)        u: log-odds of the link, or raw logits where there is none

``scope`` says what the labels share: everything ("shared"), the slope ("offset": each label has
its own offset), or nothing ("label"). What they do not share is drawn towards the shared fit. The
slope stays positive, so calibration never turns a label's ranking round.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from labelwise.calibration.entries import (
    Floats,
    Numbers,
    OnLogOdds,
    limited_log_odds,
    own_number,
    read_entries,
    straight,
)
from labelwise.calibration.features import Features
from labelwise.calibration.newton import PerLabel, TiedSlope
from labelwise.calibration.shrink import fit_labels, fit_shared
from labelwise.links import Link
from labelwise.numeric.array_api import A, like, log_sigmoid
from labelwise.numeric.arrays import Array, Mask

Scope = Literal["shared", "offset", "label"]
LEAST_SLOPE = 1e-6


class Platt(OnLogOdds):
    """``p = sigma(slope u + offset)`` with one slope and offset, or one for each label."""

    kind = "platt"

    def __init__(
        self,
        link: Link | None,
        slope: float | Sequence[float],
        offset: float | Sequence[float],
        limit: float,
    ) -> None:
        super().__init__(link, limit)
        self.slope, self.offset = np.asarray(slope, np.float32), np.asarray(offset, np.float32)
        if not (self.slope > 0).all():
            raise ValueError(f"slopes must be positive, got {slope}")

    def log_probs(self, logits: A) -> tuple[A, A]:
        u = limited_log_odds(self.link, logits, self.limit)
        z = like(self.slope, u) * u + like(self.offset, u)
        return log_sigmoid(z), log_sigmoid(-z)

    def numbers_of(self, column: int) -> dict[str, Any]:
        return {
            "slope": own_number(self.slope, column),
            "offset": own_number(self.offset, column),
        }

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers] | None:
        return straight(self, self.slope, self.offset, labels)

    def spec(self) -> dict[str, Any]:
        return {
            "link": self.link,
            "slope": self.slope.tolist(),
            "offset": self.offset.tolist(),
            "limit": self.limit,
        }


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
    if scope not in ("shared", "offset", "label"):
        raise ValueError(f"scope must be 'shared', 'offset' or 'label', got {scope!r}")
    entries = read_entries(logits, labels, link, observed)
    if scope == "shared":
        weights = fit_shared(entries, _features, LEAST_SLOPE)
    else:
        each = _tied if scope == "offset" else PerLabel
        weights = fit_labels(entries, _features, LEAST_SLOPE, strength, each)
    return Platt(link, weights[:, 0].tolist(), weights[:, 1].tolist(), entries.limit)


def _tied(features: Features, center: Numbers, pull: Numbers, lacking: Mask) -> TiedSlope:
    return TiedSlope(features, center, pull)


def _features(u: Floats) -> tuple[Floats]:
    return (u,)

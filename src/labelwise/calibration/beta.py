"""Beta calibration (Kull, Silva Filho and Flach, 2017): a slope for each end of the scale.

    p = sigma(a log p0 - b log(1 - p0) + c)        a, b >= 0;  a = b is Platt scaling

With p0 = sigma(u) this bends the log-odds differently above and below one half. The features
-softplus(-u) and softplus(u) both rise with u, so p does. Labels are drawn towards the shared fit.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from labelwise.calibration.entries import (
    Floats,
    OnLogOdds,
    limited_log_odds,
    own_number,
    read_entries,
)
from labelwise.calibration.shrink import fit_labels, fit_shared
from labelwise.links import Link
from labelwise.numeric.array_api import A, like, log_sigmoid
from labelwise.numeric.arrays import Array

Scope = Literal["shared", "label"]
Numbers = float | Sequence[float]


class Beta(OnLogOdds):
    """``p = sigma(a log p0 - b log(1 - p0) + c)``, with one triple, or one for each label."""

    kind = "beta"

    def __init__(self, link: Link | None, a: Numbers, b: Numbers, c: Numbers, limit: float) -> None:
        super().__init__(link, limit)
        self.a, self.b, self.c = (np.asarray(part, np.float32) for part in (a, b, c))
        if not ((self.a >= 0) & (self.b >= 0)).all():
            raise ValueError(f"a and b must not be negative, got {a} and {b}")

    def log_probs(self, logits: A) -> tuple[A, A]:
        u = limited_log_odds(self.link, logits, self.limit)
        rise, fall = log_sigmoid(u), log_sigmoid(-u)
        z = like(self.a, u) * rise - like(self.b, u) * fall + like(self.c, u)
        return log_sigmoid(z), log_sigmoid(-z)

    def numbers_of(self, column: int) -> dict[str, Any]:
        return {
            name: own_number(value, column)
            for name, value in (("a", self.a), ("b", self.b), ("c", self.c))
        }

    def spec(self) -> dict[str, Any]:
        numbers = {"a": self.a.tolist(), "b": self.b.tolist(), "c": self.c.tolist()}
        return {"link": self.link, **numbers, "limit": self.limit}


def beta(
    logits: Array,
    labels: Array,
    link: Link | None = None,
    observed: Array | None = None,
    *,
    scope: Scope = "label",
    strength: float | None = None,
) -> Beta:
    """Return the beta link with the least log loss; see :func:`platt` for the arguments."""
    if scope not in ("shared", "label"):
        raise ValueError(f"scope must be 'shared' or 'label', got {scope!r}")
    entries = read_entries(logits, labels, link, observed)
    if scope == "shared":
        weights = fit_shared(entries, _features, 0.0)
    else:
        weights = fit_labels(entries, _features, 0.0, strength)
    a, b, c = (column.tolist() for column in weights.T)
    return Beta(link, a, b, c, entries.limit)


def _features(u: Floats) -> tuple[Floats, Floats]:
    return log_sigmoid(u), -log_sigmoid(-u)

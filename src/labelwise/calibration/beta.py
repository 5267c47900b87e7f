"""Beta calibration (Kull, Silva Filho and Flach, 2017): a slope for each end of the scale.

    p = sigma(a log p0 - b log(1 - p0) + c)        a, b >= 0;  a = b is Platt scaling

With p0 = sigma(u) this bends the log-odds differently above and below one half. The features
-softplus(-u) and softplus(u) both rise with u, so p does. Labels are drawn towards the shared fit.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.calibration.entries import OnLogOdds, limited_log_odds, own_number, read_entries
from labelwise.calibration.shrink import fit_labels, fit_shared
from labelwise.links import Link
from labelwise.numeric.arrays import Array

Scope = Literal["shared", "label"]
Numbers = float | Sequence[float]


class Beta(OnLogOdds):
    """``p = sigma(a log p0 - b log(1 - p0) + c)``, with one triple, or one for each label."""

    kind = "beta"

    def __init__(self, link: Link | None, a: Numbers, b: Numbers, c: Numbers, limit: float) -> None:
        super().__init__()
        self.link, self.limit = link, limit
        self.a: Tensor
        self.b: Tensor
        self.c: Tensor
        for name, value in (("a", a), ("b", b), ("c", c)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        if not ((self.a >= 0) & (self.b >= 0)).all():
            raise ValueError(f"a and b must not be negative, got {a} and {b}")

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        u = limited_log_odds(self.link, logits, self.limit)
        rise, fall = logsigmoid(u), logsigmoid(-u)
        z = self.a.to(u.dtype) * rise - self.b.to(u.dtype) * fall + self.c.to(u.dtype)
        return logsigmoid(z), logsigmoid(-z)

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
    link: Link | None,
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


def _features(u: Tensor) -> tuple[Tensor, Tensor]:
    return logsigmoid(u), -logsigmoid(-u)

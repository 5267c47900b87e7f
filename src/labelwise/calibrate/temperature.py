"""Temperature scaling: one number for all labels.

    p = sigma(u / T)                  u: log-odds of the link, or raw logits where there is none
    p = softmax(v / T)                for the softmax link, on its logits

The log loss is convex in a = 1/T, so a is the root of its derivative on (0, 100], found by Newton
steps that fall back to halving a bracket. Optimising T itself is not safe: from 1.5 it can run
to a negative temperature. A softmax counts images with a label, each with target y / |y|.
"""

from collections.abc import Callable
from typing import Any
from warnings import warn

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.calibrate.entries import Entries, Matrix, limited_log_odds, read_entries
from labelwise.links import Link, Softmax

__all__ = ["Temperature", "temperature"]

LEAST, MOST = 1e-6, 100.0
STEPS = 200


class Temperature(Link):
    """``p = sigma(u / temperature)``."""

    kind = "temperature"

    def __init__(self, link: Link | None, temperature: float, limit: float) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.link, self.temperature, self.limit = link, temperature, limit

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        z = limited_log_odds(self.link, logits, self.limit) / self.temperature
        return logsigmoid(z), logsigmoid(-z)

    def spec(self) -> dict[str, Any]:
        return {"link": self.link, "temperature": self.temperature, "limit": self.limit}


def temperature(
    logits: Matrix, labels: Matrix, link: Link | None, observed: Matrix | None = None
) -> Link:
    """Return the link with the temperature of the least log loss; a softmax stays a softmax."""
    if isinstance(link, Softmax):
        entries = read_entries(logits, labels, None, observed)
        return Softmax(link.temperature / _root(lambda a: _softmax(entries, a / link.temperature)))
    entries = read_entries(logits, labels, link, observed)
    return Temperature(link, 1 / _root(lambda a: _sigmoid(entries, a)), entries.limit)


def _sigmoid(entries: Entries, a: float) -> tuple[float, float]:
    """Return the first and second derivative in ``a`` of the summed log loss of sigma(a u)."""
    first = second = 0.0
    for u, y, _ in entries.rows():  # an entry not observed has u = 0 and drops out
        p = torch.sigmoid(a * u)
        first += ((p - y) * u).sum().item()
        second += (p * (1 - p) * u * u).sum().item()
    return first, second


def _softmax(entries: Entries, a: float) -> tuple[float, float]:
    """Return both derivatives in ``a`` of the summed cross-entropy of softmax(a v)."""
    first = second = 0.0
    for v, y, _ in entries.rows():
        counted = y.sum(1) > 0
        v, y = v[counted], y[counted]
        p = torch.softmax(a * v, dim=1)
        mean = (p * v).sum(1)
        first += (mean - (y * v).sum(1) / y.sum(1)).sum().item()
        second += ((p * v * v).sum(1) - mean * mean).sum().item()
    return first, second


def _root(derivatives: Callable[[float], tuple[float, float]]) -> float:
    """Return a in [LEAST, MOST] where the rising first derivative crosses zero."""
    low, high = LEAST, MOST
    if derivatives(low)[0] >= 0:
        warn("scores do not rise with the labels: the temperature is its maximum", stacklevel=3)
        return low
    if derivatives(high)[0] <= 0:
        warn("scores separate the labels: the temperature is its minimum, 0.01", stacklevel=3)
        return high
    a = 1.0
    for _ in range(STEPS):
        first, second = derivatives(a)
        low, high = (a, high) if first < 0 else (low, a)
        newton = a - first / second if second > 0 else low
        following = newton if low < newton < high else (low * high) ** 0.5
        if abs(following - a) <= 1e-15 * a or first == 0:
            return following
        a = following
    return a

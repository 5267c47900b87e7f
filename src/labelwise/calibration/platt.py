"""Calibrators with few numbers: Platt scaling, beta calibration and temperature scaling.

Platt scaling is a logistic regression on the log-odds:

    p = sigma(slope u + offset)        u: log-odds of the link, or raw logits where there is none

``scope`` says what the labels share: everything ("shared"), the slope ("offset": each label has
its own offset), or nothing ("label"). What they do not share is drawn towards the shared fit. The
slope stays positive, so calibration never turns a label's ranking round.
"""

from collections.abc import Callable, Sequence
from typing import Literal
from warnings import warn

import numpy as np

from labelwise.calibration.entries import (
    Entries,
    Floats,
    OnLogOdds,
    check_options,
    limited_log_odds,
    read_entries,
)
from labelwise.calibration.regression import fit
from labelwise.links import Link, Softmax
from labelwise.numeric.array_api import A, like, log_sigmoid, logsumexp
from labelwise.numeric.arrays import Array, Numbers

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
    slope, offset = fit(entries, lambda u: (u,), LEAST_SLOPE, scope, strength).T.tolist()
    return Platt(link, slope, offset, entries.limit)


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
    a, b, c = fit(entries, _both_ends, 0.0, scope, strength).T.tolist()
    return Beta(link, a, b, c, entries.limit)


def _both_ends(u: Floats) -> tuple[Floats, Floats]:
    return log_sigmoid(u), -log_sigmoid(-u)


# Temperature scaling: one number for all labels.
#
#     p = sigma(u / T)                  u: log-odds of the link, or raw logits where there is none
#     p = softmax(v / T)                for the softmax link, on its logits
#
# The log loss is convex in a = 1/T, so a is the root of its derivative on (0, 100], found by Newton
# steps that fall back to halving a bracket. Optimising T itself is not safe: from 1.5 it can run
# to a negative temperature. A softmax counts images with a label, each with target y / |y|.

LEAST, MOST = 1e-6, 100.0
ROOT_STEPS = 100
MANY, COARSE = 8192, 8

Derivatives = Callable[[Entries, float], tuple[float, float]]


class Temperature(OnLogOdds):
    """``p = sigma(u / temperature)``."""

    kind = "temperature"
    numbers = ("temperature",)

    def __init__(self, link: Link | None, temperature: float, limit: float) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        super().__init__(link, limit)
        self.temperature = temperature

    def log_probs(self, logits: A) -> tuple[A, A]:
        z = limited_log_odds(self.link, logits, self.limit) / self.temperature
        return log_sigmoid(z), log_sigmoid(-z)

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers] | None:
        return self.straight(1 / self.temperature, 0.0, labels)


def temperature(
    logits: Array, labels: Array, link: Link | None = None, observed: Array | None = None
) -> Link:
    """Return the link with the temperature of the least log loss; a softmax stays a softmax."""
    if isinstance(link, Softmax):
        entries = read_entries(logits, labels, None, observed)
        return Softmax(1 / _best_slope(entries, _softmax))
    entries = read_entries(logits, labels, link, observed)
    return Temperature(link, 1 / _best_slope(entries, _sigmoid), entries.limit)


def _best_slope(entries: Entries, derivatives: Derivatives) -> float:
    """Return a = 1 / T, from a start on some of the rows where there are many."""
    start = 1.0
    if len(entries.logits) > MANY:
        some = entries.subset(slice(None, None, len(entries.logits) * COARSE // MANY))
        start = _root(lambda a: derivatives(some, a), start, 1e-3)
    double = entries.logits.dtype == np.float64
    a = _root(lambda a: derivatives(entries, a), start, 1e-13 if double else 1e-6)
    if a == LEAST:
        warn("scores do not rise with the labels: the temperature is its maximum", stacklevel=3)
    if a == MOST:
        warn(
            "no score is on the wrong side on these rows, so that they cannot tell how sure to be: "
            "the temperature is the least that is tried, 0.01",
            stacklevel=3,
        )
    return a


def _sigmoid(entries: Entries, a: float) -> tuple[float, float]:
    """Return the first and second derivative in ``a`` of the summed log loss of sigma(a u)."""
    first = second = 0.0
    for u, y, _ in entries.rows():  # an entry not observed has u = 0 and drops out
        p = np.exp(log_sigmoid(u.dtype.type(a) * u))
        first += float(((p - y) * u).sum(dtype=np.float64))
        second += float(((p - p * p) * u * u).sum(dtype=np.float64))
    return first, second


def _softmax(entries: Entries, a: float) -> tuple[float, float]:
    """Return both derivatives in ``a`` of the summed cross-entropy of softmax(a v)."""
    first = second = 0.0
    for v, y, _ in entries.rows():
        counted = y.sum(1) > 0
        v = v - v.mean(1, keepdims=True)
        scaled = v.dtype.type(a) * v
        weighted = np.exp(scaled - logsumexp(scaled)) * v
        mean = weighted.sum(1)
        goal = (y * v).sum(1) / y.sum(1).clip(1e-30)
        first += float((mean - goal)[counted].sum(dtype=np.float64))
        curve = (weighted * v).sum(1) - mean * mean
        second += float(curve[counted].sum(dtype=np.float64))
    return first, second


def _root(
    derivatives: Callable[[float], tuple[float, float]], start: float, precision: float
) -> float:
    """Return a in [LEAST, MOST] where the rising first derivative crosses zero, or the end."""
    a, low, high = start, LEAST, MOST
    first, second = derivatives(a)
    if first < 0 and derivatives(high)[0] <= 0:
        return high
    if first >= 0 and derivatives(low)[0] >= 0:
        return low
    for _ in range(ROOT_STEPS):
        low, high = (a, high) if first < 0 else (low, a)
        newton = a - first / second if second > 0 else low
        following = newton if low < newton < high else (low * high) ** 0.5
        if abs(following - a) <= precision * a or first == 0:
            return following if first else a
        a = following
        first, second = derivatives(a)
    return a

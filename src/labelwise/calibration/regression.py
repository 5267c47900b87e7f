"""Calibrators with few numbers: Platt scaling, beta calibration and temperature scaling.

Platt scaling is a logistic regression on the log-odds:

    p = sigma(slope u + offset)        u: log-odds of the link, or raw logits where there is none

``scope`` says what the labels share: everything ("shared"), the slope ("offset": each label has
its own offset), or nothing ("label"). What they do not share is drawn towards the shared fit. The
slope stays positive, so calibration never turns a label's ranking round.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Literal
from warnings import warn

import numpy as np

from labelwise.base.array_api import A, like, log_sigmoid, logsumexp, namespace
from labelwise.base.arrays import Array, Floats, Mask, Numbers, as_mask, check_shapes, to_numpy
from labelwise.calibration.entries import (
    LEAST_BINS,
    Bins,
    Block,
    Entries,
    OnLogOdds,
    Rows,
    check_options,
    choose,
    compressed,
    joined,
    limited_log_odds,
    read_entries,
)
from labelwise.links import Grouped, Link, Softmax
from labelwise.taxonomy import FAR, AttributeColumns

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
    weights = fit(entries, lambda u: (log_sigmoid(u), -log_sigmoid(-u)), 0.0, scope, strength)
    a, b, c = weights.T.tolist()
    return Beta(link, a, b, c, entries.limit)


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

SlopeDerivatives = Callable[[Entries, float], tuple[float, float]]


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


def _best_slope(entries: Entries, derivatives_of: SlopeDerivatives) -> float:
    start = 1.0
    if len(entries.logits) > MANY:
        some = entries.subset(slice(None, None, len(entries.logits) * COARSE // MANY))
        start = _root(lambda a: derivatives_of(some, a), start, 1e-3)
    double = entries.logits.dtype == np.float64
    a = _root(lambda a: derivatives_of(entries, a), start, 1e-13 if double else 1e-6)
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
    first = second = 0.0
    for u, y, _ in entries.rows():  # an entry not observed has u = 0 and drops out
        p = np.exp(log_sigmoid(u.dtype.type(a) * u))
        first += float(((p - y) * u).sum(dtype=np.float64))
        second += float(((p - p * p) * u * u).sum(dtype=np.float64))
    return first, second


def _softmax(entries: Entries, a: float) -> tuple[float, float]:
    first = second = 0.0
    for v, y, _ in entries.rows():
        counted = y.sum(1) > 0
        v = v - v.mean(1, keepdims=True)
        scaled = v.dtype.type(a) * v
        weighted = np.exp(scaled - logsumexp(scaled)) * v
        mean = weighted.sum(1)
        goal = (y * v).sum(1) / y.sum(1).clip(1e-30)
        first += float((mean - goal)[counted].sum(dtype=np.float64))
        second += float(((weighted * v).sum(1) - mean * mean)[counted].sum(dtype=np.float64))
    return first, second


def _root(slopes: Callable[[float], tuple[float, float]], start: float, precision: float) -> float:
    """Return a in [LEAST, MOST] where the rising first derivative crosses zero, or the end."""
    a, low, high = start, LEAST, MOST
    first, second = slopes(a)
    if first < 0 and slopes(high)[0] <= 0:
        return high
    if first >= 0 and slopes(low)[0] >= 0:
        return low
    for _ in range(ROOT_STEPS):
        low, high = (a, high) if first < 0 else (low, a)
        newton = a - first / second if second > 0 else low
        following = newton if low < newton < high else (low * high) ** 0.5
        if abs(following - a) <= precision * a or first == 0:
            return following if first else a
        a = following
        first, second = slopes(a)
    return a


# Labels borrow strength from each other: per-label fits drawn towards the shared fit.
#
# A label without positives or without negatives keeps the shared slope, and with strength 0 the
# shared offset too. The strength is given, or has the least log loss on held-out images. Many
# entries are first fitted in bins, and a step or two on all of them end the fit.
#
# Newton steps for all labels at once, in float64. A weight that presses against its bound is
# frozen. A step that does not lower a group's loss is halved for that group.
#
#     one fit          sum over labels of loss_k(theta)
#     per label        loss_k(theta_k) + pull_k / 2 |theta_k - center|^2, for each label
#     per label, tied  one slope for all labels, an offset for each, which alone is pulled;
#                      slope step = (g_a - sum h_ab g_b / h_bb) / (h_aa - sum h_ab^2 / h_bb)
#
# Features phi of the log-odds are scaled over all observed entries to mean 0 and variance 1:
#
#     z = sum over f of theta_f phi_f(u)  +  theta_last
#     loss = sum over entries of softplus(z) - y z
#     sum softplus(z) = sum max(z, 0) + log prod (1 + exp(-|z|)), at most 2^ROWS

Raw = Callable[[Floats], tuple[Floats, ...]]
Derivatives = tuple[Numbers, Numbers, Numbers]

MAX_SLOPE = 100.0
ROWS = 1000  # 2^ROWS is still a float64
STEPS, POLISHING = 100, 4
TOLERANCE, ROUGH = 1e-7, 1e-3
STRENGTHS = (1e4, 1e3, 1e2, 1e1, 1.0, 0.1)
FOLDS = 3


@dataclass(frozen=True)
class Features:
    """Scaled features; weights are kept between ``least`` and ``MAX_SLOPE``, the constant free."""

    raw: Raw
    least: float
    mean: Numbers
    deviation: Numbers

    def __call__(self, u: Floats) -> Numbers:
        scaled = (np.stack(self.raw(u), axis=-1) - self.mean) / self.deviation
        return np.concatenate([scaled, np.ones_like(scaled[..., :1])], axis=-1)

    def read(self, rows: Rows) -> "FeatureBlocks":
        first, *more = (block for block, _ in zip(rows.rows(), range(2), strict=False))
        return _LaterBlocks(self, rows) if more else [FeatureBlock.of(self, first)]

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        slopes = np.ones_like(self.mean)
        return np.append(self.least * slopes, -np.inf), np.append(MAX_SLOPE * slopes, np.inf)

    def unscale(self, theta: Numbers) -> Numbers:
        slopes = theta[:, :-1] / self.deviation
        offset = theta[:, -1:] - (slopes * self.mean).sum(1, keepdims=True)
        return np.concatenate([slopes, offset], axis=1)


def scaled(rows: Rows, raw: Raw, least: float) -> Features:
    """Return the features scaled by their mean and deviation over the rows."""
    total = np.zeros(())
    for u, _, w in rows.rows():
        u = u.astype(np.float64)
        weight = np.ones_like(u) if w is None else w
        moments = [np.stack([weight, weight * phi, weight * phi * phi]) for phi in raw(u)]
        total = total + np.stack(moments).sum((2, 3))  # (F - 1, 3)
    count, first, second = total.T
    mean = first / count
    return Features(raw, least, mean, np.sqrt((second / count - mean**2).clip(1e-12)))


@dataclass(frozen=True)
class FeatureBlock:
    """A block of rows: scaled features, and their products."""

    phi: Numbers  # (K, F, N)
    products: Numbers  # (K, F F, N)
    labels: Numbers  # (K, 1, N)
    weight: Numbers | None  # (K, 1, N); None where all rows weigh 1

    @classmethod
    def of(cls, features: Features, block: Block) -> "FeatureBlock":
        u, y, w = block
        phi = np.ascontiguousarray(features(u.astype(np.float64).T).swapaxes(1, 2))
        products = (phi[:, :, None] * phi[:, None]).reshape(len(phi), -1, phi.shape[-1])
        weight = None if w is None else w.astype(np.float64).T[:, None]
        return cls(phi, products, y.astype(np.float64).T[:, None], weight)


FeatureBlocks = Iterable[FeatureBlock]


@dataclass(frozen=True)
class _LaterBlocks:
    """The blocks of many rows, computed whenever they are asked for."""

    features: Features
    rows: Rows

    def __iter__(self) -> Iterator[FeatureBlock]:
        return (FeatureBlock.of(self.features, block) for block in self.rows.rows())


def derivatives(blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
    """Return loss (T, K), gradient (T, K, F), Hessian (T, K, F, F) at theta (T, K or 1, F)."""
    weights = theta.swapaxes(0, 1)
    total: list[Numbers] = []
    for block in blocks:
        z, y = weights @ block.phi, block.labels  # (K, T, N)
        small = np.exp(-np.abs(z))
        whole = 1 + small
        p = np.where(z >= 0, 1.0, small) / whole
        straight, residual, curve = z.clip(0) - y * z, p - y, p - p * p
        if block.weight is None:
            starts = range(0, z.shape[-1], ROWS)
            logs = [np.log(whole[..., at : at + ROWS].prod(-1)) for at in starts]
            loss = straight.sum(-1) + sum(logs)
        else:
            loss = (block.weight * (straight + np.log(whole))).sum(-1)
            residual, curve = residual * block.weight, curve * block.weight
        sums = [
            loss,
            residual @ block.phi.swapaxes(-1, -2),
            curve @ block.products.swapaxes(-1, -2),
        ]
        total = [old + new for old, new in zip(total, sums, strict=True)] if total else sums
    loss, grad, hess = (value.swapaxes(0, 1) for value in total)
    return loss, grad, hess.reshape(*grad.shape, -1)


@dataclass(frozen=True)
class Problem:
    """A fit (K, F) for each label, pulled towards ``center`` (1, F) with strength ``pull`` (K,).

    Labels that are ``lacking`` (K,) positives or negatives say nothing of slopes: they keep those
    of the center. ``tied`` labels have one slope, which nothing pulls. A ``pull`` (T, K) makes T
    such problems, with their fits one after the other. Without a center it is one fit for all.
    """

    features: Features
    center: Numbers | None = None
    pull: Numbers = field(default_factory=lambda: np.zeros(1))
    lacking: Mask = field(default_factory=lambda: np.zeros(1, np.bool_))
    tied: bool = False

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        lower, upper = self.features.bounds
        if self.tied or self.center is None:
            return lower, upper
        kept = np.broadcast_to(self.lacking, self.pull.shape).reshape(-1, 1) & np.isfinite(upper)
        return np.where(kept, self.center, lower), np.where(kept, self.center, upper)

    def _pulled(self, theta: Numbers) -> tuple[Numbers, Numbers]:
        is_pulled = np.arange(theta.shape[1]) >= self.tied
        away = 0 * theta if self.center is None else theta - self.center
        return self.pull.reshape(-1, 1) * is_pulled, away

    def evaluate(self, blocks: FeatureBlocks, theta: Numbers) -> Derivatives:
        values = derivatives(blocks, theta.reshape(-1, self.pull.shape[-1], theta.shape[-1]))
        if self.center is None:
            loss, grad, hess = (value.sum(1) for value in values)
        else:
            loss, grad, hess = (value.reshape(-1, *value.shape[2:]) for value in values)
        pull, away = self._pulled(theta)
        ridge = pull[:, :, None] * np.eye(away.shape[1])
        return loss + (pull / 2 * away**2).sum(1), grad + pull * away, hess + ridge

    def gradient(self, rows: Rows, theta: Numbers) -> Numbers:
        """Return the gradient (G, F), summed over the raw features in their own precision."""
        features = self.features
        raw, sums = features.unscale(theta), np.zeros((theta.shape[1], rows.num_labels))
        for u, y, w in rows.rows():
            phi, (*weights, constant) = features.raw(u), raw.astype(u.dtype).T
            z = sum((slope * values for slope, values in zip(weights, phi, strict=True)), constant)
            with np.errstate(over="ignore"):
                residual = 1 / (1 + np.exp(-z)) - y
            if w is not None:
                residual *= w
            for f, values in enumerate((*phi, np.ones((), u.dtype))):
                sums[f] += (residual * values).sum(0, dtype=np.float64)
        slopes = (sums[:-1] - features.mean[:, None] * sums[-1]) / features.deviation[:, None]
        total = np.concatenate([slopes, sums[-1:]]).T
        if self.center is None:
            total = total.sum(0, keepdims=True)
        pull, away = self._pulled(theta)
        return total + pull * away

    def summed(self, values: Numbers) -> Numbers:
        if not self.tied:
            return values
        labels = self.pull.shape[-1]
        return np.repeat(values.reshape(-1, labels).sum(1), labels)

    def step(self, theta: Numbers, grad: Numbers, hess: Numbers) -> Numbers:
        """Return the full Newton step (G, F) of the weights that press against no bound."""
        lower, upper = self.bounds
        if self.tied:
            ratio = hess[:, 0, 1] / hess[:, 1, 1]
            left = self.summed(grad[:, 0] - ratio * grad[:, 1])
            slope = left / self.summed(hess[:, 0, 0] - ratio * hess[:, 0, 1])
            slope = slope.clip(theta[:, 0] - upper[0], theta[:, 0] - lower[0])
            return np.stack([slope, grad[:, 1] / hess[:, 1, 1] - ratio * slope], axis=1)
        frozen = ((theta <= lower) & (grad > 0)) | ((theta >= upper) & (grad < 0))
        free = (~frozen).astype(np.float64)
        hess = hess * free[:, :, None] * free[:, None, :]
        # A flat direction (no information left) must not make the system singular.
        floor = 1e-12 * np.diagonal(hess, axis1=1, axis2=2).max(axis=1, keepdims=True) + 1e-12
        system = hess + (floor + (1 - free))[:, :, None] * np.eye(theta.shape[1])
        solved: Numbers = np.linalg.solve(system, (grad * free)[:, :, None])[:, :, 0]
        return solved

    def solve(self, blocks: FeatureBlocks, start: Numbers, tolerance: float) -> Numbers:
        """Search until the next step promises each group a gain below ``tolerance`` nats."""
        bounds, summed = self.bounds, self.summed
        theta = start.clip(*bounds)
        loss, grad, hess = self.evaluate(blocks, theta)
        damping = np.ones_like(loss)
        for _ in range(STEPS):
            trial = (theta - damping[:, None] * self.step(theta, grad, hess)).clip(*bounds)
            promised = summed((grad * (theta - trial)).sum(1))  # below 0: cut at a bound, it climbs
            if (np.abs(promised) <= tolerance).all():
                return trial
            new_loss, new_grad, new_hess = self.evaluate(blocks, trial)
            better = summed(new_loss) <= summed(loss) * (1 + 1e-14)
            theta = np.where(better[:, None], trial, theta)
            loss = np.where(better, new_loss, loss)
            grad = np.where(better[:, None], new_grad, grad)
            hess = np.where(better[:, None, None], new_hess, hess)
            damping = np.where(better, 1.0, damping / 2)
        return theta

    def polish(self, rows: Rows, bins: FeatureBlocks, theta: Numbers, tolerance: float) -> Numbers:
        """Return the weights of the least loss over the rows, from those over their bins."""
        # The bins' Hessian is within a percent: a step leaves about a ten-thousandth of its gain.
        hess = self.evaluate(bins, theta)[2]
        for _ in range(POLISHING):
            grad = self.gradient(rows, theta)
            moved = (theta - self.step(theta, grad, hess)).clip(*self.bounds)
            gain = (grad * (theta - moved)).sum()
            theta = moved
            if gain <= 1e4 * tolerance * len(theta):
                return theta
        return self.solve(self.features.read(rows), theta, tolerance)


def shared_fit(features: Features, blocks: FeatureBlocks, tolerance: float) -> Numbers:
    """Return the fit for all labels, from the better start: the scores as they are, or scaled."""
    # Far from the unit of the scores, Newton steps get lost.
    problem = Problem(features)
    plain = np.append(np.ones_like(features.mean), 0.0)
    as_they_are = np.append(features.deviation, features.mean.sum())
    losses = [problem.evaluate(blocks, theta[None])[0] for theta in (as_they_are, plain)]
    start = np.where((losses[0] <= losses[1])[:, None], as_they_are, plain)
    return problem.solve(blocks, start, tolerance)


def fit(
    entries: Entries, raw: Raw, least: float, scope: str, strength: float | None = None
) -> Numbers:
    """Return the raw weights: (1, F) if "shared", else (K, F); with "offset" of one slope."""
    shared, tied, center = scope == "shared", scope == "offset", None
    parts = compressed(entries, FOLDS if strength is None and not shared else 1)
    rows = joined(parts)
    features = scaled(rows, raw, least)
    blocks, binned = features.read(rows), isinstance(rows, Bins)
    rough = ROUGH if binned else TOLERANCE
    if shared:
        problem, theta = Problem(features), shared_fit(features, blocks, rough)
    else:
        if strength is None:

            def losses(train: list[Rows], test: Rows) -> list[float]:
                seen = features.read(joined(train))
                start, lacking = shared_fit(features, seen, ROUGH), _one_sided(seen)
                pull = np.repeat(np.array(STRENGTHS)[:, None], len(lacking), axis=1)
                each = Problem(features, start, pull, lacking, tied)
                theta = each.solve(seen, np.repeat(start, pull.size, 0), ROUGH)
                held_out = derivatives(features.read(test), theta.reshape(*pull.shape, -1))[0]
                return [float(loss) for loss in held_out.sum(1)]

            # Strengths are a factor ten apart, so wide bins are enough to choose between them.
            coarse = [
                fold.coarser(len(fold.u) // LEAST_BINS) if isinstance(fold, Bins) else fold
                for fold in parts
            ]
            strength = choose(STRENGTHS, coarse, losses)
        center = shared_fit(features, blocks, ROUGH)
        lacking = _one_sided(blocks)
        pull = np.where(lacking, max(strength, 1.0), strength)
        problem = Problem(features, center, pull, lacking, tied)
        theta = problem.solve(blocks, np.repeat(center, len(lacking), 0), rough)
    if binned:
        theta = problem.polish(entries, blocks, theta, TOLERANCE)
    if center is not None and strength == 0:
        theta = np.where(problem.lacking[:, None], center, theta)
    return _checked(theta, features)


def _one_sided(blocks: FeatureBlocks) -> Mask:
    sides = np.zeros(())
    for block in blocks:
        both = np.stack([block.labels, 1 - block.labels])
        sides = sides + (both if block.weight is None else both * block.weight).sum((2, 3))
    return np.asarray((sides == 0).any(0))


def _checked(theta: Numbers, features: Features) -> Numbers:
    fits = "the fit" if len(theta) == 1 else "the fits of {} labels"
    capped = int((theta[:, :-1] >= MAX_SLOPE).any(1).sum())
    flat = int((theta[:, :-1] <= features.least).all(1).sum())
    for labels, sentence in (
        (
            capped,
            "scores separate present from absent entries, so the slope is capped at "
            f"{MAX_SLOPE:g} and probabilities lie near 0 and 1",
        ),
        (flat, "scores do not rise with the labels, so probabilities are flat"),
    ):
        if labels:
            warn(f"{fits.format(labels)}: {sentence}", stacklevel=4)
    return features.unscale(theta)


# Probabilities within groups of labels that exclude each other, fitted to held-out labels.
#
#     z_k = a_g log p_k - b_g log(1 - p_k) + c_k      p: those of the link, g: label k's group
#     exactly-one   exp(z_k) / sum_j exp(z_j)
#     at-most-one   exp(z_k) / (1 + sum_j exp(z_j))
#
# With a = b = 1 and c = 0 this is Bayes' rule for labels that are independent but for the rule. But
# labels whose own p are right know the rule already: a = 1, b = 0 leaves p_k / sum_j p_j.
# So a, b and c are fitted, by the likelihood of what is known of each row,
#
#     P(known) = sum over the outcomes that the known labels leave of their probability,
#
# with a normal prior (mean 0, deviation 1) on log a, log b and c, which keeps a group without rows
# as Bayes' rule has it.

GROUP_STEPS = 200


def within_groups(
    logits: Array,
    labels: Array,
    link: Link,
    columns: AttributeColumns,
    observed: Array | None = None,
) -> Grouped:
    """Return the link whose probabilities obey the groups; rows that break a rule say nothing."""
    check_shapes(logits=logits, labels=labels, observed=observed)
    odds = link.log_odds(to_numpy(logits)).astype(np.float64).clip(-FAR, FAR)
    seen = np.ones(odds.shape, bool)
    if observed is not None:
        seen = as_mask(to_numpy(observed), "observed")
    present = (to_numpy(labels) > 0.5) & seen
    a, b, c = np.ones(odds.shape[1]), np.ones(odds.shape[1]), np.zeros(odds.shape[1])
    for group in columns.groups:
        own = list(group)
        needs_one = group in columns.exactly_one
        fitted = _fit_group(odds[:, own], present[:, own], seen[:, own], needs_one=needs_one)
        a[own], b[own], c[own] = np.exp(fitted[0]), np.exp(fitted[1]), fitted[2:]
    inner = Beta(link, a.tolist(), b.tolist(), c.tolist(), FAR)
    return Grouped(inner, columns.exactly_one, columns.at_most_one)


def _fit_group(odds: Numbers, present: Mask, seen: Mask, *, needs_one: bool) -> Numbers:
    """Return log a, log b and c of each label (2 + n,), from rows (N, n) of a group's labels."""
    from scipy.optimize import minimize

    some = present.any(1, keepdims=True)
    possible = np.where(some, present, ~seen)
    if not needs_one:  # beside the labels, the outcome with none of them, at 0
        possible = np.concatenate([possible, ~some], axis=1)
    told = possible.any(1) & ~possible.all(1) & (present.sum(1) < 2)
    rise, fall, possible = log_sigmoid(odds[told]), log_sigmoid(-odds[told]), possible[told]
    labels = present.shape[1]

    def loss(weights: Numbers) -> tuple[float, Numbers]:
        up, down = np.exp(weights[:2].clip(max=50))
        scores = up * rise - down * fall + weights[2:]
        if not needs_one:
            scores = np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)
        every, left = logsumexp(scores), logsumexp(np.where(possible, scores, -np.inf))
        value = (every - left).sum() + (weights**2).sum() / 2
        slope = np.exp(scores - every) - np.exp(np.where(possible, scores - left, -np.inf))
        slope = slope[:, :labels]
        ends = [(slope * up * rise).sum(), -(slope * down * fall).sum()]
        return float(value), np.append(ends, slope.sum(0)) + weights

    steps = {"maxiter": GROUP_STEPS}
    best = minimize(loss, np.zeros(2 + labels), jac=True, method="BFGS", options=steps)
    return np.asarray(best.x)


# A known change in how many images have none of the labels: a share s where a link was fitted, s'
# in use. If the images of each kind stay as they are, Bayes' rule gives
#
#     r  = (s' / (1 - s')) / (s / (1 - s))
#     p' = p / (1 - q0 + r q0)                 q0: the link's probability that no label is present


class ZeroShare(Link):
    """``p' = p / (1 - q0 + ratio q0)``: ``ratio`` times the odds of no label."""

    kind = "zero share"
    couples_labels = True

    def __init__(self, link: Link, ratio: float) -> None:
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio must be positive and finite, got {ratio}")
        self.link, self.ratio = link, ratio

    def log_probs(self, logits: A) -> tuple[A, A]:
        xp = namespace(logits)
        log_p, log_q = self.link.log_probs(logits)
        log_q0 = xp.minimum(self.link.log_none(logits)[..., None], log_q)
        log_scale = self._log_scale(log_q0)
        # 1 - p' = (q + (ratio - 1) q0) / scale
        if self.ratio >= 1:
            more = log(self.ratio - 1) if self.ratio > 1 else float("-inf")
            rest = xp.logaddexp(log_q, more + log_q0)
        else:
            gone = log_q == float("-inf")
            apart = log_q0 - xp.where(gone, 0.0, log_q)
            rest = xp.where(gone, log_q, log_q + xp.log1p((self.ratio - 1) * xp.exp(apart)))
        # Rounding of the difference can leave it above 0.
        return (log_p - log_scale).clip(max=0), (rest - log_scale).clip(max=0)

    def log_none(self, logits: A) -> A:
        log_q0 = self.link.log_none(logits)
        log_p: A = (log(self.ratio) + log_q0 - self._log_scale(log_q0)).clip(max=0)
        return log_p

    def _log_scale(self, log_q0: A) -> A:
        xp = namespace(log_q0)
        log_scale: A = xp.log1p((self.ratio - 1) * xp.exp(log_q0))
        return log_scale


def expect_zero_share(
    link: Link, labels: Array, share: float, observed: Array | None = None
) -> ZeroShare:
    """Return the link for data of which ``share`` has no label.

    ``labels`` (N, K) say what the share was where the link was fitted; images with nothing
    observed are left out.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie strictly between 0 and 1, got {share}")
    check_shapes(labels=labels, observed=observed)
    present = to_numpy(labels) > 0.5
    if observed is not None:
        seen = as_mask(to_numpy(observed), "observed")
        present = (present & seen)[seen.any(axis=1)]
    empty, count = int((~present.any(axis=1)).sum()), len(present)
    if not 0 < empty < count:
        got = f"{empty} without among {count}"
        raise ValueError(f"images with and without labels are needed for a share, got {got}")
    return ZeroShare(link, share / (1 - share) * (count - empty) / empty)

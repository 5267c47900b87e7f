"""Brier score and log loss of all entries, and what they are made of.

    score       = calibration + refinement + within
    refinement  = uncertainty - resolution

                   Brier                              log loss
    calibration    sum_b w_b (acc_b - conf_b)^2       sum_b w_b KL(acc_b || conf_b)
    resolution     sum_b w_b (acc_b - base)^2         sum_b w_b KL(acc_b || base)
    uncertainty    base (1 - base)                    entropy of base

with w_b = n_b / n and base = share present. Calibration can be mended by a map of the
probabilities, refinement cannot. ``within`` is what the bins hide, since probabilities differ
inside a bin; it shrinks as bins grow. A certain and wrong prediction has infinite log loss, and
is not clipped; ``infinite`` counts such entries. ``brier_sums`` and ``log_loss_sums`` give the sums
behind a score, which merge over shards: ``brier_sums(...).merge(other).score()``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.base.arrays import Array, Floats, Numbers, Values, check_shapes
from labelwise.errors import require
from labelwise.metrics.calibration import CalibrationSums, round_edges, width_edges
from labelwise.metrics.lines import Averaged, entry_blocks


@dataclass(frozen=True)
class ProperScore:
    """A mean score over ``count`` entries, its parts, and the mean of each label."""

    value: float
    calibration: float
    resolution: float
    uncertainty: float
    per_label: Averaged
    count: int
    infinite: int

    @property
    def refinement(self) -> float:
        return self.uncertainty - self.resolution

    @property
    def within(self) -> float:
        return self.value - self.calibration - self.refinement


@dataclass(frozen=True)
class ProperSums:
    """The cells of each label and bin, and sums (K,) of the score itself."""

    kind: Literal["brier", "log loss"]
    cells: CalibrationSums
    totals: Numbers
    infinite: int

    def merge(self, other: "ProperSums") -> "ProperSums":
        require(
            self.kind == other.kind,
            f"sums must be of one score to be merged, got {self.kind} and {other.kind}",
        )
        cells, infinite = self.cells.merge(other.cells), self.infinite + other.infinite
        return ProperSums(self.kind, cells, self.totals + other.totals, infinite)

    def score(self) -> ProperScore:
        divergence, entropy = FORMULAS[self.kind]
        pooled = self.cells.pooled()
        with np.errstate(invalid="ignore", divide="ignore"):
            per_label = Averaged.over(self.totals / self.cells.counts.sum(axis=1), "label")
            count, filled = pooled.counts.sum(), pooled.counts > 0
            base = pooled.present_sums.sum() / count
            weight, truth = pooled.counts[filled], pooled.accuracy[filled]
            return ProperScore(
                value=float(self.totals.sum() / count),
                calibration=float(weight @ divergence(truth, pooled.confidence[filled]) / count),
                resolution=float(weight @ divergence(truth, base) / count),
                uncertainty=float(entropy(base)),
                per_label=per_label,
                count=int(count),
                infinite=self.infinite,
            )


def brier_score(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> ProperScore:
    """Return the mean of (p - y)^2 over the chosen entries."""
    return brier_sums(probs, labels, observed, where=where, bins=bins).score()


def brier_sums(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> ProperSums:
    """Return the sums behind :func:`brier_score`."""
    return _sums("brier", {"probs": probs}, labels, observed, where, bins)


def log_loss(
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> ProperScore:
    """Return the mean of -y log p - (1 - y) log(1 - p), from probabilities."""
    return _sums("log loss", {"probs": probs}, labels, observed, where, bins).score()


def log_loss_from_logs(
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> ProperScore:
    """Return the same from a link's (log p, log(1 - p)), exact where p rounds to 0 or 1."""
    return log_loss_sums(log_p, log_q, labels, observed, where=where, bins=bins).score()


def log_loss_sums(
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    where: Array | None = None,
    bins: int = 10,
) -> ProperSums:
    """Return the sums behind :func:`log_loss_from_logs`."""
    return _sums("log loss", {"log_p": log_p, "log_q": log_q}, labels, observed, where, bins)


def _sums(
    kind: Literal["brier", "log loss"],
    given: dict[str, Array],
    labels: Array,
    observed: Array | None,
    where: Array | None,
    bins: int,
) -> ProperSums:
    shape = check_shapes(**given, labels=labels, observed=observed, where=where)
    cells = CalibrationSums.zeros(shape[1], width_edges(bins))
    edges = round_edges(cells.edges, next(iter(given.values())))
    totals, infinite = np.zeros(shape[1]), 0
    for _, keep, (truth, *sides) in entry_blocks(shape, observed, where, labels, *given.values()):
        label = truth.astype(np.float64)
        prob = sides[0] if len(sides) == 1 else np.exp(sides[0])
        if kind == "brier":
            loss = (prob - label) ** 2
        else:
            present_log, absent_log = _logs(prob) if len(sides) == 1 else sides
            loss = -weighted(label, present_log) - weighted(1 - label, absent_log)
        if keep is not None:
            loss = np.where(keep, loss, 0.0)
        cells.add(prob, label, keep, edges)
        totals += loss.sum(axis=0)
        infinite += int(np.isposinf(loss).sum())
    return ProperSums(kind, cells, totals, infinite)


def _logs(prob: Values) -> tuple[Numbers, Numbers]:
    exact = prob.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(exact), np.log1p(-exact)


def _kl(truth: Numbers, guess: Numbers) -> Numbers:
    guess = np.minimum(guess, 1.0)  # a mean of ones may round above one
    present = weighted(truth, np.log(truth) - np.log(guess))
    return present + weighted(1 - truth, np.log1p(-truth) - np.log1p(-guess))


def _entropy(base: Numbers) -> Numbers:
    return -weighted(base, np.log(base)) - weighted(1 - base, np.log1p(-base))


Formula = Callable[..., Numbers]
FORMULAS: dict[str, tuple[Formula, Formula]] = {  # of (truth, guess), and of the base rate
    "brier": (lambda truth, guess: (truth - guess) ** 2, lambda base: base * (1 - base)),
    "log loss": (_kl, _entropy),
}


def weighted(weight: Values, value: Floats) -> Numbers:
    """Return the product, 0 where the weight is 0 even if the value is infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(weight == 0, 0.0, weight * value)

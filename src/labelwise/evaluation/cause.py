"""Which one cause holds a model back, told from its test and its out-of-fold predictions, or none.

In this order, since a cause hides those below it:

    few test photos      fewer than FEW
    other photos         a linear discriminant of half of the photos tells test photos from training
                         photos of the other half, with an AUC above APART and beyond chance
    few of a label       a label is LACKING in training beside what the test and other labels expect
    wrong labels         the calibrator of the out-of-fold predictions found some
    missing in training  the test finds an error, and TOO_MANY labels come over those expected
    calibration          the test finds probabilities too sure
    missing labels       labels come 1 - m of the time however sure the model is, m > MANY_MISSING,
                         on photos that no fit has seen: P(y) = low + (1 - low - m) sigmoid(a + b x)
    wrong labels         the same curve with a smaller m, or a floor
    few of a label       a label has far fewer training photos than the others

Lines were chosen in simulated worlds (``benchmarks/verdict_worlds.py``), and measured in others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats, Mask, Numbers, Values
from labelwise.base.special import expit
from labelwise.evaluation.evaluation import Cause, Trust
from labelwise.links import Link
from labelwise.predictions import Predictions

FEW = 50  # test photos below which more of them would help most
APART, APART_SURE = 0.65, 3.3  # AUC, and standard errors above 1/2
SURE = 0.01  # p-value of the test of probabilities
CURVED = 0.02  # p-value of a curve with a floor or a ceiling
MANY_MISSING, SOME_MISSING, FLOOR = 0.25, 0.04, 0.004
TOO_SURE, TOO_MANY = 0.75, 1.5  # slope of log-odds; labels that came over those expected
LACKING = 0.3  # of a label's photos that the other labels lead one to expect
RARE, RARER = 8, 3.0  # training photos of a label, and how many times as many the median has
FAR = 30.0  # log-odds
PROJECTED = 128  # dimensions of features that a discriminant is fitted on


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """What is known of the photos that a model was fitted on; None where it is not.

    ``logits`` and ``labels`` (N, K) are out of fold: no photo was judged by a fit that saw it.
    ``positives`` (K,) count the photos of each label in training. ``features`` (N, D) are those of
    training photos, ``test_features`` (M, D) of test photos, one photo of each group. ``wrong`` is
    the share of labels that the calibrator found to say the opposite of the truth.
    """

    logits: Floats | None = None
    labels: Mask | None = None
    observed: Mask | None = None
    positives: NDArray[np.int64] | None = None
    features: Floats | None = None
    test_features: Floats | None = None
    wrong: float = 0.0

    @classmethod
    def of(
        cls, rows: Predictions | None, link: Link | None, positives: Sequence[int] | None
    ) -> "TrainingRows":
        """Return what predictions say of photos that no fit of the weights has seen."""
        counts = None if positives is None else np.asarray(positives)
        if rows is None or link is None:
            return cls(positives=counts)
        log_p, log_q = link.log_probs(rows.logits.astype(np.float64))
        odds = np.clip(log_p - log_q, -FAR, FAR)
        return cls(odds, rows.labels > 0.5, rows.observed, counts)


def likeliest_cause(
    known: NDArray[np.int64],
    present: NDArray[np.int64],
    trust: Trust | None,
    training: TrainingRows,
    names: Sequence[str],
) -> Cause | None:
    """Return the one cause that the data supports, if any.

    ``known`` (K,) test photos tell each label and ``present`` (K,) show it.
    """
    if known.max() < FEW:
        return Cause("few test photos")
    if training.features is not None and training.test_features is not None:
        area, error = told_apart(training.features, training.test_features)
        if area > APART and area - 0.5 > APART_SURE * error:
            return Cause("other photos", amount=area)
    rare = None
    if training.positives is not None:
        counts = np.asarray(training.positives, np.float64)
        fewest = int(np.argmin(counts))
        share = counts / np.maximum(present / np.maximum(known, 1), 0.5 / np.maximum(known, 1))
        if counts[fewest] < RARE:
            rare = Cause("few of a label", names[fewest], counts[fewest])
            if present[fewest] and share[fewest] < LACKING * np.median(share):
                return rare
    if training.wrong:
        return Cause("wrong labels", amount=training.wrong)
    if trust is not None and trust.p_value < SURE and trust.came > TOO_MANY:
        return Cause("missing in training", amount=trust.came)
    if trust is not None and trust.p_value < SURE and trust.slope < TOO_SURE:
        return Cause("calibration", amount=trust.slope)
    if training.logits is not None and training.labels is not None:
        seen = slice(None) if training.observed is None else training.observed.astype(bool)
        entries = (
            np.asarray(side, np.float64)[seen].ravel()
            for side in (training.logits, training.labels)
        )
        curve = floor_and_ceiling(*entries)
        if curve.p_value < CURVED and curve.missing > MANY_MISSING:
            return Cause("missing labels", amount=curve.missing)
        if curve.p_value < CURVED and (curve.missing > SOME_MISSING or curve.low > FLOOR):
            return Cause("wrong labels", amount=max(curve.missing, curve.low))
    if rare is not None and float(np.median(counts)) > RARER * rare.amount:
        return rare
    return None


@dataclass(frozen=True)
class BentCurve:
    """The likeliest share of labels that come without a reason, and that do not come with one."""

    low: float
    missing: float
    p_value: float


def floor_and_ceiling(odds: Numbers, labels: Numbers) -> BentCurve:
    """Fit P(y) = low + (1 - low - missing) sigmoid(a + b odds) to entries (n,)."""
    from scipy.optimize import minimize

    edges = np.quantile(odds, np.linspace(0, 1, 401)[1:-1])
    cell = np.searchsorted(edges, odds)
    count, total, came = (np.bincount(cell, side, len(edges) + 1) for side in (None, odds, labels))
    some = count > 0
    n, y = count[some].astype(np.float64), came[some]
    x = total[some] / n

    def loss(line: Numbers) -> tuple[float, Numbers]:
        curve = expit(line[0] + line[1] * x)
        low = high = 0.0
        if len(line) == 4:
            low, high = 0.5 * expit(line[2]), 0.8 * expit(line[3])
        p = np.clip(low + (1 - low - high) * curve, 1e-9, 1 - 1e-9)
        slope = (n * p - y) / (p * (1 - p))
        by_curve = slope * (1 - low - high) * curve * (1 - curve)
        gradient = [by_curve.sum(), (by_curve * x).sum()]
        if len(line) == 4:
            gradient.append((slope * (1 - curve)).sum() * low * (1 - 2 * low))
            gradient.append(-(slope * curve).sum() * high * (1 - high / 0.8))
        return float(-(y * np.log(p) + (n - y) * np.log1p(-p)).sum()), np.array(gradient)

    plain = minimize(loss, np.array([0.0, 1.0]), jac=True, method="L-BFGS-B")
    starts = (
        np.append(plain.x * steeper, more) for steeper, more in ((1, [-5, -3]), (1.6, [-5, 0]))
    )
    full = min(
        (minimize(loss, start, jac=True, method="L-BFGS-B") for start in starts),
        key=lambda fit: float(fit.fun),
    )
    gained = max(float(plain.fun - full.fun), 0.0)
    low, missing = 0.5 * float(expit(full.x[2])), 0.8 * float(expit(full.x[3]))
    return BentCurve(low, missing, float(np.exp(-gained)))


def told_apart(features: Floats, others: Values) -> tuple[float, float]:
    """Return the AUC of a two-fold linear discriminant of both, and its standard error."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([features, others]).astype(np.float64)
    if rows.shape[1] > PROJECTED:
        rows = rows @ rng.standard_normal((rows.shape[1], PROJECTED))
    side = np.arange(len(rows)) >= len(features)
    half = rng.permutation(len(rows)) % 2 == 0
    areas, variances = [], []
    for fitted in (half, ~half):
        means = [rows[fitted & (side == which)].mean(0) for which in (False, True)]
        spread = np.cov(rows[fitted].T)
        spread += 0.1 * np.trace(spread) / len(spread) * np.eye(len(spread))
        scores = rows[~fitted] @ np.linalg.solve(spread, means[1] - means[0])
        test = side[~fitted]
        order = np.argsort(np.argsort(scores)) + 1.0
        high, low = int(test.sum()), int((~test).sum())
        areas.append((order[test].sum() - high * (high + 1) / 2) / max(high * low, 1))
        variances.append((high + low + 1) / (12 * max(high * low, 1)))
    return float(np.mean(areas)), float(np.sqrt(sum(variances)) / 2)

"""Probabilities within groups of labels that exclude each other, fitted to held-out labels.

    z_k = a_g log p_k - b_g log(1 - p_k) + c_k      p: probabilities of the link, g: label k's group
    exactly-one   exp(z_k) / sum_j exp(z_j)
    at-most-one   exp(z_k) / (1 + sum_j exp(z_j))

With a = b = 1 and c = 0 this is Bayes' rule for labels that are independent but for the rule. But
labels whose own probabilities are right know the rule already: a = 1, b = 0 leaves p_k / sum_j p_j.
So a, b and c are fitted, by the likelihood of what is known of each row,

    P(known) = sum over the outcomes that the known labels leave of their probability,

with a normal prior (mean 0, deviation 1) on log a, log b and c, which keeps a group without rows
as Bayes' rule has it.
"""

from math import log

import numpy as np

from labelwise.calibration.regression import Beta
from labelwise.links import Grouped, Link
from labelwise.numeric.array_api import A, log_sigmoid, logsumexp, namespace
from labelwise.numeric.arrays import Array, Mask, Numbers, as_mask, check_shapes, to_numpy
from labelwise.taxonomy import FAR, AttributeColumns

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


STEPS = 200


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

    best = minimize(loss, np.zeros(2 + labels), jac=True, method="BFGS", options={"maxiter": STEPS})
    return np.asarray(best.x)

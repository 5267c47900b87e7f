"""Shrunken Platt scaling: for each label a slope and an offset, as far as its rows speak for them.

    p_k = sigma(a_k u + b_k)
    (a_k, b_k)  normal around the shared (a, b), deviations .25 and .5
    (a, b)      normal around the identity (1, 0), deviations .3 and .5

With few rows the probabilities stay nearly as they are. No choice is made, so none can go wrong: on
three sets choosing among calibrators by one standard error cost up to .006 log loss.

People make mistakes. Where a share e of the labels says the opposite of the truth,

    P(label says present) = e + (1 - 2 e) sigma(a_k u + b_k)

and sigma(a_k u + b_k) is the probability of the truth. e is 0 unless the likelihood of the labels
gains LEAST_GAIN by another (classification noise: Angluin and Laird 1988).
"""

from dataclasses import dataclass

import numpy as np

from labelwise.base.arrays import Array, Numbers
from labelwise.base.special import expit, fit_slope_and_offset
from labelwise.calibration.entries import read_entries
from labelwise.calibration.regression import Platt
from labelwise.links import Link

SHARED = 1 / np.array([0.3, 0.5]) ** 2  # precisions of the shared slope and offset
OF_LABEL = 1 / np.array([0.25, 0.5]) ** 2
LEAST_SLOPE = 0.02
RATES = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2)  # of labels that may be wrong
LEAST_GAIN = 3.0  # nats
MOST = 1 << 21  # entries that the shared fit reads


@dataclass(frozen=True)
class LabelErrors:
    """The share of labels that says the opposite of the truth, and the nats that it gains."""

    rate: float
    gain: float

    def __str__(self) -> str:
        """A sentence, empty where no errors were found."""
        if not self.rate:
            return ""
        return (
            f"About {max(1, round(100 * self.rate))} of 100 labels look wrong. Probabilities are "
            "those of right labels. This lists the labels to check"
        )


def shrunken(
    logits: Array, labels: Array, link: Link | None = None, observed: Array | None = None
) -> Platt:
    """Return the Platt link of each label, shrunk to the shared one, that to the identity."""
    return shrunken_with_errors(logits, labels, link, observed)[0]


def shrunken_with_errors(
    logits: Array, labels: Array, link: Link | None = None, observed: Array | None = None
) -> tuple[Platt, LabelErrors]:
    """Return the shrunken Platt link, and how many labels seem to be wrong."""
    entries = read_entries(logits, labels, link, observed)
    parts = entries.whole()
    errors = find_errors(*parts)
    slope, offset = shrunken_lines(*parts, errors.rate).T.tolist()
    return Platt(link, slope, offset, entries.limit), errors


def find_errors(odds: Numbers, labels: Numbers, known: Numbers) -> LabelErrors:
    """Return the share of wrong labels of the best likelihood; soft labels have none."""
    step = max(1, odds.size // MOST)
    odds, labels, known = odds[::step], labels[::step], known[::step]
    if ((labels > 0) & (labels < 1)).any():
        return LabelErrors(0.0, 0.0)

    def loss(rate: float) -> float:
        slope, offset = shrunken_lines(odds, labels, known, rate).T
        p = rate + (1 - 2 * rate) * expit(slope * odds + offset)
        right = np.where(labels > 0.5, p, 1 - p)
        return -float((known * np.log(np.maximum(right, 1e-12))).sum())

    clean = least = loss(0.0)
    best = 0.0
    for rate in RATES:
        found = loss(rate)
        if found > least:
            break
        best, least = rate, found
    gain = clean - least
    return LabelErrors(best, gain) if gain >= LEAST_GAIN else LabelErrors(0.0, 0.0)


def shared_line(odds: Numbers, labels: Numbers, known: Numbers, flipped: float = 0.0) -> Numbers:
    """Return the slope and offset (2,) of all labels, shrunk to the identity."""
    step = max(1, odds.size // MOST)
    u, y, w = (side.reshape(-1)[::step] for side in (odds, labels, known))
    return fit_slope_and_offset(u, y, SHARED, weight=w, flipped=flipped)[0]


def shrunken_lines(odds: Numbers, labels: Numbers, known: Numbers, flipped: float = 0.0) -> Numbers:
    """Return slopes and offsets (K, 2) for log-odds, labels and known entries, each (N, K)."""
    shared = shared_line(odds, labels, known, flipped)
    step = max(1, MOST // max(len(odds), 1))
    parts = []
    for first in range(0, odds.shape[1], step):
        some = slice(first, first + step)
        sides = odds[:, some], labels[:, some], OF_LABEL, shared
        weight = known[:, some]
        parts.append(fit_slope_and_offset(*sides, weight=weight, flipped=flipped)[0])
    lines = np.concatenate(parts)
    lines[:, 0] = lines[:, 0].clip(LEAST_SLOPE)
    return lines

"""One label noted per photo: what the probabilities are, and how many labels photos show.

Let the labels of a photo be independent, and the noted one drawn evenly from those it shows. With
log-odds u_k of "k is noted" by a head that knows no better,

    p_k = sigmoid(a u_k + b)                                        the photo shows k
    P(k is noted) = p_k int_0^1 prod_{j != k} (1 - p_j + p_j t) dt  = p_k E[1 / (1 + others shown)]
    P(nothing is noted) = prod_j (1 - p_j)

The integral is a Gauss-Legendre sum. Where every photo has a noted label, all is given that one is
shown. For b -> -infinity these are softmax(a u): photos that show one label each. So the likelihood
of the noted labels says whether photos show several, and ``sigmoid(a u + b)`` what their
probabilities are. With Elkan and Noto's p / c (2008), c the mean p where k is noted, photos of one
label that are hard to recognise look like photos of several.

Few photos say little, so log a is normal around 0 with deviation .5, and b above 1 around 1 with
deviation 1.5. Without these, 16 to 50 photos could say that every photo shows every label.
"""

from dataclasses import dataclass

import numpy as np

from labelwise.base.arrays import Array, Numbers
from labelwise.base.special import expit
from labelwise.calibration.entries import read_entries
from labelwise.calibration.regression import Platt
from labelwise.calibration.shrunken import shrunken_lines
from labelwise.links import Link

SEVERAL = 1.2  # labels per photo: above it photos seem to show more than the noted one
LEAST_GAIN = 3.0  # nats over photos of one label each
LEAST_OFFSET = -20.0
SLOPE_ERROR = 0.5  # standard deviation of log a
SHIFT, SHIFT_ERROR = 1.0, 1.5  # b above SHIFT has this standard deviation
NODES = 8
MOST = 1 << 18  # entries that the fit reads
TINY = 1e-12


@dataclass(frozen=True)
class Shown:
    """How many labels a photo seems to show, and the nats by which that is likelier than one."""

    labels_per_photo: float
    gain: float

    @property
    def several(self) -> bool:
        return self.labels_per_photo >= SEVERAL and self.gain >= LEAST_GAIN

    def sentence(self) -> str:
        return (
            "Only one label per photo was noted, though photos seem to show "
            f"{self.labels_per_photo:.1f}. The table is treated as partly labelled; "
            "say `--labels-are complete --fresh` if each photo has just one."
        )


def noted_once(labels: Array, observed: Array | None = None) -> bool:
    """Return whether no photo has more than one label noted, and most have one."""
    present = np.asarray(labels) if observed is None else np.asarray(labels) * np.asarray(observed)
    sizes = present.sum(1)
    return bool(present.shape[1] > 1 and (sizes <= 1).all() and sizes.mean() > 0.5)


def shown_link(logits: Array, labels: Array, link: Link | None = None) -> tuple[Platt, Shown]:
    """Return the link to probabilities that a label is shown, and how many labels seem to be.

    ``labels`` (N, K) are 1 where a label was noted, at most one in a row.
    """
    entries = read_entries(logits, labels, link, None)
    odds, noted, known = entries.whole()
    lines = shrunken_lines(odds, noted, known)
    odds = odds * lines[:, 0] + lines[:, 1]
    rows = slice(None, None, max(1, -(-odds.size // MOST)))
    slope, offset, shown = _likeliest(odds[rows], noted[rows])
    slopes, offsets = (slope * lines[:, 0]).tolist(), (slope * lines[:, 1] + offset).tolist()
    return Platt(link, slopes, offsets, entries.limit), shown


def _likeliest(odds: Numbers, noted: Numbers) -> tuple[float, float, Shown]:
    """Return the slope and offset of the best likelihood, and how many labels they say."""
    from scipy.optimize import minimize

    points, weights = np.polynomial.legendre.leggauss(NODES)
    left = (1 - points) / 2  # 1 - t
    some = noted.sum(1) > 0
    which, every = noted[some].argmax(1), bool(some.all())
    best = np.empty(0)

    def chances(line: Numbers) -> tuple[Numbers, Numbers]:
        p = expit(np.exp(line[0]) * odds + max(line[1], LEAST_OFFSET)).clip(TINY, 1 - 1e-9)
        return p, np.log1p(-p).sum(1)

    def loss(line: Numbers) -> float:
        p, none = chances(line)
        shown = p[some]
        own = shown[np.arange(len(shown)), which]
        drawn = np.zeros(len(shown))
        for weight, part in zip(weights / 2, left, strict=True):
            drawn += weight * np.exp(np.log1p(-part * shown).sum(1)) / (1 - part * own)
        likely = np.log(np.maximum(own * drawn, TINY)).sum()
        rest = -np.log(-np.expm1(none)).sum() if every else none[~some].sum()
        shift = max(line[1] - SHIFT, 0.0)  # photos of one label have b = -infinity
        return float(
            ((line[0] / SLOPE_ERROR) ** 2 + (shift / SHIFT_ERROR) ** 2) / 2 - likely - rest
        )

    def exclusive(line: Numbers) -> float:
        v = np.exp(line[0]) * odds + (0.0 if every else line[1])
        top = v.max(1, initial=0.0)
        none = 0.0 if every else np.exp(-top)
        total = top + np.log(np.exp(v - top[:, None]).sum(1) + none)
        return float(total.sum() - v[some, which].sum() + (line[0] / SLOPE_ERROR) ** 2 / 2)

    best = minimize(loss, [0.0, 1.0], method="Nelder-Mead", options={"fatol": 0.05}).x
    one = minimize(exclusive, [0.0, 0.0], method="Nelder-Mead", options={"fatol": 0.05}).fun
    sizes = chances(best)[0].sum(1)
    return (
        float(np.exp(best[0])),
        max(float(best[1]), LEAST_OFFSET),
        Shown(
            float(sizes.mean() / (1.0 if every else max(some.mean(), TINY))),
            float(one) - loss(best),
        ),
    )

"""Intervals of means over labels, from how much each image moves them.

    U_m      = d value / d weight of image m, at equal weights
    interval = value +- 1.96 sqrt(sum_m U_m^2)

This is the infinitesimal jackknife, the limit of the bootstrap over images, in one pass and with
the labels of an image kept together. For average precision with C_i entries, T_i positives and
precision P_i = T_i / C_i at or above positive i, n positives in all, ties grouped:

    U_m = [y_m (P_m - AP) + sum over positives i at or below m of (y_m - P_i) / C_i] / n

For F1 = 2 TP / D with D = 2 TP + FP + FN:  U_m = [2 tp_m - F1 (y_m + s_m)] / D, and for a mean
sum x_m / sum w_m:  U_m = (x_m - mean w_m) / sum w.
"""

from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "ap_influence",
    "macro_f1_influence",
    "mean_ap_influence",
    "mean_influence",
    "normal_interval",
]

Floats = NDArray[np.float64]


def normal_interval(
    value: float | None, influence: Floats, highest: float = 1.0
) -> tuple[float | None, float | None]:
    """Return the 95 % interval, cut to [0, highest]; ``None`` twice where it is undefined."""
    if value is None or influence.size < 2:
        return None, None
    half = 1.959964 * sqrt(float(influence @ influence))
    return max(0.0, value - half), min(highest, value + half)


def mean_influence(sums: Floats, counts: NDArray[Any]) -> Floats:
    """Return U (N,) of sum of ``sums`` / sum of ``counts``, what each image adds to both."""
    total = float(counts.sum())
    if total == 0 or not np.isfinite(sums).all():
        return np.zeros(len(sums))  # the mean is undefined, and so is its interval
    influence: Floats = (sums - sums.sum() / total * counts) / total
    return influence


def ap_influence(scores: NDArray[np.floating[Any]], present: NDArray[np.bool_]) -> Floats:
    """Return U (n,) of one label's average precision; it needs at least one positive."""
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order]
    opens = np.append(True, score[1:] != score[:-1])
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    last = np.append(np.flatnonzero(opens)[1:], len(score))[np.cumsum(opens) - 1] - 1
    above = last + 1.0
    precision = np.cumsum(hit)[last] / above
    positives = int(hit.sum())
    value = precision[hit].sum() / positives
    share = np.where(hit, 1 / above, 0.0)
    below = np.cumsum(share[::-1])[::-1][first]
    loss = np.cumsum((share * precision)[::-1])[::-1][first]
    influence = np.empty(len(score))
    influence[order] = (hit * (precision - value + below) - loss) / positives
    return influence


def mean_ap_influence(scores: Tensor, present: Tensor, known: Tensor | None) -> Floats:
    """Return U (N,) of the mean average precision over the labels that have one."""
    total = np.zeros(len(scores))
    labels = 0
    for column in range(scores.shape[1]):
        rows = slice(None) if known is None else known[:, column].numpy()
        hits = present[:, column].numpy()[rows]
        if hits.any():
            total[rows] += ap_influence(scores[:, column].numpy()[rows], hits)
            labels += 1
    return total / max(labels, 1)


def macro_f1_influence(sets: Tensor, present: Tensor, known: Tensor | None) -> Floats:
    """Return U (N,) of the mean F1 over the labels that are present or chosen somewhere."""
    chosen = sets if known is None else sets & known
    both = (chosen & present).sum(0).double()
    size = chosen.sum(0).double() + present.sum(0).double()
    weight = torch.where(size > 0, 1 / size.clamp(min=1), 0.0) / max(int((size > 0).sum()), 1)
    score = torch.where(size > 0, 2 * both / size.clamp(min=1), 0.0)
    gain, cost = (2 * weight).float(), (weight * score).float()
    hit = (chosen & present).float() @ gain
    spent = chosen.float() @ cost + present.float() @ cost
    influence: Floats = (hit - spent).double().numpy()
    return influence

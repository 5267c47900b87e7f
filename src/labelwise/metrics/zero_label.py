"""Images with no label at all: does the model keep quiet, and can it tell them apart?

    MMC          mean over zero-label (OUT) images of max_k p
    AUROC        P(an IN image outscores an OUT image), ties one half
    FPR@95       share of OUT images accepted when the threshold accepts 95 % of the IN images
    false alarm  share of zero-label images that are given a label
    nothing here log prod_k (1 - p_k), the log-probability of no label if labels were independent

"Reviewed, none of them" is not "unlabelled": an image counts as zero-label only if every one of
its labels is observed and absent.
"""

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.lines import Averaged, Lines, blocks, entry_blocks, read
from labelwise.metrics.ranking import micro_auroc
from labelwise.numeric.arrays import (
    Array,
    as_mask,
    check_probabilities,
    check_shapes,
    present_labels,
    to_numpy,
)


def zero_label_rows(labels: Array, observed: Array | None = None) -> NDArray[np.bool_]:
    """Return (N,): the images all of whose labels are observed and absent."""
    rows, columns = check_shapes(labels=labels, observed=observed)
    zero = np.empty(rows, dtype=np.bool_)
    for block, mask, (label,) in entry_blocks((rows, columns), observed, None, labels):
        present = present_labels(label, mask)
        zero[block] = ~present.any(axis=1) & (True if mask is None else mask.all(axis=1))
    return zero


def max_confidence(probs: Array) -> NDArray[np.float64]:
    """Return max_k p of every image, (N,); its mean over OUT images is MMC."""
    rows, columns = check_shapes(probs=probs)
    top = np.empty(rows)
    for block in blocks(rows, columns):
        prob = read(probs, block, "image")
        check_probabilities(prob, "probs")
        top[block] = prob.max(axis=1)
    return top


def top_accuracy(scores: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return the share of images whose top label (ties: lower index) is present: IN accuracy.

    Images without a present label are left out.
    """

    def of(lines: Lines) -> NDArray[np.float64]:
        top = lines.scores == np.fmax.reduce(lines.scores, axis=1, keepdims=True)
        hit = np.take_along_axis(lines.present, top.argmax(axis=1)[:, None], axis=1)[:, 0]
        return np.where(lines.present.any(axis=1), hit, np.nan)

    return Averaged.of_lines(of, scores, labels, observed, "image")


def separation_auroc(inside: Array, outside: Array) -> float:
    """Return the chance that an IN score (n,) exceeds an OUT score (m,), ties one half."""
    high, low = _vector(inside, "inside"), _vector(outside, "outside")
    labels = np.arange(len(high) + len(low)) < len(high)
    return micro_auroc(np.concatenate([high, low])[:, None], labels[:, None])


def false_positive_rate_at(inside: Array, outside: Array, recall: float = 0.95) -> float:
    """Return the share of OUT scores at or above the highest threshold with this recall of IN."""
    if not 0 < recall <= 1:
        raise ValueError(f"recall must lie in (0, 1], got {recall}")
    high, low = _vector(inside, "inside"), _vector(outside, "outside")
    if not len(high) or not len(low):
        return float("nan")
    accepted = max(1, ceil(recall * len(high) - 1e-9))  # 0.95 * 20 must not round up to 20
    threshold = np.sort(high)[len(high) - accepted]
    return float(np.count_nonzero(low >= threshold) / len(low))


def false_alarm_rate(sets: Array, labels: Array, observed: Array | None = None) -> Averaged:
    """Return whether each zero-label image was given a label; other images are left out."""
    rows, columns = check_shapes(sets=sets, labels=labels, observed=observed)
    alarm = np.empty(rows, dtype=np.bool_)
    for block in blocks(rows, columns):
        alarm[block] = as_mask(read(sets, block, "image"), "sets").any(axis=1)
    return Averaged.over(np.where(zero_label_rows(labels, observed), alarm, np.nan), "image")


def nothing_here(log_q: Array) -> NDArray[np.float64]:
    """Return sum_k log(1 - p_k) of every image, (N,), from a link's log(1 - p)."""
    rows, columns = check_shapes(log_q=log_q)
    score = np.empty(rows)
    for part in blocks(rows, columns):
        block = read(log_q, part, "image")
        if not (block <= 0).all():
            raise ValueError(f"log(1 - p) must be at most 0, got {block.max()}")
        score[part] = block.sum(axis=1, dtype=np.float64)
    return score


def _vector(scores: Array, name: str) -> NDArray[Any]:
    vector = to_numpy(scores)
    if vector.ndim != 1 or np.isnan(vector).any():
        raise ValueError(f"{name} must be (n,) without NaN, got shape {vector.shape}")
    return vector

"""Slow, obvious loops that the metrics are checked against, and data made to be awkward."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def lines(scores, labels, observed, by):
    """Yield (scores, labels) of the observed entries of each label or image, as lists."""
    if by == "label":
        scores, labels, observed = scores.T, labels.T, observed.T
    for row in range(len(scores)):
        keep = observed[row]
        yield scores[row][keep].tolist(), labels[row][keep].tolist()


def ap_tied(scores, labels):
    if sum(labels) == 0:
        return float("nan")
    points = [(0.0, 0.0), *points_of(scores, labels)]
    return sum((now - before) * p for (before, _), (now, p) in pairwise(points))


def ap_untied(scores, labels):
    if sum(labels) == 0:
        return float("nan")
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    ranks = [rank for rank, index in enumerate(order, 1) if labels[index]]
    return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(ranks)


def points_of(scores, labels):
    """Yield recall and precision at each threshold, from the highest."""
    for threshold in sorted(set(scores), reverse=True):
        taken = [y for s, y in zip(scores, labels, strict=True) if s >= threshold]
        yield sum(taken) / sum(labels), sum(taken) / len(taken)


def ap_voc(scores, labels):
    if sum(labels) == 0:
        return float("nan")
    points = [(0.0, 0.0), *points_of(scores, labels)]
    steps = enumerate(pairwise(recall for recall, _ in points), 1)
    return sum((now - before) * max(p for _, p in points[at:]) for at, (before, now) in steps)


def auroc(scores, labels):
    positives = [s for s, y in zip(scores, labels, strict=True) if y]
    negatives = [s for s, y in zip(scores, labels, strict=True) if not y]
    if not positives or not negatives:
        return float("nan")
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    return wins / len(positives) / len(negatives)


def coverage(scores, labels):
    positives = [s for s, y in zip(scores, labels, strict=True) if y]
    return sum(s >= min(positives) for s in scores) if positives else float("nan")


def one_error(scores, labels):
    if not sum(labels):
        return float("nan")
    top = [y for s, y in zip(scores, labels, strict=True) if s == max(scores)]
    return 1 - sum(top) / len(top)


def bins_of(probs, labels, edges):
    """Return per bin the list of (p, y) with lo < p <= hi, and p = 0 in the first."""
    found = [[] for _ in edges[1:]]
    for p, y in zip(probs, labels, strict=True):
        for index, (low, high) in enumerate(pairwise(edges)):
            if low < p <= high or (p == 0 and index == 0):
                found[index].append((p, y))
                break
    return found


def calibration_errors(probs, labels, edges):
    """Return ECE, ACE, MCE of flat lists."""
    gaps, sizes = [], []
    for entries in bins_of(probs, labels, edges):
        if entries:
            conf, acc = (sum(column) / len(entries) for column in zip(*entries, strict=True))
            gaps.append(abs(acc - conf))
            sizes.append(len(entries))
    if not gaps:
        return (float("nan"),) * 3
    ece = sum(g * n for g, n in zip(gaps, sizes, strict=True)) / sum(sizes)
    return ece, sum(gaps) / len(gaps), max(gaps)


def problem(seed, rows, columns, *, levels=7, unknown=0.2, rate=0.3):
    """Return (scores, labels, observed): ties, zero-label rows, empty and full columns, 0 and 1."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels + 1, (rows, columns)) / levels
    labels = (random.random((rows, columns)) < rate).astype(np.int64)
    observed = random.random((rows, columns)) >= unknown
    labels[random.random(rows) < 0.2] = 0
    labels[:, random.random(columns) < 0.15] = 0
    labels[:, random.random(columns) < 0.1] = 1
    observed[random.random(rows) < 0.1] = False
    observed[:, random.random(columns) < 0.05] = False
    return scores, labels, observed


PROBLEMS = st.builds(
    problem,
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 14),
    columns=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 5, 10, 1000]),
    unknown=st.sampled_from([0.0, 0.2, 0.9]),
    rate=st.sampled_from([0.1, 0.5, 0.9]),
)

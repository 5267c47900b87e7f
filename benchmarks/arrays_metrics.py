"""mAP over labels, mAP over images, and calibration of every label and pooled in one pass."""

from functools import cache, partial

import numpy as np
import torch
import torchmetrics.functional.classification as tm
from measure import Contender, compare
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score
from torchmetrics.classification import BinaryCalibrationError

from labelwise.metrics import CalibrationSums, average_precision, width_edges

MANY_LABELS = (20_000, 1_000, 36.0)  # as in a collection with scenes, parts and attributes
SIZES = ((40_137, 80, 2.9), (50_000, 1_000, 5.0), (5_000, 10_000, 10.0))
BINS = 15
SOME_LABELS = 40


@cache
def problem(rows, columns, labels_per_image):
    """Return float32 scores, true probabilities and uint8 labels, with a long tail of rare labels.

    A score is normal, two higher if the label is present; the probability is its posterior.
    """
    random = np.random.default_rng(0)
    prior = 1 / np.arange(1, columns + 1) ** 0.8
    prior = np.minimum(prior * labels_per_image / prior.sum(), 0.6).astype(np.float32)
    labels = np.empty((rows, columns), dtype=np.uint8)
    scores = np.empty((rows, columns), dtype=np.float32)
    for start in range(0, rows, 1000):
        block = slice(start, start + 1000)
        shape = labels[block].shape
        labels[block] = random.random(shape, dtype=np.float32) < prior
        noise = random.standard_normal(shape, dtype=np.float32)
        scores[block] = 2 * (noise + 2 * labels[block]) - 2 + np.log(prior / (1 - prior))
    probs = 1 / (1 + np.exp(-scores))
    return scores, probs, labels


def sizes(quick, *more):
    for rows, columns, labels_per_image in (*SIZES[: 1 if quick else None], *more):
        scores, probs, labels = problem(rows, columns, labels_per_image)
        yield f"{rows:,} x {columns:,}", scores, probs, labels
        problem.cache_clear()


def agree(mine, peer, theirs):
    """scikit-learn counts undefined as 0 (labels) or 1 (images): put that back, then compare."""
    value, defined, items, instead = mine
    if peer == "sklearn":
        expected = (value * defined + instead * (items - defined)) / items
        np.testing.assert_allclose(expected, theirs, rtol=1e-9)


def mean_and_counts(scores, labels, by, instead):
    found = average_precision(scores, labels, by=by)
    return found.value, found.num_defined, len(found.items), instead


def map_class(quick):
    rows = []
    for size, scores, _, labels in sizes(quick):
        tensors = torch.from_numpy(scores), torch.from_numpy(labels)
        peers = [
            Contender("sklearn", lambda s=scores, y=labels: average_precision_score(y, s)),
            Contender("torchmetrics", partial(tm_average_precision, *tensors)),
        ]
        ours = Contender("ours", partial(mean_and_counts, scores, labels, "label", 0.0), 3)
        rows += compare("mAP over labels", size, ours, peers, goal=8, check=agree)
    return rows


def tm_average_precision(scores, labels):
    return tm.multilabel_average_precision(scores, labels, scores.shape[1]).item()


def map_sample(quick):
    rows = []
    for size, scores, _, labels in sizes(quick, MANY_LABELS):
        tensors = torch.from_numpy(scores), torch.from_numpy(labels)
        peers = [
            Contender("sklearn", partial(label_ranking_average_precision_score, labels, scores)),
            Contender("torchmetrics", partial(tm_ranking, *tensors)),
        ]
        ours = Contender("ours", partial(mean_and_counts, scores, labels, "image", 1.0), 3)
        rows += compare("mAP over images", size, ours, peers, goal=12, check=agree)
    return rows


def tm_ranking(scores, labels):
    found = tm.multilabel_ranking_average_precision(scores, labels, scores.shape[1])
    return found.item()


def calibration(quick):
    """Peers: a metric a label updated with every batch, as in an evaluation loop; and one call a
    label on whole columns, the best that can be made of it. Both are linear in the labels."""
    rows = []
    for size, _, probs, labels in sizes(quick):
        columns = probs.shape[1]
        tensors = torch.from_numpy(probs), torch.from_numpy(labels)
        scale = columns / SOME_LABELS
        peers = [
            Contender("torchmetrics, batches of 256", partial(tm_batches, *tensors), scale=scale),
            Contender("torchmetrics, columns", partial(tm_loop, *tensors), scale=scale, goal=10),
        ]
        ours = Contender("ours", partial(both_errors, probs, labels), 3)
        rows += compare("ECE per label + pooled", size, ours, peers, goal=20, check=close)
    return rows


def both_errors(probs, labels):
    sums = CalibrationSums.zeros(probs.shape[1], width_edges(BINS))
    sums.update(probs, labels)
    return float(sums.pooled().ece()), sums.per_label().ece()[:SOME_LABELS]


def tm_batches(probs, labels):
    each = [BinaryCalibrationError(n_bins=BINS) for _ in range(SOME_LABELS)]
    for batch in range(0, len(probs), 256):
        part = slice(batch, batch + 256)
        for k, metric in enumerate(each):
            metric.update(probs[part, k], labels[part, k])
    return [metric.compute().item() for metric in each]


def tm_loop(probs, labels):
    return [
        tm.binary_calibration_error(probs[:, k], labels[:, k], n_bins=BINS).item()
        for k in range(SOME_LABELS)
    ]


def close(mine, _, theirs):
    np.testing.assert_allclose(mine[1], theirs, atol=2e-4)  # theirs are float32 sums


PARTS = {"map-class": map_class, "map-sample": map_sample, "calibration": calibration}

"""mAP, calibration of every label, and Platt scaling beside their peers, one thread throughout.

    python benchmarks/arrays.py [--quick]

``--quick`` measures the smallest size of each. Peers are scikit-learn and torchmetrics; what takes
one call a label is measured on some labels, and scaled. The answers of both must agree.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torchmetrics.functional.classification as tm
from measure import Contender, compare
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score

from labelwise.calibration import platt
from labelwise.links import Sigmoid
from labelwise.metrics import CalibrationSums, average_precision, width_edges

torch.set_num_threads(1)
SIZES = ((40_137, 80, 2.9), (50_000, 1_000, 5.0), (5_000, 10_000, 10.0))
BINS, SOME = 15, 40
Problem = tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]


def problems(count: int) -> Iterator[Problem]:
    """Yield the size, float32 scores, their probabilities and uint8 labels, many of them rare.

    A score is normal, two higher if the label is present; the probability is its posterior.
    """
    for rows, columns, mean in SIZES[:count]:
        random = np.random.default_rng(0)
        prior = 1 / np.arange(1, columns + 1) ** 0.8
        prior = np.minimum(prior * mean / prior.sum(), 0.6).astype(np.float32)
        labels = (random.random((rows, columns), np.float32) < prior).view(np.uint8)
        scores = random.standard_normal((rows, columns), np.float32)
        scores += 2 * labels
        scores = 2 * scores - 2 + np.log(prior / (1 - prior))
        yield f"{rows}-x-{columns}", scores, 1 / (1 + np.exp(-scores)), labels


def mean_ap(scores: NDArray[Any], labels: NDArray[Any], by: str, undefined: float) -> float:
    """Return our mean as scikit-learn counts: an undefined label is 0 there, an image 1."""
    found = average_precision(scores, labels, by=by)
    every = len(found.items)
    return (found.value * found.num_defined + undefined * (every - found.num_defined)) / every


def ranking(size: str, scores: NDArray[Any], probs: NDArray[Any], labels: NDArray[Any]) -> None:
    tensors, count = (torch.from_numpy(scores), torch.from_numpy(labels)), labels.shape[1]
    close = partial(np.testing.assert_allclose, rtol=1e-9)
    per_label, per_image = "map-over-labels", "map-over-images"
    ours = partial(mean_ap, scores, labels, "label", 0.0)
    peer = Contender(f"{size}-sklearn", lambda: average_precision_score(labels, scores))
    compare(per_label, ours, [peer], close)
    peer = Contender(
        f"{size}-torchmetrics",
        lambda: tm.multilabel_average_precision(*tensors, count).item(),
    )
    compare(per_label, ours, [peer])  # which leaves labels without positives out otherwise
    ours = partial(mean_ap, scores, labels, "image", 1.0)
    call = partial(label_ranking_average_precision_score, labels, scores)
    compare(per_image, ours, [Contender(f"{size}-sklearn", call)], close)


def errors(size: str, scores: NDArray[Any], probs: NDArray[Any], labels: NDArray[Any]) -> None:
    tensors, count = (torch.from_numpy(probs), torch.from_numpy(labels)), labels.shape[1]

    def ours() -> list[float]:
        sums = CalibrationSums.zeros(count, width_edges(BINS))
        sums.update(probs, labels)
        return [float(sums.pooled().ece()), *sums.per_label().ece().tolist()]

    def theirs() -> list[float]:
        pairs = ((tensors[0][:, k], tensors[1][:, k]) for k in range(SOME))
        return [tm.binary_calibration_error(*pair, n_bins=BINS).item() for pair in pairs]

    np.testing.assert_allclose(ours()[1 : SOME + 1], theirs(), atol=2e-4)  # theirs are float32
    peer = Contender(f"{size}-torchmetrics-columns", theirs, count / SOME)
    compare("ece-per-label-pooled", ours, [peer])


def scaling(size: str, scores: NDArray[Any], probs: NDArray[Any], labels: NDArray[Any]) -> None:
    count = labels.shape[1]
    columns = np.linspace(0, count - 1, SOME // 2).astype(int)

    def ours(strength: float | None) -> tuple[Any, Any]:
        link = platt(scores, labels, Sigmoid(), strength=strength)
        return link.slope, link.offset

    def theirs(inputs: NDArray[Any], **options: float) -> NDArray[Any]:
        pairs = ((inputs[:, k : k + 1], labels[:, k]) for k in columns)
        fits = [LogisticRegression(**options).fit(*pair) for pair in pairs]
        return np.array([(fit.coef_[0, 0], fit.intercept_[0]) for fit in fits]).T

    exact = theirs(scores.astype(np.float64), C=np.inf, tol=1e-8, max_iter=1000)
    for one, other in zip(ours(0.0), exact, strict=True):
        np.testing.assert_allclose(one[columns], other, rtol=1e-4, atol=1e-4)
    scale, call = count / len(columns), partial(theirs, scores, C=1e6)
    loop = f"{size}-sklearn-loop-c-1e6"
    compare("per-label-platt", lambda: ours(0.0), [Contender(loop, call, scale)])
    peer = Contender(f"{loop}-no-strength", call, scale)
    compare("platt-strength-chosen", lambda: ours(None), [peer])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for measured, sizes in ((ranking, 1), (errors, 3), (scaling, 2)):
        for problem in problems(1 if quick else sizes):
            measured(*problem)


if __name__ == "__main__":
    main()

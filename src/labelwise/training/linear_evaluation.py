"""Linear evaluation: a linear classifier on frozen features, for 45 L2 weights.

    minimise over W, b:   sum over rows and labels of the loss   +   l2 / 2 ||W||^2

with l2 log-spaced in [1e-6, 1e5] (the bias is free), the sigmoid loss of each label or, for one
label a row, the softmax loss. The path goes from the strongest weight to the weakest, each fit
starting where the last ended, to the optimum (:mod:`labelwise.training.solve`). The weight is
chosen on validation and judged on test.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.data import LabelTable
from labelwise.errors import DataError
from labelwise.metrics import average_precision
from labelwise.networks.heads import LinearHead
from labelwise.objectives.convex import CoinLoss, ConvexLoss, ShareLoss
from labelwise.pictures import FeatureRows
from labelwise.training.solve import Design, minimise
from labelwise.types import Targets

TOLERANCE = 1e-10  # of the loss may be left to gain
L2_WEIGHTS = tuple(float(weight) for weight in np.logspace(-6, 5, 45))


@dataclass(frozen=True, eq=False)
class LinearFit:
    """One classifier: logits = features W + b, with the L2 weight it was fitted under."""

    l2: float
    weight: Tensor  # (D, K)
    bias: Tensor  # (K,)

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        return features.to(self.weight) @ self.weight + self.bias

    def head(self) -> LinearHead:
        """Return the classifier as the head of a model."""
        head = LinearHead(*self.weight.shape)
        with torch.no_grad():
            head.classifier.weight.copy_(self.weight.T)
            head.classifier.bias.copy_(self.bias)
        return head


@dataclass(frozen=True, eq=False)
class LinearEvaluation:
    """The fit chosen on validation, the score of every weight there, and its score on test."""

    best: LinearFit
    metric: str
    validation: dict[float, float]
    test: float


def linear_path(
    features: Tensor,
    labels: Tensor,
    observed: Tensor | None = None,
    *,
    softmax: bool = False,
    l2_weights: Sequence[float] = L2_WEIGHTS,
) -> list[LinearFit]:
    """Return one fit per L2 weight, from the strongest to the weakest; computed in float64.

    For softmax the labels of a row share its weight equally, and rows without any stay out. Of
    entries that are not observed none is used.
    """
    design = Design.of(features, standardise=False)
    targets = Targets(labels.double(), None if observed is None else observed.bool())
    made: ConvexLoss = ShareLoss.of(targets) if softmax else CoinLoss.of(targets)
    loss = made.to(design.rows).bounded()
    w = design.rows.new_zeros(design.rows.shape[1], loss.num_labels)
    fits = []
    for l2 in sorted(l2_weights, reverse=True):
        w = minimise(design, loss, torch.full((1, loss.num_labels), l2), w, tolerance=TOLERANCE)
        fits.append(LinearFit(l2, *design.linear(w)))
    return fits


def linear_evaluation(
    train: LabelTable,
    val: LabelTable,
    test: LabelTable,
    *,
    softmax: bool = False,
    device: torch.device | str = "cpu",
    l2_weights: Sequence[float] = L2_WEIGHTS,
) -> LinearEvaluation:
    """Return the classifier of the train features that is best on validation, and its test score.

    The score is the mean average precision over labels, or for softmax the top-1 accuracy.
    """
    fits = linear_path(*_arrays(train, device), softmax=softmax, l2_weights=l2_weights)
    score = _accuracy if softmax else _mean_average_precision
    validation = {fit.l2: score(fit, *_arrays(val, device)) for fit in fits}
    best = max(fits, key=lambda fit: validation[fit.l2])
    metric = "top-1 accuracy" if softmax else "mAP over labels"
    return LinearEvaluation(best, metric, validation, score(best, *_arrays(test, device)))


def accuracies(
    train: LabelTable,
    judged: LabelTable,
    *,
    device: torch.device | str = "cpu",
    l2_weights: Sequence[float] = L2_WEIGHTS,
) -> dict[float, float]:
    """Return the top-1 accuracy on ``judged`` of the softmax fit of each L2 weight."""
    fits = linear_path(*_arrays(train, device), softmax=True, l2_weights=l2_weights)
    arrays = _arrays(judged, device)
    return {fit.l2: _accuracy(fit, *arrays) for fit in fits}


def _arrays(table: LabelTable, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor | None]:
    if not isinstance(table.images, FeatureRows) or table.images.features.ndim != 2:
        raise DataError(f"{table.name} must hold pooled features (N, D) for linear evaluation")
    table.require_hard("linear evaluation counts what is right")
    labels, observed = table.targets()
    known = None if observed is None else torch.from_numpy(observed).to(device)
    features = torch.from_numpy(np.array(table.images.features))
    return features.to(device), torch.from_numpy(labels).to(device), known


def _mean_average_precision(
    fit: LinearFit, features: Tensor, labels: Tensor, observed: Tensor | None
) -> float:
    return average_precision(fit.logits(features), labels, observed).value


def _accuracy(fit: LinearFit, features: Tensor, labels: Tensor, observed: Tensor | None) -> float:
    """Return how often the likeliest label is present, over rows with any label."""
    present = labels.bool() if observed is None else labels.bool() & observed
    chosen = fit.logits(features).argmax(1, keepdim=True)
    some = present.any(1)
    return present.gather(1, chosen)[some].double().mean().item()

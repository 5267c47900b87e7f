"""Generalised pseudo-label robust loss (GPR) for single positives: Tran et al., ICCV 2025.

A second model, such as one of texts and images, guesses some of the unknown labels. With p =
sigmoid(v), and the chance k(p), weight m(p) and schedule of GR (``generalized_robust``):

    known            softplus(-v) at present, softplus(v) at absent labels
    unknown          as GR has it
    guessed present  clip(1 - m(p), low, high) (r softplus(-v) + (1 - r) softplus(v))     r = 0.9
    guessed absent   m(p) softplus(v)
    and of a batch   weight ((k^ - k) / K)^2       k^ the mean number of labels it expects (EPR)

averaged over all entries; m and k(p) are constants in the gradient. The numbers are those of the
authors' settings for MS-COCO: k(p) = sigmoid(w p + b) with w from 0 to 10 and b from -2 to -8, m as
in GR, low = 0.5, high = 0.7, weight = 0.001. Their code looks for the guesses again in every step,
on crops of the picture; here they are given once. It also draws guesses of absence, but writes 0
for them where it means -1, so that they are never used. ``guessed_labels`` makes guesses of the
scores of whole pictures, as Xing et al. do (VLPL): a share of the softmax over labels, of which
they try 0.1 to 0.3.

With complete labels and weight = 0 this is cross-entropy, proper under a sigmoid. With labels
missing it is not: no data says how far the guesses are off.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.cross_entropy import bce_loss
from labelwise.objectives.expected_positives import expected_positives
from labelwise.objectives.generalized_robust import GeneralizedRobust
from labelwise.types import Outputs, Targets


def guessed_labels(scores: Tensor, *, present: float = 0.3, absent: float = 0.0) -> Tensor:
    """Return guesses (N, K): 1 present, -1 absent, 0 none, from scores (N, K) of texts.

    A label is guessed present if its softmax among the labels of its image is at least
    ``present``, absent if it is among the lowest share ``absent`` of them. Scores are the logits
    of such a model: cosines times its scale.
    """
    if scores.ndim != 2:
        raise ValueError(f"scores must be (N, K), got shape {tuple(scores.shape)}")
    if not 0 < present <= 1 or not 0 <= absent < 1:
        raise ValueError(
            f"present must lie in (0, 1] and absent in [0, 1), got {present} and {absent}"
        )
    shares = torch.softmax(scores.double(), dim=1)
    place = shares.argsort(dim=1, stable=True).argsort(dim=1)
    lowest = place < int(absent * scores.shape[1])
    return (shares >= present).to(torch.int8) - (lowest & (shares < present)).to(torch.int8)


class PseudoLabelRobust(Objective):
    """GR with guesses (N, K) of unknown labels, by training image: 1 present, -1 absent, 0 none.

    ``k`` is the mean number of labels of an image; ``trust`` is r, ``low`` and ``high`` bound the
    weight of a guessed presence, and ``weight`` is that of the expected number of labels.
    """

    reads_unknown = True
    soft_labels = False
    couples_batch = True
    guesses: Tensor

    def __init__(
        self,
        guesses: Tensor,
        k: float,
        *,
        trust: float = 0.9,
        low: float = 0.5,
        high: float = 0.7,
        weight: float = 0.001,
        epochs: int = 8,
    ) -> None:
        super().__init__(Sigmoid())
        if guesses.ndim != 2 or not torch.isin(guesses, guesses.new_tensor([-1, 0, 1])).all():
            raise ValueError(
                "guesses must be (N, K) of -1, 0 and 1, got "
                f"{guesses.dtype} {tuple(guesses.shape)}; guessed_labels makes them of scores"
            )
        if not 0 <= trust <= 1 or not 0 <= low <= high:
            raise ValueError(
                f"trust must lie in [0, 1] and 0 <= low <= high, got {trust}, {low} and {high}"
            )
        if k <= 0 or weight < 0:
            raise ValueError(f"k must be positive and weight not negative, got {k} and {weight}")
        self.k, self.trust, self.low, self.high, self.weight = k, trust, low, high, weight
        self.robust = GeneralizedRobust(
            len(guesses), slope_last=10.0, offset_last=-8.0, epochs=epochs
        )
        self.register_buffer("guesses", guesses.to(torch.int8))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits, observed = outputs.logits, targets.observed
        unknown, counts = self.robust.unknown(logits)
        losses = bce_loss(logits, targets.labels)
        if observed is not None:
            if targets.index is None:
                raise ValueError("gpr has guesses of images, so targets need their index")
            guessed = self.guesses[targets.index]
            absent = softplus(logits)
            mixed = self.trust * softplus(-logits) + (1 - self.trust) * absent
            unknown = torch.where(guessed < 0, counts * absent, unknown)
            sure = (1 - counts).clamp(self.low, self.high)
            unknown = torch.where(guessed > 0, sure * mixed, unknown)
            losses = torch.where(observed, losses, unknown)
        excess = (expected_positives(logits) - self.k) / logits.shape[1]
        return losses.mean() + self.weight * excess.square()

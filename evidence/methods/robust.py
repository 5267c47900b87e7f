"""GR (Chen et al., IJCAI 2024) and GPR, with guesses (Tran et al., ICCV 2025).

`labelwise compare --methods FILE:GeneralizedRobust`; GPR needs guesses, and so a program.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.errors import require
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import EpochsSeen, row_numbers
from labelwise.learn.objectives.cross_entropy import bce_loss
from labelwise.learn.objectives.missing_labels import expected_positives
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

# Generalised robust loss (GR) for single positives: Chen et al., IJCAI 2024.
#
#     known     softplus(-v) at present, softplus(v) at absent labels
#     unknown   m(p) (k(p) (1 - p^a) / a + (1 - k(p)) (1 - (1 - p)^c) / c)      a = 0.01, c = 1
#     k(p)      sigmoid(w p + b)                the chance that an unknown label is present
#     m(p)      exp(-(p - u)^2 / (2 s^2))       how much the entry counts
#
# averaged over all entries, p = sigmoid(v). k and m are constants in the gradient. After t whole
# epochs of T (8), w runs from 0 to 2 and b stays at -2, both at t / T; u runs from 0.5 to 0.8 and s
# from 2 to 0.5, both at (t + 1) / T. From then on they stay.


def tempered_log(neg_log: Tensor, exponent: float) -> Tensor:
    """Return ``(1 - p^exponent) / exponent`` where ``neg_log`` is -log p."""
    return -torch.expm1(-exponent * neg_log) / exponent


class GeneralizedRobust(Objective):
    """Mean of cross-entropy at known labels and, at unknown ones, a mixture of two robust losses.

    ``_first`` and ``_last`` name the values of k's slope w and offset b and of m's centre u and
    width s at the first and the last of ``epochs`` epochs; ``present_exponent`` is a,
    ``absent_exponent`` c.
    """

    reads_unknown = True
    soft_labels = True

    def __init__(
        self,
        num_images: int,
        *,
        present_exponent: float = 0.01,
        absent_exponent: float = 1.0,
        slope_first: float = 0.0,
        slope_last: float = 2.0,
        offset_first: float = -2.0,
        offset_last: float = -2.0,
        centre_first: float = 0.5,
        centre_last: float = 0.8,
        width_first: float = 2.0,
        width_last: float = 0.5,
        epochs: int = 8,
    ) -> None:
        super().__init__(Sigmoid())
        exponents = {"present_exponent": present_exponent, "absent_exponent": absent_exponent}
        for name, value in exponents.items():
            require(0 < value <= 1, f"{name} must lie in (0, 1], got {value}")
        for name, value in (("width_first", width_first), ("width_last", width_last)):
            require(value > 0, f"{name} must be positive, got {value}")
        require(epochs >= 1, f"epochs must be at least 1, got {epochs}")
        self.present_exponent, self.absent_exponent = present_exponent, absent_exponent
        self.slope, self.offset = (slope_first, slope_last), (offset_first, offset_last)
        self.centre, self.width = (centre_first, centre_last), (width_first, width_last)
        self.over = epochs
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        known, (unknown, _) = bce_loss(outputs.logits, targets.labels), self.unknown(outputs.logits)
        observed = targets.observed
        return (known if observed is None else torch.where(observed, known, unknown)).mean()

    def unknown(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return what entries cost (B, K) that are unknown, and m(p); count the batch as seen."""
        done = self.epochs(logits).to(logits)
        before, within = ((done + ahead).div(self.over).clamp(max=1) for ahead in (0, 1))
        p = torch.sigmoid(logits.detach())
        chance = torch.sigmoid(_between(self.slope, before) * p + _between(self.offset, before))
        far = (p - _between(self.centre, within)) / _between(self.width, within)
        present = tempered_log(softplus(-logits), self.present_exponent)
        absent = tempered_log(softplus(logits), self.absent_exponent)
        counts = torch.exp(-far.square() / 2)
        return counts * (chance * present + (1 - chance) * absent), counts


def _between(ends: tuple[float, float], part: Tensor) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * part


# Generalised pseudo-label robust loss (GPR) for single positives: Tran et al., ICCV 2025.
#
# A second model, such as one of texts and images, guesses some of the unknown labels. With p =
# sigmoid(v), and the chance k(p), weight m(p) and schedule of GR (``generalized_robust``):
#
#     guessed present  clip(1 - m(p), low, high) (r softplus(-v) + (1 - r) softplus(v))     r = 0.9
#     guessed absent   m(p) softplus(v)
#     and of a batch   weight ((k^ - k) / K)^2       k^ the mean number of labels it expects (EPR)
#
# other entries as GR has them, with the authors' settings for MS-COCO: w from 0 to 10, b from -2 to
# -8, low = 0.5, high = 0.7, weight = 0.001. Guesses are given once.


def guessed_labels(scores: Tensor, *, present: float = 0.3, absent: float = 0.0) -> Tensor:
    """Return guesses (N, K): 1 present, -1 absent, 0 none, from scores (N, K) of texts.

    A label is guessed present if its softmax among the labels of its image is at least
    ``present`` (Xing et al. try 0.1 to 0.3), absent if it is among the lowest share ``absent`` of
    them. Scores are the logits of such a model: cosines times its scale.
    """
    require(scores.ndim == 2, f"scores must be (N, K), got shape {tuple(scores.shape)}")
    require(
        0 < present <= 1 and 0 <= absent < 1,
        f"present must lie in (0, 1] and absent in [0, 1), got {present} and {absent}",
    )
    shares = torch.softmax(scores.double(), dim=1)
    lowest = shares.argsort(dim=1, stable=True).argsort(dim=1) < int(absent * scores.shape[1])
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
        require(
            guesses.ndim == 2 and torch.isin(guesses, guesses.new_tensor([-1, 0, 1])).all(),
            f"guesses must be (N, K) of -1, 0 and 1, got {guesses.dtype} {tuple(guesses.shape)}; "
            "guessed_labels makes them of scores",
        )
        require(
            0 <= trust <= 1 and 0 <= low <= high,
            f"trust must lie in [0, 1] and 0 <= low <= high, got {trust}, {low} and {high}",
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
            guessed = self.guesses[row_numbers(targets, "gpr has guesses of images")]
            absent = softplus(logits)
            mixed = self.trust * softplus(-logits) + (1 - self.trust) * absent
            unknown = torch.where(guessed < 0, counts * absent, unknown)
            sure = (1 - counts).clamp(self.low, self.high)
            unknown = torch.where(guessed > 0, sure * mixed, unknown)
            losses = torch.where(observed, losses, unknown)
        excess = (expected_positives(logits) - self.k) / logits.shape[1]
        return losses.mean() + self.weight * excess.square()

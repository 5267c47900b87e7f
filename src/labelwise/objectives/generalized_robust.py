"""Generalised robust loss (GR) for single positives: Chen et al., IJCAI 2024.

    known     softplus(-v) at present, softplus(v) at absent labels
    unknown   m(p) (k(p) (1 - p^a) / a + (1 - k(p)) (1 - (1 - p)^c) / c)      a = 0.01, c = 1
    k(p)      sigmoid(w p + b)                the chance that an unknown label is present
    m(p)      exp(-(p - u)^2 / (2 s^2))       how much the entry counts

averaged over all entries, p = sigmoid(v). k and m are constants in the gradient. After t whole
epochs of T, w runs from 0 to 2 and b stays at -2, both at t / T; u runs from 0.5 to 0.8 and s from
2 to 0.5, both at (t + 1) / T. From then on they stay. An exponent near 0 makes a cross-entropy of
the half it belongs to, 1 a linear price that wrong guesses cannot pull on without end.

The authors' code settles the numbers, the two paces and that k and m are constants; T, 8 epochs
there, is the option ``epochs``. They know no absences, and those that are known are ours to read:
as cross-entropy does.

With complete labels this is cross-entropy, strictly proper under a sigmoid. With labels missing it
is not: k is a guess of what the network believes, and no data says how far it is off.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.cross_entropy import bce_loss
from labelwise.objectives.epochs_seen import EpochsSeen
from labelwise.types import Outputs, Targets


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
        for name, value in (
            ("present_exponent", present_exponent),
            ("absent_exponent", absent_exponent),
        ):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {value}")
        for name, value in (("width_first", width_first), ("width_last", width_last)):
            if value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        self.present_exponent, self.absent_exponent = present_exponent, absent_exponent
        self.slope, self.offset = (slope_first, slope_last), (offset_first, offset_last)
        self.centre, self.width = (centre_first, centre_last), (width_first, width_last)
        self.over = epochs
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        known = bce_loss(outputs.logits, targets.labels)
        unknown, _ = self.unknown(outputs.logits)
        if targets.observed is None:
            return known.mean()
        return torch.where(targets.observed, known, unknown).mean()

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

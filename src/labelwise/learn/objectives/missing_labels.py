"""Losses for labels that are partly unknown: read as absent, or revised in training."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.base.convex import CoinLoss, ConvexLoss
from labelwise.errors import require
from labelwise.learn.objectives.base import (
    EpochsSeen,
    Objective,
    Per,
    masked_mean,
    one_of,
)
from labelwise.learn.objectives.cross_entropy import bce_loss
from labelwise.links import Sigmoid
from labelwise.types import DatasetFacts, Outputs, Targets

# Learning from single positive labels: Cole et al., CVPR 2021 (MLSPL).
#
# Of most images one present label is known (P) and the rest is unknown. These losses *read* unknown
# entries (``reads_unknown``): their label is 0, and they count in every mean; only IU tells known
# absent from unknown. Terms added to them still leave unknown entries out. With f = sigmoid(v),
# nl = -log, one value per entry, averaged over all B K entries:
#
#             at P                          elsewhere
#     AN      nl(f)                         nl(1-f)                                unknown = absent
#     AN-LS   (1-s) nl(f) + s nl(1-f)       (1-s) nl(1-f) + s nl(f)                s = 0.1
#     WAN     nl(f)                         nl(1-f) / (K-1)
#     PR      sum_j not in P (1 - f + f_j)  0
#     IU      nl(f)                         nl(1-f) at observed absent, 0 at unknown
#     BCE-LS  as AN-LS with complete labels; unknown entries leave the sum and the denominator
#
# IUN, the paper's bound with oracle negatives, is IU on data whose unknown entries are the hidden
# positives. PR's hinge is never cut off, because f lies in [0, 1]: its sum over pairs takes O(K).
# Garcin et al. average WAN over images (eq. 5, there called AN): ``per="image"`` is K times
# ``per="entry"``. The public code takes nl(p) = -log(p + 1e-5): ``eps_mode="code"``.

EpsMode = Literal["stable", "code"]
LOG_EPS = 1e-5


def neg_logs(logits: Tensor, eps_mode: EpsMode = "stable") -> tuple[Tensor, Tensor]:
    """Return ``(nl(f), nl(1-f))``, each (B, K), exact or with the public code's eps."""
    if eps_mode == "stable":
        return softplus(-logits), softplus(logits)
    return -(torch.sigmoid(logits) + LOG_EPS).log(), -(torch.sigmoid(-logits) + LOG_EPS).log()


def smoothed_bce_loss(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, eps_mode: EpsMode = "stable"
) -> Tensor:
    """Return the (B, K) cross-entropy to labels moved towards 1/2; AN, AN-LS, BCE-LS."""
    present, absent = neg_logs(logits, eps_mode)
    smooth = labels + smoothing * (1 - 2 * labels)
    return smooth * present + (1 - smooth) * absent


def wan_loss(logits: Tensor, labels: Tensor, eps_mode: EpsMode = "stable") -> Tensor:
    """Return the (B, K) cross-entropy in which all absent labels together weigh one present."""
    present, absent = neg_logs(logits, eps_mode)
    return labels * present + (1 - labels) / max(labels.shape[1] - 1, 1) * absent


def pr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (B,) sum of ``max(0, 1 - f_p + f_j)`` over positives p and unobserved j."""
    probs = torch.sigmoid(logits)
    positives, others = labels.sum(dim=1), (1 - labels).sum(dim=1)
    below = others * (labels * (1 - probs)).sum(dim=1)
    return below + positives * ((1 - labels) * probs).sum(dim=1)


class AN(Objective):
    """Assume negative: what is not known to be present is taken as absent."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, smoothing: float = 0.0, eps_mode: EpsMode = "stable") -> None:
        super().__init__(Sigmoid())
        self.smoothing, self.eps_mode = _smoothing(smoothing), one_of("eps_mode", eps_mode, EpsMode)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        labels = targets.labels
        return smoothed_bce_loss(outputs.logits, labels, self.smoothing, self.eps_mode).mean()

    def convex(self, targets: Targets) -> ConvexLoss[Tensor] | None:
        labels = _known(targets)
        smooth = labels + self.smoothing * (1 - 2 * labels)
        return CoinLoss(smooth, 1 - smooth) if self.eps_mode == "stable" else None


class WAN(Objective):
    """Weak assume negative: the assumed negatives of an image weigh as much as one positive."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, per: Per = "entry", eps_mode: EpsMode = "stable") -> None:
        super().__init__(Sigmoid())
        self.per, self.eps_mode = one_of("per", per, Per), one_of("eps_mode", eps_mode, EpsMode)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = wan_loss(outputs.logits, targets.labels, self.eps_mode)
        return loss.mean() if self.per == "entry" else loss.sum(dim=1).mean()

    def convex(self, targets: Targets) -> ConvexLoss[Tensor] | None:
        labels = _known(targets)
        absent = (1 - labels) / max(labels.shape[1] - 1, 1)
        return CoinLoss(labels, absent) if self.eps_mode == "stable" else None


class PR(Objective):
    """Pairwise ranking of probabilities: known positives above everything else."""

    default_link = Sigmoid()
    reads_unknown = True

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        return pr_loss(outputs.logits, targets.labels).mean() / outputs.logits.shape[1]


class IU(Objective):
    """Ignore unobserved: cross-entropy at known entries, 0 at unknown, mean over all entries."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, eps_mode: EpsMode = "stable") -> None:
        super().__init__(Sigmoid())
        self.eps_mode = one_of("eps_mode", eps_mode, EpsMode)

    def shares_read(self, facts: DatasetFacts) -> tuple[float, ...] | None:
        return facts.known_shares()  # unknown entries have no loss

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = smoothed_bce_loss(outputs.logits, targets.labels, 0.0, self.eps_mode)
        if targets.observed is not None:
            loss = torch.where(targets.observed, loss, 0.0)
        return loss.mean()

    def convex(self, targets: Targets) -> ConvexLoss[Tensor] | None:
        return CoinLoss.of(targets.labels, targets.observed) if self.eps_mode == "stable" else None


class SmoothedBCE(Objective):
    """Cross-entropy with label smoothing over the observed entries (BCE-LS)."""

    soft_labels = True

    def __init__(self, *, smoothing: float = 0.1, eps_mode: EpsMode = "stable") -> None:
        super().__init__(Sigmoid())
        self.smoothing, self.eps_mode = _smoothing(smoothing), one_of("eps_mode", eps_mode, EpsMode)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = smoothed_bce_loss(outputs.logits, targets.labels, self.smoothing, self.eps_mode)
        return masked_mean(loss, targets.observed)

    def convex(self, targets: Targets) -> ConvexLoss[Tensor] | None:
        smooth = targets.labels + self.smoothing * (1 - 2 * targets.labels)
        loss = CoinLoss.of(smooth, targets.observed)
        return loss if self.eps_mode == "stable" else None


def _known(targets: Targets) -> Tensor:
    labels, observed = targets.labels, targets.observed
    return labels if observed is None else torch.where(observed, labels, 0.0)


def _smoothing(value: float) -> float:
    require(0 <= value < 0.5, f"smoothing must lie in [0, 0.5), got {value}")
    return value


# Expected positive regularisation (EPR): Cole et al. 2021; Garcin et al., eq. 8.
#
# With k^ = mean_i sum_j f_ij, the mean number of labels the model expects in an image:
#
#     per="entry" (Cole)     sum_P nl(f) / (B K)  +  weight ((k^ - k) / K)^2
#     per="image" (Garcin)   sum_P nl(f) / B      +  weight  (k^ - k)^2          weight is beta
#
# k, the true mean number of labels of an image, is known side information.


def expected_positives(logits: Tensor) -> Tensor:
    """Return the scalar k^: the mean over images of the summed probabilities."""
    return torch.sigmoid(logits).sum(dim=1).mean()


class EPR(Objective):
    """Cross-entropy at the observed positives, and the mean number of labels held near k."""

    couples_batch = True
    reads_unknown = True

    def __init__(
        self, k: float, *, weight: float = 1.0, per: Per = "entry", eps_mode: EpsMode = "stable"
    ) -> None:
        super().__init__(Sigmoid())
        if k <= 0 or weight < 0:
            raise ValueError(f"k must be positive and weight not negative, got {k} and {weight}")
        self.k, self.weight = k, weight
        self.per, self.eps_mode = one_of("per", per, Per), one_of("eps_mode", eps_mode, EpsMode)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, _ = neg_logs(outputs.logits, self.eps_mode)
        size = outputs.logits.shape[1] if self.per == "entry" else 1
        likelihood = (targets.labels * present).sum(dim=1).mean() / size
        excess = (expected_positives(outputs.logits) - self.k) / size
        return likelihood + self.weight * excess.square()


# Large losses betray missing labels: LL-R, Kim et al., CVPR 2022.
#
# Unknown labels are read as absent (``reads_unknown``), under cross-entropy. After the first epoch
# the largest losses among the unknown entries of a batch are likely to be labels that are missing.
# The n = ceil(r t B K) largest are dropped: r = 0.002, after t whole epochs. Losses as large as the
# n-th go the same way. The mean runs over all B K entries.


def largest_unknown(losses: Tensor, unknown: Tensor, count: Tensor) -> Tensor:
    """Return which unknown entries are among the ``count`` largest, those that tie included."""
    of_unknown = torch.where(unknown, losses, float("-inf"))
    falling = of_unknown.flatten().sort(descending=True).values
    last = (count - 1).clamp(0, losses.numel() - 1)
    least = falling.gather(0, last.view(1))  # an index that a compiler can trace
    return unknown & (of_unknown >= least) & (count > 0)


class LargeLoss(Objective):
    """Mean cross-entropy, the largest losses of unknown labels rejected."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True

    def __init__(self, num_images: int, *, rate: float = 0.002) -> None:
        super().__init__(Sigmoid())
        require(0 <= rate < 1, f"rate must lie in [0, 1), got {rate}")
        self.rate = rate
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        share = (self.rate * self.epochs(loss).float()).clamp(max=1)
        if targets.observed is None:
            return loss.mean()
        count = torch.ceil(share * loss.numel()).long()
        missing = largest_unknown(loss.detach(), ~targets.observed, count)
        return torch.where(missing, 0.0, loss).mean()

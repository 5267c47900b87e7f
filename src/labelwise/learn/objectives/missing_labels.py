"""Losses for labels that are partly unknown: read as absent, or revised in training."""

from math import ceil
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from labelwise.base.convex import CoinLoss, ConvexLoss
from labelwise.errors import require
from labelwise.learn.objectives.base import (
    EpochsSeen,
    Objective,
    Per,
    masked_mean,
    one_of,
    row_numbers,
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


# Large losses betray missing labels: LL-R, LL-Ct and LL-Cp, Kim et al., CVPR 2022.
#
# Unknown labels are read as absent (``reads_unknown``), under cross-entropy. After the first epoch
# the largest losses among the unknown entries of a batch are likely to be labels that are missing:
#
#     n      = ceil(r t B K)                     r = 0.002, after t whole epochs
#     LL-R   drops the n largest losses of unknown entries
#     LL-Ct  takes these entries as present in this step
#     LL-Cp  takes ceil(r B K) of them as present for good, from the second epoch on
#
# Losses as large as the n-th go the same way. The mean runs over all B K entries.

Correction = Literal["reject", "correct"]


def largest_unknown(losses: Tensor, unknown: Tensor, count: Tensor) -> Tensor:
    """Return which unknown entries are among the ``count`` largest, those that tie included."""
    of_unknown = torch.where(unknown, losses, float("-inf"))
    falling = of_unknown.flatten().sort(descending=True).values
    last = (count - 1).clamp(0, losses.numel() - 1)
    least = falling.gather(0, last.view(1))  # an index that a compiler can trace
    return unknown & (of_unknown >= least) & (count > 0)


class LargeLoss(Objective):
    """Mean cross-entropy, the largest losses of unknown labels rejected or corrected."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True

    def __init__(
        self, num_images: int, *, rate: float = 0.002, correction: Correction = "reject"
    ) -> None:
        super().__init__(Sigmoid())
        require(0 <= rate < 1, f"rate must lie in [0, 1), got {rate}")
        self.rate, self.correction = rate, one_of("correction", correction, Correction)
        self.epochs = EpochsSeen(num_images)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        share = (self.rate * self.epochs(loss).float()).clamp(max=1)
        if targets.observed is None:
            return loss.mean()
        count = torch.ceil(share * loss.numel()).long()
        missing = largest_unknown(loss.detach(), ~targets.observed, count)
        present = bce_loss(outputs.logits, torch.ones_like(loss))
        return torch.where(missing, present if self.correction == "correct" else 0.0, loss).mean()


class LargeLossForGood(Objective):
    """LL-Cp: mean cross-entropy; unknown labels of the largest losses become present for good."""

    reads_unknown = True
    soft_labels = True
    couples_batch = True
    taken: Tensor

    def __init__(self, num_images: int, num_labels: int, *, rate: float = 0.002) -> None:
        super().__init__(Sigmoid())
        require(0 <= rate < 1, f"rate must lie in [0, 1), got {rate}")
        self.rate = rate
        self.epochs = EpochsSeen(num_images)
        self.register_buffer("taken", torch.zeros(num_images, num_labels, dtype=torch.bool))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        epochs = self.epochs(outputs.logits)
        if targets.observed is None:
            return bce_loss(outputs.logits, targets.labels).mean()
        index = row_numbers(targets, "ll-cp remembers labels of images")
        taken = self.taken[index]
        loss = bce_loss(outputs.logits, torch.where(taken, 1.0, targets.labels))
        count = torch.full_like(epochs, ceil(self.rate * loss.numel())) * (epochs > 0)
        missing = largest_unknown(loss.detach(), ~targets.observed & ~taken, count)
        if self.training:
            self.taken[index] = taken | missing
        return torch.where(missing, bce_loss(outputs.logits, torch.ones_like(loss)), loss).mean()


# Acknowledging the unknown by maximal entropy (EM): Zhou et al., ECCV 2022.
#
#     known     softplus(-v) at present, softplus(v) at absent labels
#     unknown   -a H(p),  H(p) = -p log p - (1 - p) log(1 - p)           a = 0.1
#
# averaged over all entries. The ranking is right, but a sigmoid calls every label likelier than
# not.


def negative_entropy(logits: Tensor) -> Tensor:
    """Return ``p log p + (1 - p) log(1 - p)`` of every logit."""
    p = torch.sigmoid(logits)
    return p * logsigmoid(logits) + (1 - p) * logsigmoid(-logits)


class EntropyMaximisation(Objective):
    """Cross-entropy at known labels; at unknown ones ``alpha`` times the negative entropy."""

    reads_unknown = True
    soft_labels = True

    def __init__(self, *, alpha: float = 0.1) -> None:
        super().__init__(Sigmoid())
        require(alpha >= 0, f"alpha must not be negative, got {alpha}")
        self.alpha = alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        loss = bce_loss(outputs.logits, targets.labels)
        if targets.observed is not None:
            unknown = self.alpha * negative_entropy(outputs.logits)
            loss = torch.where(targets.observed, loss, unknown)
        return loss.mean()


# Entropy maximisation with asymmetric pseudo-labels (EM + APL): Zhou et al., ECCV 2022.
#
#     pseudo    b (-q log p - (1 - q) log(1 - p))                       b = 0.9, their MS-COCO
#
# beside EM's known and unknown entries. After every epoch from the ``wait``-th on (5) the unknown
# entries of each label with the lowest p become pseudo-labels: q is their p at that time and stays.
# It is ``share`` (0.18) of those that are unknown at first. Asymmetric: no label is taken as
# present. The authors predict the training set after every epoch; here p is the last of training.


class EntropyWithPseudoLabels(Objective):
    """Mean of cross-entropy, negative entropy of unknown labels, and pseudo-labels of absence."""

    reads_unknown = True
    soft_labels = True
    last: Tensor
    pseudo: Tensor
    labelled: Tensor

    def __init__(
        self,
        num_images: int,
        num_labels: int,
        *,
        alpha: float = 0.1,
        beta: float = 0.9,
        share: float = 0.18,
        wait: int = 5,
    ) -> None:
        super().__init__(Sigmoid())
        if alpha < 0 or beta < 0:
            raise ValueError(f"alpha and beta must not be negative, got {alpha} and {beta}")
        require(
            0 <= share <= 1 and wait >= 1,
            f"share must lie in [0, 1] and wait be at least 1, got {share} and {wait}",
        )
        self.alpha, self.beta, self.share, self.wait = alpha, beta, share, wait
        self.epochs = EpochsSeen(num_images)
        nothing = torch.full((num_images, num_labels), torch.nan, dtype=torch.float16)
        self.register_buffer("last", nothing)  # logits of unknown entries, NaN elsewhere
        self.register_buffer("pseudo", nothing.clone())  # probabilities, NaN where there is none
        self.register_buffer("labelled", torch.zeros((), dtype=torch.int64))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits, observed = outputs.logits, targets.observed
        self.epochs(logits)
        if observed is None:
            return bce_loss(logits, targets.labels).mean()
        index = row_numbers(targets, "em+apl remembers labels of images")
        if self.training:
            self.last[index] = torch.where(observed, torch.nan, logits.detach()).to(self.last.dtype)
        believed = self.pseudo[index].to(logits)
        taken = ~observed & ~believed.isnan()
        known = bce_loss(logits, torch.where(taken, believed, targets.labels))
        unknown = torch.where(taken, self.beta * known, self.alpha * negative_entropy(logits))
        return torch.where(observed, known, unknown).mean()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        epoch = self.epochs.images // self.epochs.num_images
        if epoch <= self.labelled or epoch < self.wait:
            return
        self.labelled.copy_(epoch)
        unknown, free = ~self.last.isnan(), self.pseudo.isnan()
        scores = torch.where(unknown & free, self.last, torch.inf)
        rank = scores.argsort(dim=0, stable=True).argsort(dim=0)
        chosen = (rank < (self.share * unknown.sum(dim=0)).long()) & unknown & free
        self.pseudo.copy_(torch.where(chosen, torch.sigmoid(self.last), self.pseudo))


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

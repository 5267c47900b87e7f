"""Softmax over labels, over labels or none of them, and terms for images without labels."""

from math import log

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad, softplus

from labelwise.base.convex import ConvexLoss, ShareLoss
from labelwise.errors import require
from labelwise.learn.objectives.base import (
    Objective,
    masked_mean,
    normals,
    reviewed_rows,
    select_top_n,
)
from labelwise.links import Sigmoid, Softmax, SoftmaxOrNoneLink, with_none
from labelwise.types import Outputs, Targets

# Noised balanced top-K loss: Garcin et al. 2022.
#
# For an image with label y and scores z, over M draws of standard normal noise Z:
#
#     loss = max(0, 1 + s - z_y),     s = (1/M) sum_m  (K+1)-th largest entry of (z + eps Z_m)
#
# The label y itself takes part in the ranking. Unknown entries are read as in ``missing_labels``;
# an image with several labels takes their mean, one with none is left out. The noise of training
# step t is a function of (seed, t).


def noised_top_k_loss(logits: Tensor, noise: Tensor, k: int) -> Tensor:
    """Return the (B, K) hinge of every entry taken as the label; ``noise`` (B, K, M) is eps Z."""
    if not 1 <= k < logits.shape[1]:
        raise ValueError(f"k must be at least 1 and below the {logits.shape[1]} labels, got {k}")
    border = (logits.unsqueeze(2) + noise).topk(k + 1, dim=1).values[:, k].mean(dim=1, keepdim=True)
    return torch.relu(1 + border - logits)


def mean_over_labelled(values: Tensor, labels: Tensor) -> Tensor:
    """Return the scalar mean over images with a label of the mean of (B, K) at their labels."""
    counts = labels.sum(dim=1)
    means = (labels * values).sum(dim=1) / torch.where(counts > 0, counts, 1.0)
    return masked_mean(means, counts > 0)


class NoisedTopK(Objective):
    """Noised balanced top-K hinge; the link is the softmax, which is not calibrated by it."""

    reads_unknown = True
    steps: Tensor

    def __init__(self, k: int, *, eps: float = 0.2, draws: int = 10, seed: int = 0) -> None:
        super().__init__(Softmax())
        require(
            k >= 1 and eps >= 0 and draws >= 1,
            f"k and draws must be at least 1 and eps not negative, got {k}, {draws}, {eps}",
        )
        self.k, self.eps, self.draws, self.seed = k, eps, draws, seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits
        shape = (*logits.shape, self.draws)
        positions = torch.arange(logits.numel() * self.draws, device=logits.device).view(shape)
        noise = normals(positions, self.seed + (self.steps << 32)).to(logits.dtype)
        if self.training:
            self.steps.add_(1)
        losses = noised_top_k_loss(logits, self.eps * noise, self.k)
        return mean_over_labelled(losses, targets.labels)


# Smooth top-k SVM: Berrada, Zisserman and Kumar 2018.
#
# For an image with label y, e_j = exp(z_j / (k tau)), and E_r the elementary symmetric polynomial
# of degree r of the e_j, j != y:
#
#     loss = tau [ log(e_y E_{k-1} + e^{alpha/tau} E_k) - log(e_y E_{k-1}) ]
#          = tau sp( alpha/tau + log E_k - log E_{k-1} - z_y / (k tau) )
#     tau -> 0:   max(0, alpha + (z_[k] - z_y) / k),      z_[k] the k-th largest z_j, j != y
#
# The limit is used for images whose k-th and (k+1)-th largest scores (y included) differ by at
# least k tau log 1000. log E_r comes from a tree of polynomial products cut at degree k, in logs.
#
# Of an image with several labels all are left out of E and the loss is their mean; with none it is
# left out.

# log of the weight of an entry that is left out: exp of it is 0, yet sums of it stay finite.
LEFT_OUT = -1e30
HARD_RATIO = 1000.0


def log_symmetric_sums(logs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ``(log E_{k-1}, log E_k)``, each (B,), of the numbers whose logs are (B, L)."""
    levels = max((logs.shape[1] - 1).bit_length(), (k - 1).bit_length())
    logs = pad(logs, (0, (1 << levels) - logs.shape[1]), value=LEFT_OUT)
    sums = [torch.zeros_like(logs), logs]  # sums[r] (B, n): log E_r of each of n groups
    for _ in range(levels):
        left, right = ([part[:, half::2] for part in sums] for half in (0, 1))
        known, sums = len(sums), []
        for degree in range(min(2 * known - 2, k) + 1):
            first, last = max(0, degree - known + 1), min(degree, known - 1)
            terms = [left[i] + right[degree - i] for i in range(first, last + 1)]
            sums.append(terms[0] if len(terms) == 1 else torch.logsumexp(torch.stack(terms), dim=0))
    return sums[k - 1][:, 0], sums[k][:, 0]


def smooth_top_k_loss(logits: Tensor, labels: Tensor, k: int, tau: float, alpha: float) -> Tensor:
    """Return the (B, K) loss of every entry taken as the label, all labels left out of E."""
    if not 1 <= k < logits.shape[1]:
        raise ValueError(f"k must be at least 1 and below the {logits.shape[1]} labels, got {k}")
    top = logits.detach().topk(k + 1, dim=1).values
    centred = (logits - top[:, :1]) / (k * tau)
    fewer, full = log_symmetric_sums(torch.where(labels > 0, LEFT_OUT, centred), k)
    smooth = tau * softplus(alpha / tau + (full - fewer).unsqueeze(1) - centred)
    rival = torch.where(labels > 0, LEFT_OUT, logits).topk(k, dim=1).values[:, k - 1 :]
    hard = torch.relu(alpha + (rival - logits) / k)
    is_hard = top[:, k - 1] - top[:, k] >= k * tau * log(HARD_RATIO)
    return torch.where(is_hard.unsqueeze(1), hard, smooth)


class SmoothTopK(Objective):
    """Smooth top-k SVM; the link is the softmax, which is not calibrated by it."""

    reads_unknown = True

    def __init__(self, k: int, *, tau: float = 1.0, alpha: float = 1.0) -> None:
        super().__init__(Softmax())
        require(
            k >= 1 and tau > 0 and alpha >= 0,
            f"k must be at least 1, tau positive, alpha not negative, got {k}, {tau}, {alpha}",
        )
        self.k, self.tau, self.alpha = k, tau, alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        losses = smooth_top_k_loss(outputs.logits, targets.labels, self.k, self.tau, self.alpha)
        return mean_over_labelled(losses, targets.labels)


# Average-K two-head loss: Garcin et al., eqs. 10 to 15.
#
# Each image has one label y, and K labels per image are wanted on average. A proposal head z'
# (softmax) chooses candidates Q: the (K-1) B most probable entries of the WHOLE batch, the labels y
# left out, without gradient. The main head z (sigmoid) learns them as present:
#
#     loss = mean_i [LSE(z'_i) - z'_iy]  +  mean_{(i,y)} sp(-z)  +  alpha mean_Q sp(-z)
#          + alpha mean_{not Q, not y} sp(z)
#
# Each mean runs over the entries there are; (K-1) B is rounded. An image with several labels takes
# part with each of them, one with none only as a place for candidates.


def average_k_candidates(proposal: Tensor, labels: Tensor, k: float) -> Tensor:
    """Return the (B, K) mask of the (k-1) B most probable entries whose label is 0."""
    if not 1 <= k <= proposal.shape[1]:
        raise ValueError(f"k must lie between 1 and the {proposal.shape[1]} labels, got {k}")
    probs = torch.softmax(proposal.detach(), dim=1).masked_fill(labels > 0, -torch.inf)
    return select_top_n(probs, round((k - 1) * proposal.shape[0])) & (labels == 0)


def average_k_loss(
    logits: Tensor, proposal: Tensor, labels: Tensor, k: float, alpha: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the scalar terms for main and proposal logits (B, K) and one-hot labels, in order."""
    candidates = average_k_candidates(proposal, labels, k).to(logits.dtype)
    absent = (1 - labels) * (1 - candidates)
    cross_entropy = softmax_loss(torch.log_softmax(proposal, dim=1), labels)
    return (
        masked_mean(cross_entropy, labels.sum(dim=1) > 0),
        _mean(softplus(-logits), labels),
        alpha * _mean(softplus(-logits), candidates),
        alpha * _mean(softplus(logits), absent),
    )


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum()
    return (weights * values).sum() / torch.where(total > 0, total, 1.0)


class AverageK(Objective):
    """Average-K two-head loss; reads the head output ``proposal``, decides by the main logits."""

    couples_batch = True
    reads_unknown = True
    aux = ("proposal",)

    def __init__(self, k: float, *, alpha: float = 1.0) -> None:
        super().__init__(Sigmoid())
        if k < 1 or alpha < 0:
            raise ValueError(f"k must be at least 1 and alpha not negative, got {k} and {alpha}")
        self.k, self.alpha = k, alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        proposal = outputs.aux["proposal"]
        losses = average_k_loss(outputs.logits, proposal, targets.labels, self.k, self.alpha)
        chosen, present, candidates, absent = losses
        return chosen + present + candidates + absent


# Multi-label softmax: the present labels of an image share its probability.
#
#     loss = - sum_k (y_k / |y|) log softmax_k(v / temperature)      rows without labels are skipped
#
# Only the observed labels of an image compete.


def observed_log_softmax(logits: Tensor, observed: Tensor | None) -> Tensor:
    """Return log softmax over the observed entries of each row, and 0 at the others."""
    if observed is None:
        return log_softmax(logits, dim=1)
    some = observed.any(dim=1, keepdim=True)
    kept = torch.where(some, torch.where(observed, logits, float("-inf")), 0.0)
    return torch.where(observed, log_softmax(kept, dim=1), 0.0)


def softmax_loss(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the (B,) cross-entropy between labels shared out over each row and log p."""
    total = labels.sum(dim=1)
    return -(labels * log_probs).sum(dim=1) / torch.where(total > 0, total, 1.0)


class SoftmaxCrossEntropy(Objective):
    """Mean multi-label softmax loss over the images that have a label.

    ``lowest_log_c`` and ``highest_log_c`` are the least and the greatest normaliser, the logarithm
    of sum_k exp(v_k / temperature), among the images of the last training batch: for the journal.
    """

    lowest_log_c: Tensor
    highest_log_c: Tensor

    soft_labels = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__(Softmax(temperature))
        self.temperature = temperature
        for name in ("lowest_log_c", "highest_log_c"):
            self.register_buffer(name, torch.tensor(torch.nan), persistent=False)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits / self.temperature
        if self.training:
            lowest, highest = logits.detach().logsumexp(dim=1).aminmax()
            self.lowest_log_c.copy_(lowest)
            self.highest_log_c.copy_(highest)
        loss = softmax_loss(observed_log_softmax(logits, targets.observed), targets.labels)
        return masked_mean(loss, targets.labels.sum(dim=1) > 0)

    def convex(self, targets: Targets) -> ConvexLoss[Tensor]:
        return ShareLoss.of(targets.labels, targets.observed, temperature=self.temperature)


# Softmax with one more answer, "none", whose logit is 0: for images with at most one label.
#
#     p_k  = exp(v_k) / (1 + sum_j exp(v_j))            p_none = 1 / (1 + sum_j exp(v_j))
#     loss = - sum_k (y_k / |y|) log p_k                for an image with labels
#     loss = - log p_none                               for one reviewed and found without any
#
# Multinomial logistic regression with "none" as the reference class.


def log_softmax_or_none(logits: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return log p (..., K) of the labels, 0 at unobserved ones, and log p (...) of none."""
    kept = logits if observed is None else torch.where(observed, logits, float("-inf"))
    log_total = with_none(kept).logsumexp(dim=-1, keepdim=True)
    log_p = logits - log_total
    if observed is not None:
        log_p = torch.where(observed, log_p, 0.0)
    return log_p, -log_total.squeeze(-1)


class SoftmaxOrNone(Objective):
    """Mean cross-entropy over the images with anything observed; "none" is a class like others."""

    default_link = SoftmaxOrNoneLink()

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_p, log_none = log_softmax_or_none(outputs.logits, targets.observed)
        labelled = targets.labels.sum(dim=1) > 0
        loss = torch.where(labelled, softmax_loss(log_p, targets.labels), -log_none)
        return masked_mean(loss, reviewed_rows(targets.observed))

    def convex(self, targets: Targets) -> ConvexLoss[Tensor]:
        return ShareLoss.of(targets.labels, targets.observed, none=True)


# Images without labels: uniform KL (Lee et al. 2018), max confidence (Hein et al. 2019).
#
#     uniform:  mean_IN CE + beta mean_OUT KL(uniform || softmax(v))
#               KL = -log K - (1/K) sum_k log softmax_k(v)
#     maxconf:  (sum_IN CE + sum_OUT log max_k softmax_k(v)) / (n_IN + n_OUT)
#
# IN are the images with a label, OUT those reviewed and found without any; an image with nothing
# observed is neither.


def uniform_kl(log_probs: Tensor, observed: Tensor | None = None) -> Tensor:
    """Return the (B,) divergence KL(uniform || p) over the observed labels of each row."""
    if observed is None:
        observed = torch.ones_like(log_probs, dtype=torch.bool)
    count = observed.sum(dim=1).clamp(min=1).to(log_probs.dtype)
    return -torch.where(observed, log_probs, 0.0).sum(dim=1) / count - count.log()


def max_confidence(log_probs: Tensor, observed: Tensor | None = None) -> Tensor:
    """Return the (B,) log of the largest probability among the observed labels of each row."""
    if observed is None:
        return log_probs.amax(dim=1)
    kept = torch.where(observed, log_probs, float("-inf")).amax(dim=1)
    return torch.where(observed.any(dim=1), kept, 0.0)


class UniformKL(Objective):
    """Softmax cross-entropy, plus ``beta`` times the divergence from uniform without labels."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__(Softmax())
        require(beta >= 0, f"beta must not be negative, got {beta}")
        self.beta = beta

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_probs, inside, outside = _parts(outputs, targets)
        labelled = masked_mean(softmax_loss(log_probs, targets.labels), inside)
        return labelled + self.beta * masked_mean(uniform_kl(log_probs, targets.observed), outside)


class MaxConfidence(Objective):
    """Softmax cross-entropy, and the log of the largest probability for rows without labels."""

    default_link = Softmax()

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        log_probs, inside, outside = _parts(outputs, targets)
        largest = max_confidence(log_probs, targets.observed)
        loss = torch.where(inside, softmax_loss(log_probs, targets.labels), largest)
        return masked_mean(loss, inside | outside)


def _parts(outputs: Outputs, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p, which rows have a label, and which were reviewed and have none."""
    inside = targets.labels.sum(dim=1) > 0
    reviewed = reviewed_rows(targets.observed)
    outside = ~inside if reviewed is None else ~inside & reviewed
    return observed_log_softmax(outputs.logits, targets.observed), inside, outside

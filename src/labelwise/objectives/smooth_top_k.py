"""Smooth top-k SVM: Berrada, Zisserman and Kumar 2018.

For an image with label y, e_j = exp(z_j / (k tau)), and E_r the elementary symmetric polynomial of
degree r of the e_j, j != y:

    loss = tau [ log(e_y E_{k-1} + e^{alpha/tau} E_k) - log(e_y E_{k-1}) ]
         = tau sp( alpha/tau + log E_k - log E_{k-1} - z_y / (k tau) )
    tau -> 0:   max(0, alpha + (z_[k] - z_y) / k),      z_[k] the k-th largest z_j, j != y

The limit is used for images whose k-th and (k+1)-th largest scores (y included) differ by at
least k tau log 1000. log E_r comes from a tree of polynomial products cut at degree k, in logs:
every summand is positive, so nothing cancels, and the tree has log2(L) levels instead of L steps.

Unknown entries are read as in ``single_positive``. Of an image with several labels all are left
out of E and the loss is their mean; with none it is left out.
"""

from math import log

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from labelwise.links import Softmax
from labelwise.objectives.base import Objective
from labelwise.objectives.top_k import mean_over_labelled
from labelwise.types import Outputs, Targets

# log of the weight of an entry that is left out: exp of it is 0, yet sums of it stay finite.
LEFT_OUT = -1e30
HARD_RATIO = 1000.0


def log_symmetric_sums(logs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ``(log E_{k-1}, log E_k)``, each (B,), of the numbers whose logs are (B, L)."""
    levels = max((logs.shape[1] - 1).bit_length(), (k - 1).bit_length())
    logs = pad(logs, (0, (1 << levels) - logs.shape[1]), value=LEFT_OUT)
    sums = [torch.zeros_like(logs), logs]  # sums[r] (B, n): log E_r of each of n groups
    for _ in range(levels):
        left, right = [part[:, ::2] for part in sums], [part[:, 1::2] for part in sums]
        sums = [_product(left, right, degree) for degree in range(min(2 * len(sums) - 2, k) + 1)]
    return sums[k - 1][:, 0], sums[k][:, 0]


def _product(left: list[Tensor], right: list[Tensor], degree: int) -> Tensor:
    first, last = max(0, degree - len(right) + 1), min(degree, len(left) - 1)
    terms = [left[i] + right[degree - i] for i in range(first, last + 1)]
    return terms[0] if len(terms) == 1 else torch.logsumexp(torch.stack(terms), dim=0)


def smooth_top_k_loss(logits: Tensor, labels: Tensor, k: int, tau: float, alpha: float) -> Tensor:
    """Return the (B, K) loss of every entry taken as the label, all labels left out of E."""
    if not 1 <= k < logits.shape[1]:
        raise ValueError(f"k must be at least 1 and below the {logits.shape[1]} labels, got {k}")
    top = logits.detach().topk(k + 1, dim=1).values
    centred = (logits - top[:, :1]) / (k * tau)
    rivals = torch.where(labels > 0, LEFT_OUT, centred)
    fewer, full = log_symmetric_sums(rivals, k)
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
        if k < 1 or tau <= 0 or alpha < 0:
            raise ValueError(
                f"k must be at least 1, tau positive, alpha not negative, got {k}, {tau}, {alpha}"
            )
        self.k, self.tau, self.alpha = k, tau, alpha

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        losses = smooth_top_k_loss(outputs.logits, targets.labels, self.k, self.tau, self.alpha)
        return mean_over_labelled(losses, targets.labels)

"""Noised balanced top-K loss: Garcin et al. 2022.

For an image with label y and scores z, over M draws of standard normal noise Z:

    loss = max(0, 1 + s - z_y),     s = (1/M) sum_m  (K+1)-th largest entry of (z + eps Z_m)

The label y itself takes part in the ranking. The gradient of s is the mean over m of the one-hot
of the chosen entry. eps = 0 is the hard hinge on the (K+1)-th score. Unknown entries are read as
in ``single_positive``; an image with several labels takes their mean, one with none is left out.

The noise of training step t is a function of (seed, t): the same on all processes of a
distributed run, and after a resumed run, because t is a buffer. Out of training mode t stands.
"""

import torch
from torch import Tensor

from labelwise.links import Softmax
from labelwise.numeric.draws import normals
from labelwise.numeric.ops import masked_mean
from labelwise.objectives.base import Objective
from labelwise.types import Outputs, Targets


def noised_top_k_loss(logits: Tensor, noise: Tensor, k: int) -> Tensor:
    """Return the (B, K) hinge of every entry taken as the label; ``noise`` (B, K, M) is eps Z."""
    if not 1 <= k < logits.shape[1]:
        raise ValueError(f"k must be at least 1 and below the {logits.shape[1]} labels, got {k}")
    noisy = logits.unsqueeze(2) + noise
    border = noisy.topk(k + 1, dim=1).values[:, k].mean(dim=1, keepdim=True)
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
        if k < 1 or eps < 0 or draws < 1:
            raise ValueError(
                f"k and draws must be at least 1 and eps not negative, got {k}, {draws}, {eps}"
            )
        self.k, self.eps, self.draws, self.seed = k, eps, draws, seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits = outputs.logits
        losses = noised_top_k_loss(logits, self.eps * self._noise(logits), self.k)
        return mean_over_labelled(losses, targets.labels)

    def _noise(self, logits: Tensor) -> Tensor:
        shape = (*logits.shape, self.draws)
        positions = torch.arange(logits.numel() * self.draws, device=logits.device).view(shape)
        noise = normals(positions, self.seed + (self.steps << 32)).to(logits.dtype)
        if self.training:
            self.steps.add_(1)
        return noise

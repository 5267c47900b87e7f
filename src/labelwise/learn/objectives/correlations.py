"""DCLR (Chen et al., IEEE TIP 2024): targets that are smoothed towards labels that look alike.

f_k are the features of label k in an image (a head's output "features"), ^ is a unit vector, and
m_jr is what is kept of label j: the features of the last 100 images that carry it (instances), or
10 centres of these (prototypes, found again every 5 epochs).

    s_ij = mean over r of f^_i . m^_jr                         how much label i looks like j here
    c_ij = eps softmax over j != i of (10 s_ij)                eps = 0.05
    t_j  = (1 - eps) y_j + sum over present i of c_ij

The loss is cross-entropy to the mean of t by instances and by prototypes. In the first 5 epochs
c_ij = eps / (K - 1). A contrast of weight 0.05 is added, which grows through the first epoch: over
pairs of images, per label, the mean of 1 - cos(f, f') where both carry it, else of 1 + cos(f, f').
Of n pairs of the first kind, 2 n random and the n largest of either other kind count.

Pairs are taken within 16 images, as in the public code (wkml/MLCC-DCLR). Its prototypes are centres
of all training images; here of the instances. It is not proper: the optimum is the mean target.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from labelwise.errors import require
from labelwise.learn.objectives.base import EpochsSeen, Objective, masked_mean
from labelwise.learn.objectives.cross_entropy import bce_loss
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

KEPT, CENTRES, ROUNDS, EVERY = 100, 10, 10, 5
SHARPNESS = 10.0
TOGETHER = 16


def correlated_targets(labels: Tensor, alike: Tensor, eps: float) -> Tensor:
    """Return targets (B, K) of labels (B, K), given how much label i looks like j (B, K, K)."""
    itself = torch.eye(labels.shape[1], dtype=torch.bool, device=labels.device)
    shares = torch.softmax((SHARPNESS * alike).masked_fill(itself, -torch.inf), dim=2)
    return (1 - eps) * labels + eps * (labels[:, :, None] * shares).sum(dim=1)


def contrast_loss(features: Tensor, labels: Tensor) -> Tensor:
    """Return the contrast of features (B, K, D) of labels (B, K): 1, 0, or -1 for unknown."""
    unit = normalize(features, dim=2).transpose(0, 1)  # (K, B, D)
    one, two = torch.triu_indices(len(labels), len(labels), 1, device=labels.device)
    cosines, first, second = (unit @ unit.mT)[:, one, two], labels.T[:, one], labels.T[:, two]
    together = 1 - cosines[(first == 1) & (second == 1)]
    parts, n = [together], together.numel()
    for kind in (first + second == 1, (first == 0) & (second == 0)):
        apart = 1 + cosines[kind]
        if n:
            drawn = apart[torch.randperm(len(apart), device=apart.device)[: 2 * n]]
            apart = torch.cat([drawn, apart.topk(min(n, len(apart))).values])
        parts.append(apart)
    every = torch.cat(parts)
    return every.sum() / max(len(every), 1)


class DynamicCorrelations(Objective):
    """DCLR; reads the features (B, K, ``width``) of each label, as ``LabelFeatures`` gives them."""

    aux = ("features",)
    couples_batch = True
    kept: Tensor
    counts: Tensor
    centres: Tensor
    found_in: Tensor  # the epoch of the centres

    def __init__(
        self,
        num_images: int,
        num_labels: int,
        *,
        width: int = 128,
        eps: float = 0.05,
        contrast: float = 0.05,
        start: int = EVERY,
    ) -> None:
        super().__init__(Sigmoid())
        require(
            num_labels >= 2 and 0 <= eps < 1 and contrast >= 0,
            "dclr needs two labels or more, 0 <= eps < 1 and contrast >= 0, got "
            f"{num_labels}, {eps} and {contrast}",
        )
        self.eps, self.contrast, self.start = eps, contrast, start
        self.epochs = EpochsSeen(num_images)
        self.register_buffer("kept", torch.zeros(num_labels, KEPT, width))
        self.register_buffer("counts", torch.zeros(num_labels, dtype=torch.int64))
        self.register_buffer("centres", torch.zeros(num_labels, CENTRES, width))
        self.register_buffer("found_in", torch.tensor(-EVERY))

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        features, labels = outputs.aux["features"], targets.labels
        share = min(1.0, self.epochs.images.item() / self.epochs.num_images)
        epoch = int(self.epochs(labels))
        known = labels if targets.observed is None else labels.where(targets.observed, -1)
        if self.training:
            self._keep(features.detach().to(self.kept), known == 1)
            if epoch >= max(self.start, int(self.found_in) + EVERY):
                self.found_in.fill_(epoch)
                self.centres.copy_(self._centres())
        unit = normalize(features.detach(), dim=2)
        alike = torch.zeros(*labels.shape, labels.shape[1]).to(unit)
        aims = [alike, alike]
        if epoch >= self.start:
            kept, full = normalize(self.kept, dim=2), self.counts.clamp(1, KEPT)[:, None]
            means = (kept.sum(1) / full, normalize(self.centres, dim=2).mean(1))
            aims = [unit @ mean.T.to(unit) for mean in means]
        first, second = (correlated_targets((known == 1).to(labels), aim, self.eps) for aim in aims)
        base = masked_mean(bce_loss(outputs.logits, (first + second) / 2), targets.observed)
        groups = zip(torch.split(features, TOGETHER), torch.split(known, TOGETHER), strict=True)
        pairs = torch.stack([contrast_loss(*group) for group in groups]).mean()
        return base + share * self.contrast * pairs

    def _keep(self, features: Tensor, present: Tensor) -> None:
        counts, place = present.sum(0), present.cumsum(0) - 1
        before = torch.arange(KEPT, device=features.device) - counts[:, None]
        self.kept.copy_(self.kept.gather(1, before.clamp(min=0)[:, :, None].expand_as(self.kept)))
        rows, labels = (present & (place < KEPT)).nonzero(as_tuple=True)
        self.kept[labels, place[rows, labels]] = features[rows, labels]
        self.counts.add_(counts)

    def _centres(self) -> Tensor:
        """Return centres (K, 10, D) of what is kept of each label, by Lloyd's algorithm."""
        centres, n = self.kept[:, :CENTRES].clone(), self.counts.clamp(max=KEPT)
        there = torch.arange(KEPT, device=n.device) < n[:, None]
        for _ in range(ROUNDS):
            nearest = torch.cdist(self.kept, centres).argmin(2)
            of = one_hot(nearest, CENTRES) * there[:, :, None]
            sizes = of.sum(1)[:, :, None]
            sums = of.to(centres).mT @ self.kept
            centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        return centres

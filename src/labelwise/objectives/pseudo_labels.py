"""Entropy maximisation with asymmetric pseudo-labels (EM + APL): Zhou et al., ECCV 2022.

    known     softplus(-v) at present, softplus(v) at absent labels
    unknown   -a H(p)                                                 a = 0.1 (``negative_entropy``)
    pseudo    b (-q log p - (1 - q) log(1 - p))                       b = 0.9, their MS-COCO

averaged over all entries. After every epoch from the ``wait``-th on (5) the unknown entries of each
label with the lowest p become pseudo-labels: q is their p at that time and stays. It is ``share``
(0.18) of those that are unknown at first, so that after five such epochs 0.9 of them are taken, as
in the authors' code. Asymmetric: no label is taken as present, of which there are too few to tell.

The authors predict the training set once more after every epoch; here p is the last one that
training itself saw of an image. For every image and label two half floats are kept.

With complete labels this is cross-entropy, strictly proper under a sigmoid. With labels missing it
is not: q is what the network believed, so nothing in the data says how far it is off.
"""

import torch
from torch import Tensor

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.cross_entropy import bce_loss
from labelwise.objectives.entropy_maximisation import negative_entropy
from labelwise.objectives.epochs_seen import EpochsSeen
from labelwise.types import Outputs, Targets


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
        if not 0 <= share <= 1 or wait < 1:
            raise ValueError(
                f"share must lie in [0, 1] and wait be at least 1, got {share} and {wait}"
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
        if targets.index is None:
            raise ValueError("em+apl remembers labels of images, so targets need their index")
        if self.training:
            seen = torch.where(observed, torch.nan, logits.detach())
            self.last[targets.index] = seen.to(self.last.dtype)
        believed = self.pseudo[targets.index].to(logits)
        taken = ~observed & ~believed.isnan()
        labels = torch.where(taken, believed, targets.labels)
        known = bce_loss(logits, labels)
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
        place = scores.argsort(dim=0, stable=True).argsort(dim=0)
        lowest = place < (self.share * unknown.sum(dim=0)).long()
        chosen = lowest & unknown & free
        self.pseudo.copy_(torch.where(chosen, torch.sigmoid(self.last), self.pseudo))

"""EM and EM + APL (Zhou et al., ECCV 2022), for `labelwise compare --methods FILE:CLASS`."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.errors import require
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import EpochsSeen, row_numbers
from labelwise.learn.objectives.cross_entropy import bce_loss
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

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

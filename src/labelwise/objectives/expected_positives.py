"""Expected positive regularisation (EPR): Cole et al. 2021; Garcin et al., eq. 8.

With f = sigmoid(v), P the observed positives and k^ = mean_i sum_j f_ij the mean number of
labels the model expects in an image of this batch:

    per="entry" (Cole)     sum_P nl(f) / (B K)  +  weight ((k^ - k) / K)^2
    per="image" (Garcin)   sum_P nl(f) / B      +  weight  (k^ - k)^2          weight is beta

k, the true mean number of labels an image has, is known side information. Unknown entries are
read as in ``single_positive``: only the observed positives are told from the rest. k^ is taken
over the whole batch, so the loss is not a mean over smaller batches.
"""

import torch
from torch import Tensor

from labelwise.links import Sigmoid
from labelwise.objectives.base import Objective
from labelwise.objectives.single_positive import (
    EpsMode,
    Per,
    checked_eps_mode,
    checked_per,
    neg_logs,
)
from labelwise.types import Outputs, Targets


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
        self.per, self.eps_mode = checked_per(per), checked_eps_mode(eps_mode)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        present, _ = neg_logs(outputs.logits, self.eps_mode)
        size = outputs.logits.shape[1] if self.per == "entry" else 1
        likelihood = (targets.labels * present).sum(dim=1).mean() / size
        excess = (expected_positives(outputs.logits) - self.k) / size
        return likelihood + self.weight * excess.square()

"""Two heads on shared features: Garcin et al., section 5 and Figure 3.

    logits   = W  mean_places(features) + b       what is decided and deployed
    proposal = W' mean_places(features) + b'      proposes further labels in training (average-K)

Both send gradients to the backbone.
"""

import torch
from torch import Tensor, nn

from labelwise.heads.base import Head
from labelwise.types import Outputs

__all__ = ["TwoHead"]


class TwoHead(Head):
    """Two linear heads; the second one's logits are the output ``proposal``."""

    aux = ("proposal",)

    def __init__(self, channels: int, num_labels: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(channels, num_labels)
        self.proposer = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        pooled = features.mean(dim=(2, 3))
        return Outputs(self.classifier(pooled), {"proposal": self.proposer(pooled)})

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        self.classifier.bias.copy_(logits)

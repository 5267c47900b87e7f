"""Two heads on shared features: Garcin et al., section 5 and Figure 3.

    logits   = W  mean_places(features) + b       what is decided and deployed
    proposal = W' mean_places(features) + b'      proposes further labels in training (average-K)

Both send gradients to the backbone. With ``answers="proposal"`` the second head answers once the
model is trained (Garcin et al., appendix C): its softmax is what may then be thresholded.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from labelwise.networks.heads.base import Head, absorb_scaling
from labelwise.types import Outputs


class TwoHead(Head):
    """Two linear heads; the second one's logits are the output ``proposal``."""

    aux = ("proposal",)
    pools = True
    absorbs = True

    def __init__(
        self, channels: int, num_labels: int, *, answers: Literal["logits", "proposal"] = "logits"
    ) -> None:
        super().__init__()
        if answers not in ("logits", "proposal"):
            raise ValueError(f"answers must be 'logits' or 'proposal', got {answers!r}")
        self.answers = answers
        self.classifier = nn.Linear(channels, num_labels)
        self.proposer = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        pooled = features.mean(dim=(2, 3))
        logits, proposal = self.classifier(pooled), self.proposer(pooled)
        if self.answers == "proposal" and not self.training:
            logits = proposal
        return Outputs(logits, {"proposal": proposal})

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        self.classifier.bias.copy_(logits)

    def absorb_scaling(self, mean: Tensor, scale: Tensor) -> None:
        for layer in (self.classifier, self.proposer):
            absorb_scaling(layer, mean, scale)

"""Linear head: mean over the places of the feature map, then one weight vector per label."""

import torch
from torch import Tensor, nn

from labelwise.networks.heads.base import Head, absorb_scaling
from labelwise.types import Outputs


class LinearHead(Head):
    """``logits = W mean_places(features) + b``."""

    pools = True
    absorbs = True

    def __init__(self, channels: int, num_labels: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(features.mean(dim=(2, 3))))

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        self.classifier.bias.copy_(logits)

    def absorb_scaling(self, mean: Tensor, scale: Tensor) -> None:
        absorb_scaling(self.classifier, mean, scale)

"""BoostLU (Kim et al., CVPR 2023): evidence for a label counts more than evidence against it.

    a_k(place) = w_k . features(place) + b_k          the class activation map of label k
    logit_k    = mean over places of f(a_k(place))
    f(a)       = alpha a where a > 0, else a          alpha = 5

Where present labels were missing in training, a network finds the right places and rates them too
low; alpha makes up for it. The authors' code trains and answers with f (``boosts="always"``) while
large losses are dropped or corrected: LL-R, LL-Ct, LL-Cp. ``boosts="answers"`` trains without f
and applies it to the trained network alone.

With alpha = 1 this is the linear head. Features of one place (stored and pooled) leave f to rise
with the logit: it then changes no order of images, only how high a logit stands.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from labelwise.networks.heads.base import Head, absorb_scaling
from labelwise.types import Outputs

Boosts = Literal["always", "answers"]


class BoostHead(Head):
    """One weight vector per label at every place, boosted where positive, then the mean."""

    absorbs = True

    def __init__(
        self, channels: int, num_labels: int, *, alpha: float = 5.0, boosts: Boosts = "always"
    ) -> None:
        super().__init__()
        if not alpha >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha}")
        if boosts not in get_args(Boosts):
            raise ValueError(f"boosts must be one of {get_args(Boosts)}, got {boosts!r}")
        self.alpha, self.boosts = alpha, boosts
        self.classifier = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        places = self.classifier(features.flatten(2).transpose(1, 2))  # (B, H W, K)
        if self.boosts == "always" or not self.training:
            places = torch.where(places > 0, self.alpha * places, places)
        return Outputs(places.mean(dim=1))

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        """Set the biases so that training starts with logits of ``logits`` (K,)."""
        boosted = logits.clamp(min=0) / (self.alpha if self.boosts == "always" else 1)
        self.classifier.bias.copy_(logits.clamp(max=0) + boosted)

    def absorb_scaling(self, mean: Tensor, scale: Tensor) -> None:
        absorb_scaling(self.classifier, mean, scale)

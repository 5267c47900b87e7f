"""Head: a map from a feature map to one logit per label."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from labelwise.types import Outputs


class Head(nn.Module, ABC):
    """A map from features (B, D, H, W), never pooled, to Outputs; ``aux`` names extra outputs.

    ``pools`` says that it is linear in the mean over places, and so needs nothing else of them;
    ``absorbs`` that it begins with a linear map, which can absorb how features were standardised.
    """

    aux: tuple[str, ...] = ()
    pools: bool = False
    absorbs: bool = False

    @abstractmethod
    def forward(self, features: Tensor) -> Outputs:
        """Return logits (B, K), and whatever ``aux`` names."""

    def start_at(self, logits: Tensor) -> None:
        """Set the label biases to ``logits`` (K,); a head without such biases stays as it is."""

    def absorb_scaling(self, mean: Tensor, scale: Tensor) -> None:
        """Take features where ``(features - mean) / scale`` were given before."""
        raise TypeError(f"{type(self).__name__} does not begin with a linear map")


@torch.no_grad()
def absorb_scaling(layer: nn.Linear, mean: Tensor, scale: Tensor) -> None:
    """Fold ``(x - mean) / scale`` (D,) into a linear layer, which then takes x itself.

    W (x - m) / s + b  =  (W / s) x + b - (W / s) m
    """
    layer.weight.div_(scale.to(layer.weight))
    layer.bias.sub_(layer.weight @ mean.to(layer.weight))

"""Head: a map from a feature map to one logit a label."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from labelwise.types import Outputs

__all__ = ["Head"]


class Head(nn.Module, ABC):
    """A map from features (B, D, H, W), never pooled, to Outputs; ``aux`` names extra outputs."""

    aux: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, features: Tensor) -> Outputs:
        """Return logits (B, K), and whatever ``aux`` names."""

    def start_at(self, logits: Tensor) -> None:
        """Set the label biases to ``logits`` (K,); a head without such biases stays as it is."""

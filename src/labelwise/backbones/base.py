"""Backbone: a map from images to a feature map."""

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.backbones.transform import Transform

__all__ = ["Backbone", "by_first_name"]


class Backbone(nn.Module, ABC):
    """A map from images (B, 3, H, W) to features (B, channels, h, w), never pooled.

    ``name`` builds it again and ``transform`` says how its input is made. A batch norm whose
    weight is frozen keeps its stored statistics in training mode too. ``classifier`` is what timm
    calls the linear layer behind its own networks, None for those that are not timm's.
    """

    classifier: str | None = None

    def __init__(self, name: str, channels: int, transform: Transform) -> None:
        super().__init__()
        self.name, self.channels, self.transform = name, channels, transform

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map (B, channels, h, w)."""

    def stages(self) -> list[list[str]]:
        """Return the parameter names of each stage, from the input to the output."""
        return by_first_name(self)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
                module.eval()
        return self


def by_first_name(network: nn.Module, prefix: str = "") -> list[list[str]]:
    """Return the parameter names of each child module, in the order of the children."""
    stages: dict[str, list[str]] = {}
    for name, _ in network.named_parameters():
        stages.setdefault(name.partition(".")[0], []).append(prefix + name)
    return list(stages.values())

"""Backbone: a map from images to a feature map; the one without a network; how others begin."""

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.pictures.transform import Transform


class Backbone(nn.Module, ABC):
    """A map from images (B, 3 or bands, H, W) to features (B, channels, h, w), never pooled.

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
        return names_by_child(self)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
                module.eval()
        return self


class Identity(Backbone):
    """Stored features in the place of images: no network.

    Feature rows (B, D) become maps (B, D, 1, 1); maps (B, D, h, w) stay as they are.
    """

    def __init__(self, channels: int) -> None:
        # Features are not pictures; this transform is never applied.
        super().__init__("identity", channels, Transform(1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim not in (2, 4) or images.shape[1] != self.channels:
            raise ValueError(
                f"features must be (B, {self.channels}) or (B, {self.channels}, h, w), "
                f"got shape {tuple(images.shape)}"
            )
        return images[:, :, None, None] if images.ndim == 2 else images


def names_by_child(network: nn.Module, prefix: str = "") -> list[list[str]]:
    """Return the parameter names of each child module, in the order of the children."""
    stages: dict[str, list[str]] = {}
    for name, _ in network.named_parameters():
        stages.setdefault(name.partition(".")[0], []).append(prefix + name)
    return list(stages.values())


def he_init(network: nn.Module) -> None:
    """Initialise a ReLU network in place, as He et al. did.

    Convolution weights are drawn from N(0, 2 / fan out), batch norms are one and zero.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

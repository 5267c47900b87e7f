"""Stored features in the place of images: rows (B, D) or maps (B, D, h, w), given on as maps."""

from torch import Tensor

from labelwise.backbones.base import Backbone
from labelwise.backbones.transform import Transform

__all__ = ["Identity"]


class Identity(Backbone):
    """No network: feature rows (B, D) become maps (B, D, 1, 1); maps stay as they are."""

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

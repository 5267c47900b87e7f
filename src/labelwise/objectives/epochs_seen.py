"""How many epochs a loss has seen, for losses that change their mind about labels over time."""

import torch
from torch import Tensor, nn


class EpochsSeen(nn.Module):
    """Counts whole epochs by the images that went by; a resumed run goes on counting."""

    images: Tensor

    def __init__(self, num_images: int) -> None:
        super().__init__()
        if num_images < 1:
            raise ValueError(f"num_images must be at least 1, got {num_images}")
        self.num_images = num_images
        self.register_buffer("images", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Tensor) -> Tensor:
        """Return how many epochs were over before this batch, and count it in training."""
        epochs = (self.images // self.num_images).to(batch.device)
        if self.training:
            self.images.add_(len(batch))
        return epochs

"""Losses of the last steps, kept on the device so that no step waits for the host."""

import torch
from torch import Tensor

__all__ = ["Losses"]


class Losses:
    """Up to ``capacity`` losses since the last look."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._values = torch.zeros(capacity, device=device)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no further loss fits."""
        return self._count == len(self._values)

    def add(self, loss: Tensor) -> None:
        """Keep the loss of a batch."""
        self._values[self._count] = loss.detach()
        self._count += 1

    def take(self) -> list[float]:
        """Return the losses in order and forget them; this waits for the device."""
        values: list[float] = self._values[: self._count].tolist()
        self._count = 0
        return values

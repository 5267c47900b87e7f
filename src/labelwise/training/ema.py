"""Average: a copy of a model whose weights follow the trained ones slowly.

    average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t)) at update t

Floating-point buffers (batch-norm statistics) are averaged like weights, others are copied.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

__all__ = ["Average"]


class Average:
    """The averaged model, in evaluation mode, with the number of updates it has seen."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie strictly between 0 and 1, got {decay}")
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights of ``model``."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averages, values = _floats(self.model), _floats(model)
        torch._foreach_lerp_(averages, values, 1 - decay)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            if not buffer.is_floating_point():
                buffer.copy_(source)


def _floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]

"""The loss of a batch as one function, which may be compiled: backbone, head and objective.

    loss = make_loss(model, objective, precision=torch.bfloat16, compiled=True)
    loss(batch.images, batch.targets).backward()
    optimizer.step()
    optimizer.zero_grad()

Compiled for CUDA, forward and backward pass are each one CUDA graph: a step of a small network
costs a few launches instead of hundreds. A graph stands for one shape, so the last short batch of
an epoch should be dropped (``Loader(drop_last=True)``); it is otherwise compiled a second time.
Nothing here waits for the device: the loss stays there until someone asks for its value, and must
be copied before the next call, which writes the same memory again.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from labelwise.objectives import Objective
from labelwise.training.settings import Hardware
from labelwise.types import Outputs, Targets

__all__ = ["LossFunction", "compiles", "make_loss"]

WORTH_COMPILING = 2000  # steps: ResNet-18 on an H200 compiles in 20 s and saves 7 to 10 ms a step

LossFunction = Callable[[Tensor, Targets], Tensor]


def compiles(hardware: Hardware, device: torch.device, world: int, steps: int) -> bool:
    """Return whether a run of ``steps`` is compiled: as it was asked for, or where it pays."""
    if hardware.compile is not None:
        return hardware.compile
    return device.type == "cuda" and world == 1 and steps >= WORTH_COMPILING


def make_loss(
    model: nn.Module,
    objective: Objective,
    *,
    precision: torch.dtype | None = None,
    compiled: bool = False,
) -> LossFunction:
    """Return ``loss(images, targets) -> scalar``; ``precision`` is the autocast type, if any.

    ``model`` returns Outputs, or the pair (logits, aux). The objective itself always computes in
    float32 or more.
    """

    def plain(
        images: Tensor, labels: Tensor, observed: Tensor | None, index: Tensor | None
    ) -> Tensor:
        kind = images.device.type
        with torch.autocast(kind, precision or torch.bfloat16, enabled=precision is not None):
            outputs = model(images)
        if isinstance(outputs, tuple):
            outputs = Outputs(*outputs)
        loss: Tensor = objective(outputs, Targets(labels, observed, index))
        return loss

    graphs = torch.cuda.is_available()
    mode = "reduce-overhead" if graphs else "default"
    run = torch.compile(plain, mode=mode, dynamic=False) if compiled else plain

    def loss(images: Tensor, targets: Targets) -> Tensor:
        if compiled and graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run(images, targets.labels, targets.observed, targets.index)

    return loss

"""What the other processes of a distributed run hold: their number and their rows."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["broadcast_rows", "gather_rows", "rank", "world_size"]


def world_size() -> int:
    """Return the number of processes, 1 outside a distributed run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 outside a distributed run."""
    return dist.get_rank() if world_size() > 1 else 0


def broadcast_rows(rows: Tensor) -> Tensor:
    """Return the rows of the first process, which must have the shape of this one's."""
    if world_size() == 1:
        return rows
    received = rows.contiguous()
    dist.broadcast(received, src=0)
    return received


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows (B, ...) of all processes in rank order; gradients flow to their owners."""
    if world_size() == 1:
        return rows
    if not rows.requires_grad:
        return _gather(rows)
    joined: Tensor = _GatherRows.apply(rows)  # type: ignore[no-untyped-call]
    return joined


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.count = rows.shape[0]
        return _gather(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[dist.get_rank() * ctx.count : (dist.get_rank() + 1) * ctx.count]


def _gather(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)

"""What the other processes of a distributed run hold: their number and their rows."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes, 1 outside a distributed run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 outside a distributed run."""
    return dist.get_rank() if world_size() > 1 else 0


def wait_for_all() -> None:
    """Return once every process has come here."""
    if world_size() > 1:
        dist.barrier()


def broadcast_rows(rows: Tensor) -> Tensor:
    """Return the rows of the first process, which must have the shape of this one's."""
    if world_size() == 1:
        return rows
    received = rows.contiguous()
    dist.broadcast(received, src=0)
    return received


def value_of_first(value: object, device: torch.device) -> Any:
    """Return the value of the first process, which JSON must be able to hold."""
    if world_size() == 1:
        return value
    text = json.dumps(value).encode() if rank() == 0 else b""
    size = broadcast_rows(torch.tensor([len(text)], device=device))
    content = torch.zeros(int(size), dtype=torch.uint8, device=device)
    if text:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return json.loads(bytes(broadcast_rows(content).cpu().numpy()))


def tensors_of_first(named: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the tensors of the first process by their names, on the CPU; others may give none."""
    if world_size() == 1:
        return dict(named)
    facts = ((name, str(tensor.dtype), [*tensor.shape]) for name, tensor in named.items())
    kinds = {name: (kind.removeprefix("torch."), shape) for name, kind, shape in facts}
    received = {}
    for name, (kind, shape) in value_of_first(kinds, device).items():
        whole = named[name] if rank() == 0 else torch.empty(shape, dtype=getattr(torch, kind))
        if whole.numel():
            content = whole.contiguous().reshape(-1).view(torch.uint8).to(device)
            whole = broadcast_rows(content).cpu().view(whole.dtype).reshape(shape)
        received[name] = whole
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

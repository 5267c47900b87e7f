"""The logits of a table, each row exactly once, over any number of processes."""

from typing import Any

import torch
from torch import Tensor

from labelwise.distributed import gather_rows, world_size
from labelwise.predictor import Model
from labelwise.training.loader import Loader
from labelwise.training.progress import Silent, Watch
from labelwise.types import Outputs

__all__ = ["infer"]

ROWS_AT_ONCE = 1 << 15


@torch.inference_mode()
def infer(
    fabric: Any,
    model: Model,
    loader: Loader,
    rows: int,
    *,
    full_precision: bool = False,
    watch: Watch | None = None,
    task: str = "",
) -> Tensor:
    """Return the float32 logits (rows, K) on the CPU, in row order, in every process.

    Rows are placed by their number, so a row that two processes saw still counts once.
    """
    watch = watch or Silent()
    watch.start(task, rows)
    training = model.training
    model.eval()
    index: list[Tensor] = []
    logits: list[Tensor] = []
    for batch in loader.epoch(0):
        images = batch.images
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        if full_precision:
            outputs: Outputs = model(images)
        else:
            with fabric.autocast():
                outputs = model(images)
        logits.append(outputs.logits.float().cpu())
        index.append(_index(batch.targets.index).cpu())
        watch.advance(len(images) * world_size())
    model.train(training)
    watch.finish()
    return _placed(torch.cat(index), torch.cat(logits), rows, fabric.device)


def _index(index: Tensor | None) -> Tensor:
    if index is None:
        raise ValueError("a loader must number its rows, got targets without index")
    return index


def _placed(index: Tensor, logits: Tensor, rows: int, device: torch.device) -> Tensor:
    if world_size() > 1:
        index, logits = _gathered(index, device), _gathered(logits, device)
    seen = torch.zeros(rows, dtype=torch.bool)
    seen[index] = True
    if not seen.all():
        raise RuntimeError(f"every row must be seen, got {int((~seen).sum())} of {rows} unseen")
    placed = logits.new_empty((rows, logits.shape[1]))
    placed[index] = logits
    return placed


def _gathered(part: Tensor, device: torch.device) -> Tensor:
    """Return the rows of all processes; parts may differ in length, so they travel padded."""
    counts = gather_rows(torch.tensor([len(part)], device=device)).tolist()
    longest = max(counts)
    padded = part.new_zeros((longest, *part.shape[1:]))
    padded[: len(part)] = part
    collected: list[list[Tensor]] = [[] for _ in counts]
    for start in range(0, longest, ROWS_AT_ONCE):
        piece = padded[start : start + ROWS_AT_ONCE]
        everyone = torch.chunk(gather_rows(piece.to(device)).cpu(), len(counts))
        for rank, rows in enumerate(everyone):
            collected[rank].append(rows)
    whole = [torch.cat(pieces)[:count] for pieces, count in zip(collected, counts, strict=True)]
    return torch.cat(whole)

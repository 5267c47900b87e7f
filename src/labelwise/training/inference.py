"""The logits of a split, each row exactly once, over any number of processes."""

import torch
from torch import Tensor

from labelwise.models import Model
from labelwise.models.scoring import infer, raise_failure
from labelwise.pictures import ImageSource
from labelwise.system.distributed import gather_rows, rank, world_size
from labelwise.system.progress import Silent, Watch
from labelwise.training.execution import autocast
from labelwise.types import Outputs

__all__ = ["infer_logits"]

BATCH = 256
ROWS_AT_ONCE = 1 << 15


def infer_logits(
    model: Model,
    images: ImageSource,
    device: torch.device,
    *,
    workers: int = 0,
    precision: torch.dtype | None = None,
    watch: Watch | None = None,
    task: str = "",
) -> Tensor:
    """Return the float32 logits (rows, K) on the CPU, in row order, in every process.

    Each process takes an equal run of rows. Rows are placed by their number, so that none is
    missing or counted twice; an image that cannot be read stops all. ``precision`` is the autocast
    type of the network, if any.
    """
    watch = watch or Silent()
    rows, world, number = len(images), world_size(), rank()
    own = range(rows * number // world, rows * (number + 1) // world)
    transform = model.backbone.transform

    def network(values: Tensor) -> tuple[Tensor, ...]:
        inputs = transform.inputs(values)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with autocast(device, precision):
            outputs: Outputs = model(inputs)
        return (outputs.logits.float(),)

    watch.start(task, rows)
    training = model.training
    model.eval()
    index: list[Tensor] = []
    logits: list[Tensor] = []
    parts = infer(
        network,
        images,
        transform,
        rows=own,
        batch_size=BATCH,
        workers=workers,
        device=device,
    )
    for part in parts:
        raise_failure(part)
        index.append(torch.from_numpy(part.rows))
        logits.append(part.values[0])
        watch.advance(len(part.rows) * world)
    model.train(training)
    watch.finish()
    return _placed(torch.cat(index), torch.cat(logits), rows, device)


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
        for pieces, rows in zip(collected, everyone, strict=True):
            pieces.append(rows)
    whole = [torch.cat(pieces)[:count] for pieces, count in zip(collected, counts, strict=True)]
    return torch.cat(whole)

"""The logits of a split, each row exactly once, over any number of processes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.models import Model
from labelwise.models.held_out_copies import FEWEST_FEATURES, sketch_of
from labelwise.models.scoring import infer, raise_failure
from labelwise.pictures import ImageSource
from labelwise.pictures.fingerprint import looks_of
from labelwise.system.distributed import gather_rows, rank, world_size
from labelwise.system.progress import Silent, Watch
from labelwise.training.execution import autocast
from labelwise.types import Outputs

BATCH = 256
ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Inference:
    """The float32 logits (rows, K) of images on the CPU, in row order, the same in every process.

    ``looks`` (rows, WIDTH) are there if they were asked for, of photos; of features, sketches.
    """

    logits: Tensor
    looks: Tensor | None = None


def infer_logits(
    model: Model,
    images: ImageSource,
    device: torch.device,
    *,
    workers: int = 0,
    precision: torch.dtype | None = None,
    looks: bool = False,
    watch: Watch | None = None,
    task: str = "",
) -> Inference:
    """Return the logits of images and, with ``looks``, what photos look like, or features do.

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
        logits = outputs.logits.float()
        if looks and values.ndim == 4 and values.dtype == torch.uint8:
            return logits, looks_of(values)
        if looks and values.ndim == 2 and values.shape[1] >= FEWEST_FEATURES:
            return logits, sketch_of(values)
        return (logits,)

    watch.start(task, rows)
    training = model.training
    model.eval()
    index: list[Tensor] = []
    found: list[tuple[Tensor, ...]] = []
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
        found.append(part.values)
        watch.advance(len(part.rows) * world)
    model.train(training)
    watch.finish()
    where = torch.cat(index)
    values = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Inference(*(_placed(where, value, rows, device) for value in values))


def _placed(index: Tensor, values: Tensor, rows: int, device: torch.device) -> Tensor:
    if world_size() > 1:
        index, values = _gathered(index, device), _gathered(values, device)
    seen = torch.zeros(rows, dtype=torch.bool)
    seen[index] = True
    if not seen.all():
        raise RuntimeError(f"every row must be seen, got {int((~seen).sum())} of {rows} unseen")
    placed = values.new_empty((rows, values.shape[1]))
    placed[index] = values
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

"""Where ROLE's label estimates live: logits theta (N, K), one row per image of the training set.

An unknown entry starts at q (2r - 1), r uniform in [0, 1), q = logit(start), start = 0.6, so that
its estimate lies between 0.4 and 0.6; an observed entry starts at logit(0.995), or minus that if
absent. The labels of a row are not needed before its first batch: until then neither its gradient
nor its momentum has moved it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from labelwise.numeric.draws import uniforms
from labelwise.objectives.adam_rows import WINDOW, advance, update
from labelwise.objectives.undo import UndoFile
from labelwise.system.distributed import broadcast_rows, rank

KNOWN_LOGIT = log(0.995 / 0.005)
CLIP = 1e-5


@dataclass(frozen=True)
class Start:
    """Where unknown entries start: at random between ``1 - highest`` and ``highest``."""

    highest: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.highest < 1:
            raise ValueError(f"start must lie in [0.5, 1), got {self.highest}")

    def logits(self, rows: Tensor, num_labels: int) -> Tensor:
        """Return the float32 logits (n, K) of these rows."""
        positions = rows.unsqueeze(1) * num_labels + torch.arange(num_labels, device=rows.device)
        return self.between(uniforms(positions, self.seed))

    def between(self, r: Tensor) -> Tensor:
        """Return the logits at ``r`` of the way, from 0 to 1."""
        return log(self.highest / (1 - self.highest)) * (2 * r - 1)


def logits_of(probs: Tensor) -> Tensor:
    """Return the logits of probabilities, which are clipped to [1e-5, 1 - 1e-5] first."""
    return torch.logit(probs, eps=CLIP)


class Estimates(nn.Module, ABC):
    """Estimate logits of N images by K labels."""

    @abstractmethod
    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        """Return theta of a batch, first in (n, B, K); new rows begin at ``start`` if not 0."""

    @abstractmethod
    def probabilities(self, rows: Tensor) -> Tensor:
        """Return the estimated probabilities (n, K)."""

    @abstractmethod
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        """Set rows to given probabilities, at rest."""


class DenseEstimates(Estimates):
    """All of theta as one parameter, moved by the optimiser that trains the model."""

    seen: Tensor

    def __init__(self, shape: tuple[int, int], start: Start) -> None:
        super().__init__()
        self.theta = nn.Parameter(start.logits(torch.arange(shape[0]), shape[1]))
        self.register_buffer("seen", torch.zeros(shape[0], dtype=torch.bool))

    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                fresh = ~self.seen[index].unsqueeze(1) & (start != 0)
                self.theta[index] = torch.where(fresh, start.to(self.theta), self.theta[index])
                self.seen[index] = True
        return self.theta[index].to(start).unsqueeze(0)

    def probabilities(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.theta.detach()[rows])

    @torch.no_grad()
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        self.theta[rows] = logits_of(probs).to(self.theta)
        self.seen[rows] = True


class MovedEstimates(Estimates):
    """Estimates that move themselves by Adam, once the gradient of a batch's rows is known."""

    @abstractmethod
    def step(self, index: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Move the rows of a batch, as ``forward`` gave them, by the gradient (B, K) of theta."""


class RowEstimates(MovedEstimates):
    """Rows of (theta, m, v, visit) outside the device, moved by their own Adam.

    ``visit`` is 0 for a row never seen, else 1 + the step its numbers belong to. Under
    distributed training the first process holds the table and sends the rows to the others.
    The module stays on the CPU in float32 whatever it is told. In memory all of it is part of
    the ``state_dict``. In a file it is not: ``state_dict()`` marks a point to which the file can
    be taken back (the last two are kept), and ``load_state_dict`` takes it back there.
    """

    records: Tensor
    clock: Tensor
    rates: Tensor

    def __init__(self, shape: tuple[int, int], start: Start, path: Path | None) -> None:
        super().__init__()
        self.num_labels, self.start = shape[1], start
        size = (shape[0], 3 * shape[1] + 1)
        self.file = None if path is None or rank() > 0 else UndoFile(path, size)
        records = torch.zeros(size) if self.file is None else self.file.records
        self.register_buffer("records", records, persistent=path is None)
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))
        # Learning rates of two epochs of single images: no row of an epoch waits longer.
        rates = torch.zeros(2 * shape[0] + WINDOW, dtype=torch.float64)
        self.register_buffer("rates", rates)
        self.register_state_dict_pre_hook(_mark)  # type: ignore[no-untyped-call]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self

    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        """Return theta and Adam's m and v, (3, B, K)."""
        return broadcast_rows(self._read(index, start))

    @torch.no_grad()
    def step(self, index: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        step = int(self.clock) + 1
        if rank() == 0:
            where, inverse = torch.unique(index, return_inverse=True)
            one = torch.zeros_like(where).scatter_(0, inverse, torch.arange(len(index)).to(where))
            total = torch.zeros_like(rows[0, one]).index_add_(0, inverse, gradient)
            self._write(where, update(rows[:, one], total, step, lr), step)
        self.rates[step % len(self.rates)] = lr
        self.clock += 1

    def probabilities(self, rows: Tensor) -> Tensor:
        unknown = torch.zeros(len(rows), self.num_labels, device=rows.device)
        return torch.sigmoid(self._read(rows, unknown)[0])

    @torch.no_grad()
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        theta = logits_of(probs)
        rest = torch.zeros_like(theta)
        self._write(rows, torch.stack([theta, rest, rest]), int(self.clock))

    def _read(self, index: Tensor, start: Tensor) -> Tensor:
        self._settle()
        where = index.cpu()
        records = self.records[where]
        visit = records[:, -1].to(torch.int64)
        rows = records[:, :-1].to(start).view(len(where), 3, -1).transpose(0, 1)
        last = torch.where(visit > 0, visit - 1, self.clock)
        theta, m, v = advance(rows, last, self.clock, self.rates)
        begin = self.start.logits(index.to(start.device), self.num_labels).to(start)
        begin = torch.where(start != 0, start, begin)
        fresh = (visit == 0).unsqueeze(1).to(start.device)
        return torch.stack([torch.where(fresh, begin, theta), m, v])

    def _settle(self) -> None:
        if self.file is not None:
            self.file.rewind(int(self.clock))

    def _write(self, index: Tensor, rows: Tensor, step: int) -> None:
        self._settle()
        visit = torch.full((len(index), 1), step + 1.0)
        records = torch.cat([rows.transpose(0, 1).flatten(1).to(visit), visit], dim=1)
        if self.file is None:
            self.records[index.cpu()] = records
        else:
            self.file.write(index.cpu(), records, step)


def _mark(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    if isinstance(module, RowEstimates) and module.file is not None:
        module.file.mark(int(module.clock))

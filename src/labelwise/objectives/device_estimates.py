"""ROLE's estimates on the device of the model, all rows moved in every step.

Dense Adam over N K entries is a few passes over memory: on a GPU less than fetching a batch's rows
from the host, and nothing waits. The state is saved in the form of RowEstimates, so that a run
may go on with either.
"""

from typing import Any

import torch
from torch import Tensor

from labelwise.objectives.adam_rows import WINDOW, advance, update
from labelwise.objectives.estimates import MovedEstimates, Start, logits_of


class DeviceEstimates(MovedEstimates):
    """``moments`` (3, N, K) are theta and Adam's m and v; ``seen`` are the rows met so far."""

    moments: Tensor
    seen: Tensor
    clock: Tensor

    def __init__(self, shape: tuple[int, int], start: Start) -> None:
        super().__init__()
        self.start = start
        theta = start.logits(torch.arange(shape[0]), shape[1])
        rest = torch.zeros_like(theta)
        self.register_buffer("moments", torch.stack([theta, rest, rest]))
        self.register_buffer("seen", torch.zeros(shape[0], dtype=torch.bool))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))

    def forward(self, index: Tensor, start: Tensor) -> Tensor:
        theta = self.moments[0, index].to(start)
        fresh = ~self.seen[index].unsqueeze(1) & (start != 0)
        return torch.where(fresh, start, theta).unsqueeze(0)

    @torch.no_grad()
    def step(self, index: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        self.moments[0, index] = rows[0].to(self.moments)
        self.seen[index] = True
        total = torch.zeros_like(self.moments[0]).index_add_(0, index, gradient.to(self.moments))
        self.clock += 1
        self.moments.copy_(update(self.moments, total, self.clock.double(), lr))

    def probabilities(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.moments[0, rows])

    @torch.no_grad()
    def assign(self, rows: Tensor, probs: Tensor) -> None:
        self.moments[:, rows] = 0.0
        self.moments[0, rows] = logits_of(probs).to(self.moments)
        self.seen[rows] = True

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        visit = torch.where(self.seen, self.clock + 1, 0).to(self.moments)
        records = torch.cat([*self.moments, visit.unsqueeze(1)], dim=1)
        rates = torch.zeros(2 * len(visit) + WINDOW, dtype=torch.float64)
        destination |= {
            prefix + "records": records,
            prefix + "clock": self.clock.clone(),
            prefix + "rates": rates,  # every row is up to date, so none is needed
        }

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = [prefix + name for name in ("records", "clock", "rates")]
        missing = [name for name in names if name not in state_dict]
        if missing:
            missing_keys += missing
            return
        records, clock, rates = (state_dict[name].cpu() for name in names)
        rows, columns = self.moments.shape[1:]
        if records.shape != (rows, 3 * columns + 1):
            error_msgs.append(f"the estimates of {rows} images by {columns} labels do not fit")
            return
        visit = records[:, -1].to(torch.int64)
        last = torch.where(visit > 0, visit - 1, clock)
        moments = records[:, :-1].view(rows, 3, columns).transpose(0, 1)
        moments = advance(moments, last, clock, rates)
        begin = self.start.logits(torch.arange(rows), columns)
        moments[0] = torch.where((visit > 0).unsqueeze(1), moments[0], begin)
        self.moments.copy_(moments)
        self.seen.copy_(visit > 0)
        self.clock.copy_(clock)

"""Entries: what every calibrator is fitted on, read in blocks of bounded size.

    u = log p - log(1 - p)    the log-odds of the link, or the raw logits where there is no link
    y, w                      the label in [0, 1], and 1 where it is observed, else 0

Log-odds are cut at +-limit. A link may answer exactly 0 or 1, whose log-odds are infinite; if it
does so on the data, such an answer is believed to one in a million. Otherwise the limit lies
beyond anything seen and only keeps later numbers finite.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from labelwise.arrays import Array, check_shapes, mask_tensor, to_tensor
from labelwise.links import Link

__all__ = [
    "BLOCK",
    "ROWS",
    "Block",
    "Entries",
    "OnLogOdds",
    "limited_log_odds",
    "own_number",
    "read_entries",
]

Block = tuple[Tensor, Tensor, Tensor | None]

ONE_IN_A_MILLION = log(1e6 - 1)
FAR = 1e4
BLOCK = 1 << 16  # entries: a block and its temporaries stay in the cache
ROWS = 1000  # rows of a block at most: 2^ROWS is still a float64
CACHED = 1 << 23  # log-odds up to this many are kept rather than computed again
COLUMNS = 1 << 21  # entries of whole columns held at once


class OnLogOdds(Link):
    """A link that maps the log-odds of another link, or raw logits where that is None."""

    link: Link | None
    limit: float

    @property
    def couples_labels(self) -> bool:
        return self.link is not None and self.link.couples_labels

    def of_label(self, column: int) -> Link:
        inner = None if self.link is None else self.link.of_label(column)
        return type(self)(link=inner, limit=self.limit, **self.numbers_of(column))

    @abstractmethod
    def numbers_of(self, column: int) -> dict[str, Any]:
        """Return the constructor's other arguments, those of one label alone."""


def own_number(values: Tensor, column: int) -> float:
    """Return a label's number among one per label, or the one that all labels share."""
    return float(values.reshape(-1)[column if values.numel() > 1 else 0])


def limited_log_odds(link: Link | None, logits: Tensor, limit: float) -> Tensor:
    """Return the log-odds of a link, or the raw logits where it is None, cut at +-limit."""
    odds = logits if link is None else link.log_odds(logits)
    return odds.clamp(-limit, limit)


@dataclass(frozen=True)
class Entries:
    """Logits, labels and mask (N, K), with the link that reads the logits.

    Without a link the logits are themselves log-odds.
    """

    logits: Tensor
    labels: Tensor
    observed: Tensor | None
    link: Link | None
    limit: float = FAR

    @property
    def num_labels(self) -> int:
        """Return K."""
        return self.logits.shape[1]

    def rows(self) -> Iterator[Block]:
        """Yield (u, y, w) of consecutive rows, each (n, K); w is None if all is known."""
        step = min(ROWS, max(1, BLOCK // max(self.num_labels, 1)))
        for start in range(0, len(self.logits), step):
            yield self._read(slice(start, start + step))

    def columns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (u, y) of each label: its observed entries, (n,) float64."""
        step = max(1, COLUMNS // len(self.logits))
        for first in range(0, self.num_labels, step):
            u, y, seen = self._read_columns(slice(first, min(first + step, self.num_labels)))
            for row in range(len(u)):
                yield u[row][seen[row]], y[row][seen[row]]

    def subset(self, rows: Tensor | slice) -> "Entries":
        """Return the entries of some rows."""
        observed = None if self.observed is None else self.observed[rows]
        return Entries(self.logits[rows], self.labels[rows], observed, self.link, self.limit)

    @torch.no_grad()
    def _read(self, rows: slice) -> Block:
        u = self.logits[rows] if self.link is None else self.link.log_odds(self.logits[rows])
        if self.limit < FAR:
            u = u.clamp(-self.limit, self.limit)
        y = self.labels[rows].to(u.dtype)
        if self.observed is None:
            return u, y, None
        seen = self.observed[rows]
        return torch.where(seen, u, 0.0), torch.where(seen, y, 0.0), seen.to(u.dtype)

    def _read_columns(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        shape = (part.stop - part.start, len(self.logits))
        u = self.logits.new_empty(shape, dtype=torch.float64)
        y, w = torch.empty_like(u), torch.ones_like(u, dtype=torch.bool)
        start = 0
        for block in self.rows():
            rows = slice(start, start + len(block[0]))
            u[:, rows], y[:, rows] = block[0][:, part].T, block[1][:, part].T
            if block[2] is not None:
                w[:, rows] = block[2][:, part].T > 0
            start = rows.stop
        return u, y, w


@torch.no_grad()
def read_entries(
    logits: Array, labels: Array, link: Link | None, observed: Array | None
) -> Entries:
    """Check the arrays and return them as entries, with the limit their log-odds need."""
    check_shapes(logits=logits, labels=labels, observed=observed)
    scores = to_tensor(logits)
    if not scores.is_floating_point():
        raise TypeError(f"logits must be floating point, got {scores.dtype}")
    truth = to_tensor(labels, scores.device)
    seen = None if observed is None else mask_tensor(observed, "observed", scores.device)
    if scores.numel() == 0:
        raise ValueError(f"logits must not be empty, got shape {tuple(scores.shape)}")
    if link is not None and scores.numel() <= CACHED:
        scores, link = link.log_odds(scores), None
    limit = _limit(Entries(scores, truth, seen, link, limit=float("inf")))
    return Entries(scores, truth, seen, link, limit)


def _limit(entries: Entries) -> float:
    """Check every observed entry and return where log-odds are to be cut."""
    largest, present, absent = 0.0, False, False
    plain = entries.observed is None and entries.link is None
    for u, y, w in [(entries.logits, entries.labels, None)] if plain else entries.rows():
        (low, high), (none, whole) = u.aminmax(), y.aminmax()
        for name, value in (("logits", low), ("labels", none)):  # aminmax passes NaN on
            if torch.isnan(value.double()):
                raise ValueError(f"{name} must not be NaN where observed, got NaN")
        if none < 0 or whole > 1:
            wrong = (none if none < 0 else whole).item()
            raise ValueError(f"labels must lie in [0, 1] where observed, got {wrong}")
        largest = max(largest, -low.item(), high.item())
        present |= whole.item() > 0
        absent |= none.item() < 1 if w is None else bool(((y < 1) & (w > 0)).any())
    if not (present and absent):
        raise ValueError(
            "labels must hold at least one present and one absent entry that are observed, "
            f"got no {'absent' if present else 'present'} one"
        )
    return ONE_IN_A_MILLION if largest == float("inf") else max(FAR, 2 * largest)

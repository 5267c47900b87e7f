"""Entries: what every calibrator is fitted on, read in blocks of bounded size.

    u = log p - log(1 - p)    the log-odds of the link, or the raw logits where there is no link
    y, w                      the label in [0, 1], and 1 where it is observed, else 0

Log-odds are cut at +-limit: an answer of exactly 0 or 1 is believed to one in a million. Strengths
are chosen by the log loss of images held out. Many entries are gathered in bins of x / (1 + |x|), x
= (u - median) / spread, to start a fit near its end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import ClassVar, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import A
from labelwise.base.arrays import (
    Array,
    Floats,
    Mask,
    Numbers,
    Values,
    as_mask,
    check_shapes,
    to_numpy,
)
from labelwise.links import Link

Block = tuple[Floats, Floats, Floats | None]  # u, y and a weight, None where all weigh 1
Rows = Union["Entries", "Bins"]

ONE_IN_A_MILLION = log(1e6 - 1)
FAR = 1e4
BLOCK = 1 << 18  # entries: below, calls cost more than what they compute; above, memory
CACHED = 1 << 23  # log-odds up to this many are kept rather than computed again
COLUMNS = 1 << 21  # entries of whole columns held at once


class OnLogOdds(Link):
    """A link that maps the log-odds of another link, or raw logits where that is None.

    ``numbers`` names the constructor's other arguments: one each, or an array of one per label.
    """

    numbers: ClassVar[tuple[str, ...]]

    def __init__(self, link: Link | None, limit: float) -> None:
        self.link, self.limit = link, limit
        self.couples_labels = link is not None and link.couples_labels

    def of_label(self, column: int) -> Link:
        inner = None if self.link is None else self.link.of_label(column)
        return type(self)(link=inner, limit=self.limit, **self.numbers_of(column))

    def numbers_of(self, column: int) -> dict[str, object]:
        values = {name: np.reshape(getattr(self, name), -1) for name in self.numbers}
        return {name: float(own[column if own.size > 1 else 0]) for name, own in values.items()}

    def straight(
        self, slope: Floats | float, offset: Floats | float, labels: int
    ) -> tuple[Numbers, Numbers] | None:
        """Return what ``slope u + offset`` is on the logits, None if that is not a line."""
        # The cut at +-limit is left out where it moves no probability by one in a million.
        ones = np.ones(labels)
        own = (ones, 0 * ones) if self.link is None else self.link.slope_and_offset(labels)
        scale, shift = (np.asarray(side, np.float64) * ones for side in (slope, offset))
        if own is None or (scale * self.limit - np.abs(shift) < ONE_IN_A_MILLION).any():
            return None
        return scale * own[0], scale * own[1] + shift


def limited_log_odds(link: Link | None, logits: A, limit: float) -> A:
    """Return the log-odds of a link, or the raw logits where it is None, cut at +-limit."""
    return (logits if link is None else link.log_odds(logits)).clip(-limit, limit)


@dataclass(frozen=True)
class Entries:
    """Logits, labels and mask (N, K), and the link of the logits; None: they are log-odds."""

    logits: Floats
    labels: Values
    observed: Mask | None
    link: Link | None
    limit: float = FAR

    @property
    def num_labels(self) -> int:
        return int(self.logits.shape[1])

    def rows(self) -> Iterator[Block]:
        """Yield (u, y, w) of consecutive rows, each (n, K); w is None if all is known."""
        step = max(1, BLOCK // max(self.num_labels, 1))
        for start in range(0, len(self.logits), step):
            rows = slice(start, start + step)
            u = self.logits[rows] if self.link is None else self.link.log_odds(self.logits[rows])
            if self.limit < FAR:
                u = u.clip(-self.limit, self.limit)
            y = self.labels[rows].astype(u.dtype)
            if self.observed is None:
                yield u, y, None
            else:
                seen, zero = self.observed[rows], u.dtype.type(0)
                yield np.where(seen, u, zero), np.where(seen, y, zero), seen.astype(u.dtype)

    def whole(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return u, y and w (N, K) of all rows in float64."""
        blocks = [(u, y, np.ones_like(y) if w is None else w) for u, y, w in self.rows()]
        u, y, w = (np.concatenate(side).astype(np.float64) for side in zip(*blocks, strict=True))
        return u, y, w

    def columns(self) -> Iterator[tuple[Numbers, Numbers]]:
        step = max(1, COLUMNS // len(self.logits))
        for first in range(0, self.num_labels, step):
            some = slice(first, first + step)
            parts = [
                (u[:, some], y[:, some], np.ones(y[:, some].shape) if w is None else w[:, some])
                for u, y, w in self.rows()
            ]
            u, y, w = (np.concatenate(side).astype(np.float64) for side in zip(*parts, strict=True))
            for own, truth, seen in zip(u.T, y.T, w.T > 0, strict=True):
                yield own[seen], truth[seen]

    def subset(self, rows: Mask | slice) -> "Entries":
        observed = None if self.observed is None else self.observed[rows]
        return Entries(self.logits[rows], self.labels[rows], observed, self.link, self.limit)


def read_entries(
    logits: Array, labels: Array, link: Link | None, observed: Array | None
) -> Entries:
    """Check the arrays and return them as entries, with the limit their log-odds need."""
    check_shapes(logits=logits, labels=labels, observed=observed)
    scores, truth = to_numpy(logits), to_numpy(labels)
    if scores.dtype.kind != "f":
        raise TypeError(f"logits must be floating point, got {scores.dtype}")
    seen = None if observed is None else as_mask(to_numpy(observed), "observed")
    if scores.size == 0:
        raise ValueError(f"logits must not be empty, got shape {tuple(scores.shape)}")
    if link is not None and scores.size <= CACHED:
        scores, link = link.log_odds(scores), None
    entries = Entries(scores, truth, seen, link, limit=float("inf"))
    largest, present, absent = 0.0, False, False
    plain = seen is None and link is None
    for u, y, w in [(scores, truth, None)] if plain else entries.rows():
        low, high, none, whole = (float(end) for end in (u.min(), u.max(), y.min(), y.max()))
        for name, value in (("logits", low), ("labels", none)):
            if np.isnan(value):
                raise ValueError(f"{name} must not be NaN where observed, got NaN")
        if none < 0 or whole > 1:
            wrong = none if none < 0 else whole
            raise ValueError(f"labels must lie in [0, 1] where observed, got {wrong}")
        largest = max(largest, -low, high)
        present |= whole > 0
        absent |= none < 1 if w is None else bool(((y < 1) & (w > 0)).any())
    if not (present and absent):
        rule = "labels must hold at least one present and one absent entry that are observed"
        raise ValueError(f"{rule}, got no {'absent' if present else 'present'} one")
    limit = ONE_IN_A_MILLION if largest == float("inf") else max(FAR, 2 * largest)
    return replace(entries, limit=limit)


Part = TypeVar("Part")


@lru_cache(maxsize=8)
def folds_of(count: int, folds: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the fold (count,) of each of ``count`` things, dealt at random in equal parts.

    The order is that of ``torch.randperm`` with this seed, which 0.2 took.
    """
    raw = np.random.RandomState(seed).randint(0, 1 << 32, size=count, dtype=np.uint32)
    order = list(range(count))
    for position, step in enumerate((raw % np.arange(count, 0, -1)).tolist()):
        order[position], order[position + step] = order[position + step], order[position]
    fold_of_row = np.array(order, np.int64) % folds
    fold_of_row.flags.writeable = False
    return fold_of_row


def check_options(scope: str, scopes: tuple[str, ...], strength: float | None) -> None:
    """Raise unless a calibrator knows the scope, and the strength is not negative."""
    if scope not in scopes:
        raise ValueError(f"scope must be {' or '.join(map(repr, scopes))}, got {scope!r}")
    if strength is not None and strength < 0:
        raise ValueError(f"strength must not be negative, got {strength}")


def choose(
    strengths: Sequence[float],
    parts: Sequence[Part],
    losses: Callable[[list[Part], Part], Sequence[float]],
) -> float:
    """Return the strength with the least log loss, each part held out once.

    ``losses(the other parts, the part held out)`` gives one loss for each strength. A single part
    leaves nothing to learn from: the greatest strength is the safe one.
    """
    if len(parts) < 2:
        return max(strengths)
    total = np.zeros(len(strengths))
    for number, fold in enumerate(parts):
        total += losses([*parts[:number], *parts[number + 1 :]], fold)
    return strengths[int(total.argmin())]


BINS, LEAST_BINS, ALL_BINS = 256, 64, 1 << 21
SAMPLE = 1 << 14


@dataclass(frozen=True)
class Bins:
    """Means of log-odds and labels, and counts, each (B, K)."""

    u: Numbers
    y: Numbers
    w: Numbers

    @property
    def num_labels(self) -> int:
        return int(self.u.shape[1])

    def rows(self) -> Iterator[Block]:
        step = max(1, BLOCK // self.num_labels)
        for start in range(0, len(self.u), step):
            block = slice(start, start + step)
            yield self.u[block], self.y[block], self.w[block]

    def coarser(self, factor: int) -> "Bins":
        return _means(*(sums.reshape(-1, factor, self.num_labels).sum(1) for sums in self.sums()))

    def sums(self) -> tuple[Numbers, Numbers, Numbers]:
        return self.u * self.w, self.y * self.w, self.w


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts: bins added up, entries one after another."""
    if len(parts) == 1:
        return parts[0]
    binned = [fold for fold in parts if isinstance(fold, Bins)]
    if len(binned) == len(parts):
        sums = zip(*map(Bins.sums, binned), strict=True)
        return _means(*(np.stack(some).sum(0) for some in sums))
    dealt_rows = [fold for fold in parts if isinstance(fold, Entries)]  # of one link and limit
    masks = [fold.observed for fold in dealt_rows if fold.observed is not None]
    return replace(
        dealt_rows[0],
        logits=np.concatenate([fold.logits for fold in dealt_rows]),
        labels=np.concatenate([fold.labels for fold in dealt_rows]),
        observed=np.concatenate(masks) if masks else None,
    )


def _means(u: Numbers, y: Numbers, w: Numbers) -> Bins:
    some = w.clip(1e-300)
    return Bins(u / some, y / some, w)


def compressed(entries: Entries, folds: int) -> list[Rows]:
    """Return the rows dealt into folds (at most one an image): many in bins, few as they are."""
    count, labels = entries.logits.shape
    bins = min(BINS, max(LEAST_BINS, ALL_BINS // (folds * labels)))
    if count <= 8 * bins:
        fold = folds_of(count, folds)
        return [entries.subset(fold == number) for number in range(min(folds, count))]
    median, spread = _location(entries)

    def bin_of(u: Floats) -> NDArray[np.int64]:
        x = (u - u.dtype.type(median)) * u.dtype.type(1 / spread)
        x = (x / (np.abs(x) + 1) + 1) * u.dtype.type(bins / 2 * (1 - 1e-6))  # in [0, bins)
        return np.asarray(x, np.int64)

    weight, odds, present = tallied(entries, folds, bins, bin_of).swapaxes(2, 3)
    return [_means(*sums) for sums in zip(odds, present, weight, strict=True)]


def tallied(
    entries: Entries, folds: int, bins: int, bin_of: Callable[[Floats], NDArray[np.integer]]
) -> Numbers:
    """Return counts, and sums of log-odds and of labels, by fold, label, bin: (3, folds, K, B)."""
    count, labels = entries.logits.shape
    first, size = np.arange(labels) * bins, folds * labels * bins
    shift = folds_of(count, folds)[:, None] * (bins * labels)
    sums, start = np.zeros((3, size)), 0
    for u, y, w in entries.rows():
        cell = (bin_of(u) + first + shift[start : start + len(u)]).ravel()
        sums[0] += np.bincount(cell, None if w is None else w.ravel(), size)
        sums[1] += np.bincount(cell, u.ravel(), size)
        some = np.flatnonzero(y != 0)  # most labels are absent
        sums[2] += np.bincount(cell[some], y.ravel()[some], size)
        start += len(u)
    return sums.reshape(3, folds, labels, bins)


def _location(entries: Entries) -> tuple[float, float]:
    blocks = entries.subset(slice(None, None, max(1, entries.logits.size // SAMPLE))).rows()
    some = np.concatenate([(u if w is None else u[w > 0]).ravel() for u, _, w in blocks])
    if not len(some):
        return 0.0, 1.0
    least, low, middle, high, most = np.quantile(some, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
    return middle, max(high - low, (most - least) / 20, 1e-12)

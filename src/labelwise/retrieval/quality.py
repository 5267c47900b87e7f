"""Retrieval mAP: how well images are found by queries of one label, two, three, ...

    cost of an image  =  - sum over wanted of log p  -  sum over unwanted of log(1 - p)
    relevant          =  all wanted labels present, all unwanted ones absent
    mAP(n)            =  mean over queries of length n of their average precision

A query with no relevant image has no average precision: it is left out and counted. A length
with at most ``exhaustive`` queries is evaluated completely; for a longer one, a seeded uniform
sample of the queries that have a relevant image is evaluated, with a standard error. An image
whose label is unknown is left out of the queries that name that label.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array, as_mask, check_shapes, is_tensor, to_numpy, to_tensor
from labelwise.retrieval.average_precision import (
    CostTable,
    average_precision_of,
    average_precisions,
    walk,
)
from labelwise.retrieval.enumeration import all_queries, count_queries, sample_queries

if TYPE_CHECKING:
    import torch


CHUNK = 1 << 26


@dataclass(frozen=True)
class LengthResult:
    """Retrieval mAP of one query length.

    ``queries`` were averaged; ``skipped`` had no relevant image. ``error`` is the standard
    error of sampling queries, 0 if every query was evaluated. Without any query the value is NaN.
    """

    length: int
    value: float
    error: float
    queries: int
    skipped: int
    exhaustive: bool


def retrieval_map(
    log_p: Array,
    log_q: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    longest: int = 3,
    exhaustive: int = 1_000_000,
    sample: int = 20_000,
    seed: int = 0,
) -> tuple[LengthResult, ...]:
    """Return the retrieval mAP of query lengths 1 to ``longest``.

    A length with more than ``exhaustive`` queries is sampled: ``sample`` of them, by ``seed``.

    ``log_p`` and ``log_q`` (N, K) are the link's pair. Arrays on an accelerator are evaluated
    there, in chunks; on the CPU queries share the work of their first labels.
    """
    if longest < 1:
        raise ValueError(f"longest must be at least 1, got {longest}")
    table = _table(log_p, log_q, labels, observed)
    lengths = range(1, min(longest, table.num_labels) + 1)
    whole = [n for n in lengths if count_queries(table.num_labels, n) <= exhaustive]
    device = log_p.device if is_tensor(log_p) else None
    found: dict[int, NDArray[np.float64]] = {}
    if whole and not _accelerated(device):
        found = walk(table, max(whole))
    results = []
    for length in lengths:
        if length in whole:
            if length not in found:
                found[length] = _answers(table, all_queries(table.num_labels, length), device)
            skipped = count_queries(table.num_labels, length) - len(found[length])
            results.append(_result(length, found[length], skipped, exhaustive=True))
        else:
            queries, skipped = sample_queries(table.relevant, length, sample, seed + length)
            answers = _answers(table, queries, device)
            results.append(_result(length, answers, skipped, exhaustive=False))
    return tuple(results)


def _result(
    length: int, precisions: NDArray[np.float64], skipped: int, *, exhaustive: bool
) -> LengthResult:
    count = len(precisions)
    value = float(precisions.mean()) if count else float("nan")
    error = 0.0
    if not exhaustive:
        error = float(precisions.std(ddof=1) / count**0.5) if count > 1 else float("nan")
    return LengthResult(length, value, error, count, skipped, exhaustive)


def _accelerated(device: "torch.device | None") -> bool:
    return device is not None and device.type != "cpu"


def _answers(
    table: CostTable, queries: NDArray[np.intp], device: "torch.device | None"
) -> NDArray[np.float64]:
    """Return the average precision of the queries that have a relevant image."""
    if not _accelerated(device):
        return np.array([average_precision_of(table, query) for query in queries])
    known = None if table.known is None else to_tensor(table.known, device)
    costs, relevant = (to_tensor(t, device) for t in (table.costs, table.relevant))
    precisions = average_precisions(costs, relevant, known, queries, CHUNK)
    return precisions[~np.isnan(precisions)]


def _table(log_p: Array, log_q: Array, labels: Array, observed: Array | None) -> CostTable:
    """Check the arrays and return them as a table of 2K rows, wanted then unwanted."""
    sides = [to_numpy(log_p), to_numpy(log_q)]
    truth = to_numpy(labels)
    seen = None if observed is None else as_mask(to_numpy(observed), "observed")
    check_shapes(log_p=sides[0], log_q=sides[1], labels=truth, observed=seen)
    costs = _rows([-side.T for side in sides])
    if np.isnan(costs).any() or (costs < 0).any():
        raise ValueError("log_p and log_q must be logarithms of probabilities, at most 0")
    present, absent = truth.T == 1, truth.T == 0
    if seen is not None:
        present, absent = present & seen.T, absent & seen.T
    known = present | absent
    if seen is None and not known.all():
        raise ValueError(f"labels must be 0 or 1 where observed, got {truth.T[~known][0]}")
    known_rows = None if known.all() else _rows([known, known])
    return CostTable(costs, _rows([present, absent]), known_rows)


def _rows(parts: list[np.ndarray]) -> np.ndarray:
    """Return the parts below each other, every row contiguous."""
    return np.ascontiguousarray(np.concatenate(parts))

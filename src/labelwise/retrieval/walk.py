"""Every query up to a length, on the CPU: a walk over the trees that grow from wanted labels.

A query of n labels is one of n - 1 labels and one more. Its costs are the shorter one's plus a
row, and its relevant images are among the shorter one's; where those run out, the whole branch
has none. A tree's root is the first wanted label: few images carry it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.retrieval.precision import average_precision_of_costs
from labelwise.retrieval.queries import all_queries

__all__ = ["Table", "average_precision_of", "walk"]


@dataclass(frozen=True)
class Table:
    """Costs, fitting images and known images (2K, N): row k wants label k, row K + k does not."""

    costs: NDArray[Any]
    relevant: NDArray[np.bool_]
    known: NDArray[np.bool_] | None

    @property
    def num_labels(self) -> int:
        """Return K."""
        return len(self.costs) // 2

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Return how many images fit each row."""
        sizes: NDArray[np.intp] = np.count_nonzero(self.relevant, axis=1)
        return sizes


def average_precision_of(table: Table, query: NDArray[np.intp]) -> float:
    """Return the average precision of one query, rows of the table; some image must fit it."""
    costs = table.costs[query[0]].copy()
    for row in query[1:]:
        costs += table.costs[row]
    # From the row with the fewest fitting images, that few need be looked at.
    rarest, *others = sorted(query, key=table.sizes.__getitem__)
    fits = np.flatnonzero(table.relevant[rarest])
    for row in others:
        fits = fits.compress(table.relevant[row].take(fits))
    if table.known is not None:
        known = np.logical_and.reduce(table.known[query])
        costs, fits = costs[known], (np.cumsum(known) - 1)[fits]
    return average_precision_of_costs(costs, fits)


def walk(table: Table, longest: int) -> dict[int, NDArray[np.float64]]:
    """Return, by length, the average precision of every query that has a relevant image."""
    found: dict[int, list[float]] = {length: [] for length in range(1, longest + 1)}
    if table.known is not None:
        for length, precisions in found.items():
            for query in all_queries(table.num_labels, length):
                if table.relevant[query].all(0).any():
                    precisions.append(average_precision_of(table, query))
    else:
        for root in range(table.num_labels):
            fits = np.flatnonzero(table.relevant[root])
            if len(fits):
                costs = table.costs[root]
                found[1].append(average_precision_of_costs(costs, fits))
                grow(table, found, costs, fits, root=root, first=0, length=2)
    return {length: np.array(precisions) for length, precisions in found.items()}


def grow(
    table: Table,
    found: dict[int, list[float]],
    costs: NDArray[Any],
    fitting: NDArray[np.intp],
    *,
    root: int,
    first: int,
    length: int,
) -> None:
    """Add a label from ``first`` on to a query with these costs and fitting images, and go on.

    Average precisions are appended to ``found[length]`` and those of longer lengths it holds.
    """
    if length not in found:
        return
    labels = table.num_labels
    for label in range(first, labels):
        # A wanted label before the root would make another tree's query.
        rows = (labels + label,) if label < root else (label, labels + label)
        for row in () if label == root else rows:
            fits = fitting.compress(table.relevant[row].take(fitting))
            if len(fits):
                total = costs + table.costs[row]
                found[length].append(average_precision_of_costs(total, fits))
                grow(table, found, total, fits, root=root, first=label + 1, length=length + 1)

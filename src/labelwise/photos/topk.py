"""Rankings of all rows of an index by the score of a query, and the best of them.

The score of labels that are wanted or unwanted is the sum of their log probabilities. Of any other
query, such as ``(cat | dog), -sofa``, it is computed in 64 bits, block by block. Rows of equal
score come in the order of the index, as a full stable sort would give them.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Numbers
from labelwise.queries import BoundQuery
from labelwise.queries.query import AllOf, literal_of

ROWS_AT_ONCE = 1 << 14

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


class LabelOdds:
    """log p and log(1 - p) of one label for every row; functions are called when first needed."""

    def __init__(
        self, log_p: Scores | Callable[[], Scores], log_q: Scores | Callable[[], Scores]
    ) -> None:
        self._log_p, self._log_q = log_p, log_q

    @cached_property
    def log_p(self) -> Scores:
        return self._log_p() if callable(self._log_p) else self._log_p

    @cached_property
    def log_q(self) -> Scores:
        return self._log_q() if callable(self._log_q) else self._log_q


def stacked(columns: Sequence[LabelOdds], rows: slice | Rows) -> tuple[Numbers, Numbers]:
    """Return log p and log(1 - p) (n, K) of some rows."""
    sides = ([c.log_p[rows] for c in columns], [c.log_q[rows] for c in columns])
    log_p, log_q = (np.stack(side, axis=1, dtype=np.float64) for side in sides)
    return log_p, log_q


def best_rows(scores: Scores, count: int) -> Rows:
    """Return the rows of the ``count`` largest scores, largest first, equal ones by row."""
    rows = np.arange(len(scores))
    if 0 < count < len(scores):
        rows = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return rows[np.argsort(-scores[rows], kind="stable")][: max(count, 0)]


class Ranking:
    """All rows of an index by ``scores``; minus infinity where a row is gone or left out."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def best(self, count: int) -> tuple[Rows, Scores]:
        rows = best_rows(self.scores, count)
        rows = rows[self.scores[rows] > -np.inf]
        return rows, self.scores[rows]

    def count_at_least(self, least: float) -> int:
        return int(np.count_nonzero(self.scores >= least))

    def scores_at_least(self, least: float) -> Scores:
        return np.sort(self.scores[self.scores >= least])[::-1]


def ranking_of(query: BoundQuery, odds_of: Callable[[int], LabelOdds], gone: Rows) -> Ranking:
    """Return the ranking of all rows by the odds of a query's labels, without those ``gone``."""
    expression = query.expression
    parts = expression.parts if isinstance(expression, AllOf) else (expression,)
    literals = [literal for literal in map(literal_of, parts) if literal is not None]
    each_once = len({column for column, _ in literals}) == len(parts)
    if each_once and not query.limits and not query.groups:
        every = ((odds_of(int(column)), wanted) for column, wanted in literals)
        first, *terms = (odds.log_p if wanted else odds.log_q for odds, wanted in every)
        scores = first.copy()
        for term in terms:
            scores += term
    else:
        columns = [odds_of(column) for column in query.columns]
        scores = np.empty(len(columns[0].log_p), np.float32)
        for start in range(0, len(scores), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            scores[rows] = query.log_scores(*_exact_pair(*stacked(columns, rows)))
    scores[gone] = -np.inf
    return Ranking(scores)


def _exact_pair(log_p: Numbers, log_q: Numbers) -> tuple[Numbers, Numbers]:
    """Return log p and log(1 - p), the larger one computed from the smaller.

    Rounded to 32 bits on their own, p and 1 - p do not add up to 1, which a query that names a
    label twice would multiply.
    """
    smaller = np.minimum(log_p, log_q)
    larger = np.log1p(-np.exp(smaller))
    likely = log_p > log_q
    return np.where(likely, larger, smaller), np.where(likely, smaller, larger)

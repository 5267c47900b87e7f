"""Rankings of all rows of an index by the score of a query, and exact top-k of them.

Labels wanted and unwanted alone have a sum of log probabilities for a score. Of any other query,
such as ``(cat | dog), -sofa``, the odds of all rows are computed in 32 bits, within ROUNDING of the
score; only rows whose odds come within ROUNDING of the k-th largest get the score itself, in 64
bits. A query that names two labels which exclude each other has the score itself for all rows.
Every way gives the rows of a full stable sort.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from os import cpu_count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.queries import BoundQuery, CalibratedQuery, HitCount
from labelwise.queries.query import AllOf, literal_of

DEPTH = 1 << 6  # values of a block, whose largest is found first
ROWS_AT_ONCE = 1 << 17
PARALLEL = 1 << 21  # rows from which a second thread pays
ROUNDING = 1e-3  # of odds in 32 bits; 400 labels with log p of -87 in sum reach a tenth of it
LEAST_ODDS, MOST_ODDS = 1e-12, 1e12  # beyond, logs of sums have too few digits themselves

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

    @cached_property
    def pair(self) -> tuple[Scores, Scores]:
        """p and 1 - p themselves, for queries whose scores are not sums of logs."""
        return np.exp(self.log_p), np.exp(self.log_q)


def stacked(
    columns: Sequence[LabelOdds], rows: slice | Rows, dtype: type[np.floating[Any]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return log p and log(1 - p) (n, K) of some rows."""
    sides = ([c.log_p[rows] for c in columns], [c.log_q[rows] for c in columns])
    log_p, log_q = (np.stack(side, axis=1, dtype=dtype) for side in sides)
    return log_p, log_q


def value_at(values: Scores, count: int) -> float:
    """Return the ``count``-th largest value, minus infinity where there are fewer."""
    if not 0 < count <= len(values):
        return -np.inf
    whole = len(values) // DEPTH * DEPTH
    if whole >= DEPTH * count:
        highest = np.maximum.reduce(values[:whole].reshape(DEPTH, -1), axis=0)
        values = values[values >= np.partition(highest, -count)[-count]]
    return float(np.partition(values, -count)[-count])


def _best_of(rows: Rows, scores: Scores, count: int) -> tuple[Rows, Scores]:
    """Return the best of some rows, which rise, and their scores; equal ones by row."""
    kept = scores > -np.inf
    rows, scores = rows[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")[:count]
    return rows[order], scores[order]


class ScoreRanking:
    """Rows by scores that are computed for all of them; minus infinity where a row is gone."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def best(self, count: int) -> tuple[Rows, Scores]:
        least = value_at(self.scores, count) if count > 0 else np.inf
        rows = np.flatnonzero(self.scores >= least)
        return _best_of(rows, self.scores[rows], count)

    def count_at_least(self, least: float) -> int:
        return int(np.count_nonzero(self.scores >= least))

    def scores_at_least(self, least: float) -> Scores:
        return np.sort(self.scores[self.scores >= least])[::-1]

    def expected(self, query: CalibratedQuery) -> HitCount:
        return query.count(self.scores)


class OddsRanking:
    """Rows by the score of any expression over columns."""

    def __init__(self, query: BoundQuery, columns: Sequence[LabelOdds], gone: Rows) -> None:
        self.query, self.columns, self.gone = query, columns, gone

    @cached_property
    def odds(self) -> Scores:
        """The odds of all rows, to ROUNDING; 0 where a row is gone or left out by a limit."""
        size = len(self.columns[0].log_p)
        odds = np.empty(size, np.float32)
        pairs = [column.pair for column in self.columns]

        def compute(start: int) -> None:
            rows = slice(start, start + ROWS_AT_ONCE)
            odds_block = self.query.odds([p[rows] for p, _ in pairs], [q[rows] for _, q in pairs])
            inside = self.query.inside([column.log_p[rows] for column in self.columns])
            odds[rows] = odds_block if inside is None else np.where(inside, odds_block, 0)

        with ThreadPoolExecutor(min(cpu_count() or 1, 4) if size >= PARALLEL else 1) as pool:
            list(pool.map(compute, range(0, size, ROWS_AT_ONCE)))
        odds[self.gone] = 0
        return odds

    def best(self, count: int) -> tuple[Rows, Scores]:
        rows = self._near(value_at(self.odds, count)) if count > 0 else np.empty(0, np.int64)
        return _best_of(rows, self._scores(rows), count)

    def count_at_least(self, least: float) -> int:
        odds = _odds_at(least)
        rows = self._near(odds)
        if odds * (1 - ROUNDING) <= LEAST_ODDS or odds >= MOST_ODDS:
            return int(np.count_nonzero(self._scores(rows) >= least))
        surely = self.odds[rows] > odds * (1 + ROUNDING)
        reached = self._scores(rows[~surely]) >= least
        return int(np.count_nonzero(surely) + np.count_nonzero(reached))

    def scores_at_least(self, least: float) -> Scores:
        scores = self._scores(self._near(_odds_at(least)))
        return np.sort(scores[scores >= least])[::-1]

    def expected(self, query: CalibratedQuery) -> HitCount:
        return query.count_of_odds(self.odds)

    def _near(self, odds: float) -> Rows:
        """Return the rows, in order, that may have these odds or higher ones."""
        least = min(odds, MOST_ODDS) * (1 - ROUNDING)
        if least > LEAST_ODDS:
            return np.flatnonzero(self.odds >= least)
        inside = self.query.inside([column.log_p for column in self.columns])
        present = np.ones(len(self.odds), np.bool_) if inside is None else inside
        present[self.gone] = False
        return np.flatnonzero(present)

    def _scores(self, rows: Rows) -> Scores:
        """Return the scores of some rows, in 64 bits until the end.

        Of log p and log(1 - p) the smaller one is taken: rounded on their own, p and 1 - p do not
        add up to 1, which a query that names a label twice would multiply.
        """
        log_p, log_q = stacked(self.columns, rows, np.float64)
        smaller = np.minimum(log_p, log_q)
        larger = np.log1p(-np.exp(smaller))
        likely = log_p > log_q
        scores = self.query.log_scores(
            np.where(likely, larger, smaller), np.where(likely, smaller, larger)
        )
        return scores.astype(np.float32)


Ranking = ScoreRanking | OddsRanking  # of all rows of an index but those that are gone


def _odds_at(least: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.exp(np.float64(least)) / -np.expm1(np.float64(least)))


def ranking_of(query: BoundQuery, odds_of: Callable[[int], LabelOdds], gone: Rows) -> Ranking:
    """Return the ranking of all rows by the odds of a query's labels, without those ``gone``."""
    expression = query.expression
    parts = expression.parts if isinstance(expression, AllOf) else (expression,)
    literals = [literal for literal in map(literal_of, parts) if literal is not None]
    if query.groups:
        columns = [odds_of(column) for column in query.columns]
        scores = np.empty(len(columns[0].log_p), np.float32)
        for at in range(0, len(scores), ROWS_AT_ONCE):
            rows = slice(at, at + ROWS_AT_ONCE)
            scores[rows] = query.log_scores(*stacked(columns, rows, np.float32))
    elif query.limits or len({column for column, _ in literals}) != len(parts):
        return OddsRanking(query, [odds_of(column) for column in query.columns], gone)
    else:
        every = ((odds_of(int(column)), wanted) for column, wanted in literals)
        first, *terms = (odds.log_p if wanted else odds.log_q for odds, wanted in every)
        scores = first.copy()
        for term in terms:
            scores += term
    scores[gone] = -np.inf
    return ScoreRanking(scores)

"""A query's ranking of all rows: the best of them, how many reach a score, how many hits to expect.

Labels wanted and unwanted alone have a sum of columns for a score, which ``scan`` searches with
bounds. Of any other query, such as ``(cat | dog), -sofa``, a part that names any of some labels
bounds the score too: a row that is neither among the largest of cat nor among those of dog has

    P(query) <= 1 - (1 - p of the last cat) (1 - p of the last dog)

and once the k-th best score of the rows among them exceeds that, they hold the k best ones. Where
no part settles it, all rows are read once: their odds are computed in 32 bits by sums and products
of p and 1 - p, which stay within ROUNDING of what the score says. So the rows whose odds come
within ROUNDING of the k-th largest hold the k best ones, and they alone get the score itself. Every
way gives the rows that a full sort would give.

Of a query that names two labels which exclude each other, all rows get the score itself.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.bucket_counts import BucketCounts
from labelwise.photos.index import Index
from labelwise.photos.model_odds import LabelOdds
from labelwise.photos.scan import (
    NO_ROWS,
    NO_SCORES,
    Rows,
    ScanTerm,
    Scores,
    best_of,
    best_rows,
    count_at_least,
    in_threads,
    sum_of,
    tried_rows,
    value_at,
)
from labelwise.retrieval import BoundQuery, CalibratedQuery, HitCount
from labelwise.retrieval.bound_query import log1mexp
from labelwise.retrieval.expression import AllOf, AnyOf, literal_of

ROWS_AT_ONCE = 1 << 17
ROUNDING = 1e-3  # of odds in 32 bits; 400 labels with log p of -87 in sum reach a tenth of it
BOUND_ROUNDING = 1e-5  # of logs in 32 bits, that a bound must be exceeded by
TRIED_LABELS_SHARE = 8  # of so many rows one may be tried for all labels of a part together
LEAST_ODDS, MOST_ODDS = 1e-12, 1e12  # beyond, logs of sums have too few digits themselves


class Ranking(ABC):
    """All rows of an index but those that are gone, ordered by the score of a query."""

    @abstractmethod
    def best(self, count: int) -> tuple[Rows, Scores]:
        """Return the ``count`` rows of highest score, best first, and their scores."""

    @abstractmethod
    def count_at_least(self, least: float) -> int:
        """Return how many rows have a score of at least ``least``."""

    @abstractmethod
    def scores_at_least(self, least: float) -> Scores:
        """Return the scores that are at least ``least``, in no order."""

    def tally_at_least(self, least: float) -> BucketCounts:
        """Return how many rows have which score, of those from ``least`` on at least."""
        return BucketCounts.of(self.scores_at_least(least))

    @abstractmethod
    def expected(self, query: CalibratedQuery) -> HitCount:
        """Return how many rows are expected to answer the query as it is calibrated."""


class SumRanking(Ranking):
    """Rows by a sum of columns."""

    def __init__(self, terms: Sequence[ScanTerm], gone: Rows) -> None:
        self.terms, self.gone = terms, gone

    def best(self, count: int) -> tuple[Rows, Scores]:
        return best_rows(self.terms, count, self.gone)

    def count_at_least(self, least: float) -> int:
        return count_at_least(self.terms, least, self.gone)

    def scores_at_least(self, least: float) -> Scores:
        return np.compress(self._scores >= least, self._scores)

    def tally_at_least(self, least: float) -> BucketCounts:
        return self._tally

    def expected(self, query: CalibratedQuery) -> HitCount:
        return query.count(self._tally)

    @cached_property
    def _tally(self) -> BucketCounts:
        return BucketCounts.of(self._scores)

    @cached_property
    def _scores(self) -> Scores:
        """The scores of all rows; minus infinity where a row is gone."""
        scores = sum_of(self.terms, slice(None))
        scores[self.gone] = -np.inf
        return scores


class OddsRanking(Ranking):
    """Rows by the score of any expression over columns."""

    def __init__(self, query: BoundQuery, columns: Sequence[LabelOdds], gone: Rows) -> None:
        self.query, self.columns, self.gone = query, columns, gone

    @cached_property
    def odds(self) -> NDArray[np.float32]:
        """The odds of all rows, to ROUNDING; 0 where a row is gone or left out by a limit."""
        size = len(self.columns[0].log_p)
        odds = np.empty(size, np.float32)
        pairs = [one.pair for one in self.columns]

        def compute(blocks: Sequence[slice]) -> None:
            for rows in blocks:
                part = self.query.odds([p[rows] for p, _ in pairs], [q[rows] for _, q in pairs])
                inside = self.query.inside([one.log_p.values[rows] for one in self.columns])
                odds[rows] = part if inside is None else np.where(inside, part, 0)

        starts = range(0, size, ROWS_AT_ONCE)
        in_threads(compute, [slice(at, min(at + ROWS_AT_ONCE, size)) for at in starts], size)
        odds[self.gone] = 0
        return odds

    def best(self, count: int) -> tuple[Rows, Scores]:
        if count <= 0:
            return NO_ROWS, NO_SCORES
        return self._tried(count) or self._read(count)

    def _tried(self, count: int) -> tuple[Rows, Scores] | None:
        """Return the best rows, where the largest of the labels of one part hold them.

        The first tries give a score that the k-th best one reaches; it says how many of the largest
        are needed, and which of these are worth a score.
        """
        if not (parts := self._drivers()):
            return None
        size = len(self.columns[0].log_p)
        driver = min(parts, key=lambda terms: _bound(terms, tried_rows(size)))
        rows = np.unique(np.concatenate([term.largest[0][: 4 * count] for term in driver]))
        found = best_of(rows, self._scores(rows), count, self.gone)
        if len(rows) == size:
            return found
        least = float(found[1][-1]) if len(found[1]) == count else -np.inf
        depths = range(1, tried_rows(size) + 1)
        needed = bisect_right(
            depths, -least, key=lambda depth: -_bound(driver, depth) - BOUND_ROUNDING
        )
        settled = needed < len(depths) and LEAST_ODDS < _odds_at(least) < MOST_ODDS
        if not settled or len(driver) * depths[needed] > size // TRIED_LABELS_SHARE:
            return None
        rows = np.concatenate([term.largest[0][: depths[needed]] for term in driver])
        log_p = [one.log_p.values[rows] for one in self.columns]
        log_q = [one.log_q.values[rows] for one in self.columns]
        odds = self.query.odds([np.exp(one) for one in log_p], [np.exp(one) for one in log_q])
        rows = np.unique(rows[odds >= _odds_at(least) * (1 - ROUNDING)])
        return best_of(rows, self._scores(rows), count, self.gone)

    def _drivers(self) -> list[list[ScanTerm]]:
        """Return the columns of each part of the query that names any of some labels."""
        expression = self.query.expression
        found = []
        for part in expression.parts if isinstance(expression, AllOf) else (expression,):
            named = part.parts if isinstance(part, AnyOf) else (part,)
            literals = [literal_of(one) for one in named]
            if all(literal is not None for literal in literals):
                found.append([self._column(*literal) for literal in literals if literal])
        return found

    def _column(self, name: str, wanted: bool) -> ScanTerm:
        odds = self.columns[self.query.columns.index(int(name))]
        return odds.log_p if wanted else odds.log_q

    def _read(self, count: int) -> tuple[Rows, Scores]:
        """Return the best rows, by the odds of all."""
        least = min(value_at(self.odds, count), MOST_ODDS) * (1 - ROUNDING)
        rows = np.flatnonzero(self.odds >= least) if least > LEAST_ODDS else self._present
        return best_of(rows, self._scores(rows), count)

    def count_at_least(self, least: float) -> int:
        odds = _odds_at(least)
        if odds * (1 - ROUNDING) <= LEAST_ODDS:
            return int(np.count_nonzero(self._scores(self._present) >= least))
        surely = self.odds > odds * (1 + ROUNDING) if odds < MOST_ODDS else np.False_
        doubtful = np.flatnonzero((self.odds >= min(odds, MOST_ODDS) * (1 - ROUNDING)) & ~surely)
        reached = self._scores(doubtful) >= least
        return int(np.count_nonzero(surely) + np.count_nonzero(reached))

    def scores_at_least(self, least: float) -> Scores:
        near = min(_odds_at(least), MOST_ODDS) * (1 - ROUNDING)
        rows = np.flatnonzero(self.odds >= near) if near > LEAST_ODDS else self._present
        scores = self._scores(rows)
        return scores[scores >= least]

    def expected(self, query: CalibratedQuery) -> HitCount:
        return query.count_of_odds(self.odds)

    @property
    def _present(self) -> Rows:
        """The rows that are neither gone nor left out by a limit."""
        inside = self.query.inside([one.log_p.values for one in self.columns])
        present = np.ones(len(self.odds), np.bool_) if inside is None else inside
        present[self.gone] = False
        return np.flatnonzero(present)

    def _scores(self, rows: Rows) -> Scores:
        """Return the scores of some rows, in 64 bits until the end.

        Of log p and log(1 - p) the smaller one is taken: rounded on their own, p and 1 - p do not
        add up to 1, which a query that names a label twice would multiply.
        """
        log_p, log_q = (
            np.stack([column.values[rows] for column in side], axis=1).astype(np.float64)
            for side in (
                [one.log_p for one in self.columns],
                [one.log_q for one in self.columns],
            )
        )
        smaller = np.minimum(log_p, log_q)
        larger = np.log1p(-np.exp(smaller))
        likely = log_p > log_q
        scores = self.query.log_scores(
            np.where(likely, larger, smaller), np.where(likely, smaller, larger)
        )
        return scores.astype(np.float32)


class GroupedRanking(Ranking):
    """Rows by the score of an expression over labels that exclude each other."""

    def __init__(self, query: BoundQuery, columns: Sequence[LabelOdds], gone: Rows) -> None:
        self.query, self.columns, self.gone = query, columns, gone

    @cached_property
    def scores(self) -> Scores:
        """The scores of all rows, minus infinity where a row is gone."""
        size = len(self.columns[0].log_p)
        scores = np.empty(size, np.float32)
        for at in range(0, size, ROWS_AT_ONCE):
            rows = slice(at, at + ROWS_AT_ONCE)
            log_p = np.stack([one.log_p.values[rows] for one in self.columns], axis=1)
            log_q = np.stack([one.log_q.values[rows] for one in self.columns], axis=1)
            scores[rows] = self.query.log_scores(log_p, log_q)
        scores[self.gone] = -np.inf
        return scores

    def best(self, count: int) -> tuple[Rows, Scores]:
        if count <= 0:
            return NO_ROWS, NO_SCORES
        return best_of(np.arange(len(self.scores)), self.scores, count, self.gone)

    def count_at_least(self, least: float) -> int:
        return int(np.count_nonzero(self.scores >= least))

    def scores_at_least(self, least: float) -> Scores:
        return np.compress(self.scores >= least, self.scores)

    def expected(self, query: CalibratedQuery) -> HitCount:
        return query.count(self.scores)


class FallingScores:
    """The scores of a ranking, sorted once down to the lowest one that is asked for."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self._rising, self._least = NO_SCORES, np.inf

    def count_at_least(self, least: float) -> int:
        """Return how many rows have a score of at least ``least``."""
        return self.ranking.count_at_least(least)

    def scores_at_least(self, least: float) -> Scores:
        """Return the scores that are at least ``least``, the highest first."""
        if least < self._least:
            self._rising, self._least = np.sort(self.ranking.scores_at_least(least)), least
        first = np.searchsorted(self._rising, np.float32(least))
        return self._rising[first:][::-1]

    def tally_at_least(self, least: float) -> BucketCounts:
        """Return how many rows have which score, of those from ``least`` on at least."""
        return self.ranking.tally_at_least(least)

    def lowest_of(self, count: int) -> float:
        """Return the lowest score of the best ``count`` rows, of which there must be so many."""
        if count <= len(self._rising):
            return float(self._rising[-count])
        return float(self.ranking.best(count)[1][-1])


def _bound(terms: Sequence[ScanTerm], depth: int) -> float:
    """Return a bound of log P(any of them) of rows not among so many largest of any term."""
    last = np.array([term.largest[1][depth - 1] for term in terms], np.float64)
    return float(log1mexp(log1mexp(np.minimum(last, 0.0)).sum()))


def _odds_at(least: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.exp(np.float64(least)) / -np.expm1(np.float64(least)))


def ranking_of(
    index: Index, query: BoundQuery, gone: Rows, *, refit: bool, corrected: bool = True
) -> Ranking:
    """Return the ranking of an index's rows, those in ``gone`` (sorted) left out.

    Without ``corrected`` it is the model's own, as if nobody had said anything.
    """

    def odds_of(column: int) -> LabelOdds:
        return index.odds(column, refit=refit, corrected=corrected)

    if query.groups:
        return GroupedRanking(query, [odds_of(k) for k in query.columns], gone)
    expression = query.expression
    parts = expression.parts if isinstance(expression, AllOf) else (expression,)
    literals = [literal for literal in map(literal_of, parts) if literal is not None]
    each_once = len({column for column, _ in literals}) == len(parts)
    if each_once and not query.limits:
        odds = [(odds_of(int(column)), wanted) for column, wanted in literals]
        return SumRanking([one.log_p if wanted else one.log_q for one, wanted in odds], gone)
    return OddsRanking(query, [odds_of(k) for k in query.columns], gone)

"""Oracle: the score of every row by logarithms in 64 bits, and a full stable sort of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.photos import topk
from labelwise.photos.topk import LabelOdds, OddsRanking, ranking_of, value_at
from labelwise.retrieval import Query, bind, calibrate_query
from labelwise.types import LabelSpace

SPACE = LabelSpace(("a", "b", "c", "d"))
QUERIES = (
    "(a | b), -c",
    "a | b | -d",
    "a>0.4, b",
    "a<0.6, (b | c)",
    "(a | b), (a | c), -d",
    "-(a, b), (c | -d)",
    "none",
    "none | (a, b)",
)


def label_odds(random, rows, spread):
    """Few levels, so that there are many ties, some answers that are certain, and tiny ones."""
    logits = spread * random.integers(-12, 12, rows) / 4.0
    log_p, log_q = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
    certain = random.random(rows)
    log_p[certain < 0.05], log_q[certain < 0.05] = 0.0, -np.inf
    log_p[certain > 0.95], log_q[certain > 0.95] = -np.inf, 0.0
    return LabelOdds(log_p.astype(np.float32), log_q.astype(np.float32))


def all_scores(ranking):
    log_p, log_q = (
        np.stack(one, 1).astype(np.float64)
        for one in zip(*((c.log_p, c.log_q) for c in ranking.columns), strict=True)
    )
    likely = log_p > log_q  # the smaller one has more digits
    log_p[likely] = np.log1p(-np.exp(log_q[likely]))
    log_q[~likely] = np.log1p(-np.exp(log_p[~likely]))
    scores = ranking.query.log_scores(log_p, log_q)
    scores[ranking.gone] = -np.inf
    return scores


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(QUERIES),
    st.integers(1, 300),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from((1.0, 4.0, 40.0)),
)
def test_any_query_finds_what_a_full_sort_finds(text, rows, count, seed, spread):
    random = np.random.default_rng(seed)
    query = bind(Query.parse(text), SPACE)
    gone = np.flatnonzero(random.random(rows) < 0.1)
    ranking = OddsRanking(query, [label_odds(random, rows, spread) for _ in query.columns], gone)
    scores = all_scores(ranking)
    rounded = scores.astype(np.float32)

    found, values = ranking.best(count)

    listed = np.flatnonzero(rounded > -np.inf)
    expected = listed[np.lexsort((listed, -rounded[listed]))][:count]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values, rounded[expected])
    for least in (-60.0, -3.0, float(rounded[seed % rows]), 0.0):
        if least > -np.inf:
            assert ranking.count_at_least(least) == np.count_nonzero(rounded >= np.float32(least))


@pytest.mark.parametrize("text", QUERIES)
def test_hits_are_counted_as_logarithms_count_them(text):
    random = np.random.default_rng(0)
    query, rows = bind(Query.parse(text), SPACE), 40_000
    columns = [label_odds(random, rows, 1.0 + random.random()) for _ in query.columns]
    ranking = OddsRanking(query, columns, np.arange(0, rows, 7))
    held_out = np.full((400, len(columns)), -1.0)
    log_p = held_out * random.exponential(1, held_out.shape)
    labels = random.random(held_out.shape) < np.exp(log_p)
    calibrated = calibrate_query(query, log_p, np.log(-np.expm1(log_p)), labels)

    ours, exact = ranking.expected(calibrated), calibrated.count(all_scores(ranking))

    assert ours.expected == pytest.approx(exact.expected, rel=1e-4)
    assert ours.lower == pytest.approx(exact.lower, rel=1e-4)
    assert ours.upper == pytest.approx(exact.upper, rel=1e-4)


def test_scores_of_lists_are_sorted():
    random, rows = np.random.default_rng(0), 500
    query = bind(Query.parse("(a | b), -c"), SPACE)
    columns = [label_odds(random, rows, 1.0) for _ in query.columns]
    ranking = OddsRanking(query, columns, np.arange(0, rows, 7))
    expected = np.sort(all_scores(ranking).astype(np.float32))[::-1]
    tied = float(expected[np.flatnonzero(expected[1:] == expected[:-1])[0]])
    for least in (-0.5, 0.0, tied, -2.0):
        found = ranking.scores_at_least(least)
        np.testing.assert_array_equal(found, expected[expected >= np.float32(least)])


@pytest.mark.parametrize("beside", [0.0, 3.0])
def test_only_near_rows_get_their_score(monkeypatch, beside):
    logits = np.random.default_rng(0).normal(-3, 2, (3, 50_000))
    if beside:
        logits[2] = np.maximum(*logits[:2]) + beside  # present wherever the others are
    sides = [[-np.logaddexp(0, s * one).astype(np.float32) for s in (-1, 1)] for one in logits]
    scored, plain = [], OddsRanking._scores
    monkeypatch.setattr(
        OddsRanking, "_scores", lambda self, rows: scored.append(len(rows)) or plain(self, rows)
    )
    query, none = bind(Query.parse("(a | b), -c"), SPACE), np.empty(0, np.int64)
    ranking = OddsRanking(query, [LabelOdds(*one) for one in sides], none)
    found, _ = ranking.best(50)
    rounded = all_scores(ranking).astype(np.float32)
    np.testing.assert_array_equal(found, np.lexsort((np.arange(len(rounded)), -rounded))[:50])
    assert sum(scored) < 600


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a", "a, -b", "a, -b, -c"]),
    st.integers(0, 400),
    st.integers(0, 60),
    st.integers(0, 2**32 - 1),
)
def test_sums_of_labels_find_what_a_full_sort_finds(text, rows, count, seed):
    random = np.random.default_rng(seed)
    query = bind(Query.parse(text), SPACE)
    columns = [label_odds(random, rows, 1.0) for _ in query.columns]
    gone = np.flatnonzero(random.random(rows) < 0.1)
    ranking = ranking_of(query, lambda column: columns[query.columns.index(column)], gone)
    scores = sum(
        one.log_p if name == "a" else one.log_q for one, name in zip(columns, "abc", strict=False)
    )
    listed = np.setdiff1d(np.flatnonzero(scores > -np.inf), gone)
    expected = listed[np.lexsort((listed, -scores[listed]))]
    found, values = ranking.best(count)
    np.testing.assert_array_equal(found, expected[:count])
    np.testing.assert_array_equal(values, scores[expected[:count]])
    for least in (-60.0, -3.0, -0.5, 0.0):
        assert ranking.count_at_least(least) == np.count_nonzero(scores[listed] >= least)


def test_more_rows_are_shared_by_threads(monkeypatch):
    random = np.random.default_rng(0)
    query = bind(Query.parse("(a | b), -c"), SPACE)
    columns = [label_odds(random, 1_000, 1.0) for _ in query.columns]
    gone = np.array([3, 500])
    alone = OddsRanking(query, columns, gone).odds
    monkeypatch.setattr(topk, "PARALLEL", 1)
    monkeypatch.setattr(topk, "ROWS_AT_ONCE", 64)
    np.testing.assert_array_equal(OddsRanking(query, columns, gone).odds, alone)
    assert not alone[gone].any()


@pytest.mark.parametrize("count", [1, 2, 15, 16, 63, 64, 65, 999, 1_000])
def test_the_value_at_a_place_is_that_of_a_sort(count):
    values = np.random.default_rng(count).integers(0, 50, 1_000).astype(np.float32)
    assert value_at(values, count) == np.sort(values)[-count]
    assert value_at(values[:count], count) == values[:count].min()
    assert value_at(values[:3], 4) == -np.inf

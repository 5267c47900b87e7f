"""Oracles: sklearn's average precision in a loop over queries, and METHODS' counts of queries."""

from itertools import combinations, product

import numpy as np
import pytest
from golden import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from labelwise.queries import count_queries, quality, retrieval_map


def problem(images=60, labels=5, seed=0, *, decimals=None, unknown=False, zeros=False):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(images, labels)) * 2 - 1
    if decimals is not None:
        logits = logits.round(decimals)
    truth = rng.random((images, labels)) < 1 / (1 + np.exp(-logits))
    truth[:, -1] &= rng.random(images) < 0.2
    observed = rng.random((images, labels)) < 0.8 if unknown else None
    log_p, log_q = -np.log1p(np.exp(-logits)), -np.log1p(np.exp(logits))
    if zeros:
        log_p[::3, 0], log_q[::3, 0] = -np.inf, 0.0
        log_p[1::3, 1], log_q[1::3, 1] = 0.0, -np.inf
    return log_p, log_q, truth, observed


def slow(log_p, log_q, truth, observed, length):
    """Every query of a length by definition; NaN where no image is relevant."""
    values = []
    for columns in combinations(range(truth.shape[1]), length):
        for unwanted in product([False, True], repeat=length):
            if all(unwanted):
                continue
            first = unwanted.index(False)
            scores, relevant = log_p[:, columns[first]], truth[:, columns[first]]
            for place, (column, absent) in enumerate(zip(columns, unwanted, strict=True)):
                if place != first:
                    scores = scores + (log_q if absent else log_p)[:, column]
                    relevant = relevant & (truth[:, column] != absent)
            if observed is not None:
                known = observed[:, columns].all(1)
                scores, relevant = scores[known], relevant[known]
            scores = np.maximum(scores, -1e300)
            values.append(average_precision_score(relevant, scores) if relevant.any() else np.nan)
    return np.array(values)


@pytest.mark.parametrize("kind", [{}, {"decimals": 0}, {"unknown": True}, {"zeros": True}])
@pytest.mark.parametrize("images", [3, 40])
def test_all_queries_as_sklearn_says(kind, images):
    tables = problem(images, 4, seed=images, **kind)
    results = retrieval_map(*tables, longest=5)
    assert [result.length for result in results] == [1, 2, 3, 4]
    for result in results:
        expected = slow(*tables, result.length)
        assert result.value == pytest.approx(np.nanmean(expected), rel=1e-12)
        missing = np.isnan(expected).sum()
        assert (result.queries, result.skipped) == (len(expected) - missing, missing)
        assert (result.exhaustive, result.error) == (True, 0)


@given(st.integers(0, 10_000), st.integers(1, 300), st.sampled_from([0, None]))
@settings(max_examples=25, deadline=None)
def test_precision_of_costs_whatever_the_number_of_relevant_images(seed, relevant, decimals):
    rng = np.random.default_rng(seed)
    costs = rng.exponential(size=300).astype(np.float32)
    if decimals is not None:
        costs = costs.round(decimals)
    costs[rng.random(300) < 0.01] = np.inf
    rows = rng.permutation(300)[:relevant]
    truth = np.isin(np.arange(300), rows)
    expected = average_precision_score(truth, -np.minimum(costs, np.float32(1e30)))
    assert quality.average_precision_of_costs(costs, rows) == pytest.approx(expected, rel=1e-12)


def test_golden_counts_and_every_query_listed_once():
    case = cases("retrieval")["number of queries with |P|>=1 and length n=1..5"]
    for labels, counts in case["expected"].items():
        found = [count_queries(int(labels), n + 1) for n in range(5)]
        assert [*found, sum(found)] == counts
    for length in (1, 3):
        queries = {tuple(query) for query in quality.all_queries(5, length).tolist()}
        assert len(queries) == count_queries(5, length)
        assert all(len({row % 5 for row in query}) == length for query in queries)
        for first, *others in queries:
            wanted = [row for row in (first, *others) if row < 5]
            assert first == min(wanted)
            assert [row % 5 for row in others] == sorted(row % 5 for row in others)


def test_a_sample_is_uniform_among_answered_queries_and_near_the_whole():
    log_p, log_q, truth, _ = problem(300, 8)
    whole = retrieval_map(log_p, log_q, truth, longest=3)[2]
    options = {"longest": 3, "exhaustive": 100, "sample": 200}
    drawn = retrieval_map(log_p, log_q, truth, **options, seed=1)[2]
    assert (drawn.exhaustive, drawn.queries) == (False, 200)
    assert abs(drawn.value - whole.value) < 4 * drawn.error
    assert retrieval_map(log_p, log_q, truth, **options, seed=1)[2] == drawn
    assert retrieval_map(log_p, log_q, truth, **options, seed=2)[2] != drawn


def test_sampled_queries_are_distinct_have_relevant_images_and_cover_all():
    relevant = quality.CostTable.of(*problem(30, 5)).relevant
    queries, skipped = quality.sample_queries(relevant, 3, 1000, seed=0)
    answered = [q for q in quality.all_queries(5, 3).tolist() if relevant[q].all(0).any()]
    assert sorted(queries.tolist()) == sorted(answered)
    assert skipped > 0
    one, _ = quality.sample_queries(relevant, 1, 3, seed=0)
    assert len(one) == 3


def test_a_label_that_no_image_carries_leaves_its_queries_out():
    log_p, log_q, truth, _ = problem()
    truth[:, 2] = False
    result = retrieval_map(log_p, log_q, truth, longest=2)[1]
    assert result.skipped == np.isnan(slow(log_p, log_q, truth, None, 2)).sum() >= 8
    empty = retrieval_map(log_p, log_q, np.zeros_like(truth), longest=2)
    assert [(point.queries, np.isnan(point.value)) for point in empty] == [(0, True)] * 2


def test_says_what_is_wrong():
    log_p, log_q, truth, _ = problem()
    for arrays, longest, words in (
        ((log_p, log_q[:, :2], truth), 3, r"log_q must have the shape of log_p, \(60, 5\)"),
        ((log_p[0], log_q[0], truth[0]), 3, r"must be \(N, K\)"),
        ((log_p, log_q, truth), 0, "longest must be at least 1"),
        ((np.exp(log_p), log_q, truth), 3, "logarithms of probabilities"),
        ((log_p, log_q, truth - 1.5), 3, "labels must be 0 or 1"),
    ):
        with pytest.raises(ValueError, match=words):
            retrieval_map(*arrays, longest=longest)

"""Counts of scores that merge: oracle is the exact figure of all entries, in any sharding."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise import metrics
from labelwise.metrics import ScoreCounts

ROUNDING = 1e-12


def drawn(seed, rows, kind, dtype):
    draw = np.random.default_rng(seed)
    present = draw.random(rows) < draw.uniform(0.02, 0.6)
    scores = draw.normal(scale=4, size=rows) + 2 * present
    if kind == "ties":
        scores = scores.round()
    elif kind == "narrow":
        scores = 0.2 + scores / 1e4
    return scores.astype(dtype), present


def merged(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return total


def assert_equal(one, other):
    assert (one.limit, one.dropped) == (other.limit, other.dropped)
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.positives, other.positives)
    np.testing.assert_array_equal(one.others, other.others)


shardings = given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.sampled_from(["plain", "ties", "narrow"]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(2, 500),
    st.integers(1, 6),
)


@settings(max_examples=40, deadline=None)
@shardings
def test_any_sharding_in_any_order_gives_the_same_counts(seed, rows, kind, dtype, limit, shards):
    scores, present = drawn(seed, rows, kind, dtype)
    draw = np.random.default_rng(seed + 1)
    owner = draw.integers(shards, size=rows)
    parts = [ScoreCounts.of(scores[owner == s], present[owner == s], limit) for s in range(shards)]
    whole = ScoreCounts.of(scores, present, limit)
    assert_equal(merged(parts), whole)
    assert_equal(merged([parts[place] for place in draw.permutation(shards)]), whole)
    middle = shards // 2
    if middle:
        assert_equal(merged(parts[:middle]).merge(merged(parts[middle:])), whole)
    assert len(whole.keys) <= limit
    assert whole.positives.sum() == present.sum()
    assert whole.others.sum() == rows - present.sum()


@settings(max_examples=40, deadline=None)
@shardings
def test_figures_are_within_their_bounds_and_exact_where_they_say_so(
    seed, rows, kind, dtype, limit, shards
):
    scores, present = drawn(seed, rows, kind, dtype)
    counts = ScoreCounts.of(scores, present, limit)
    matrix, labels = scores[:, None], present[:, None]
    inside, outside = scores[present], scores[~present]
    for found, truth in (
        (counts.average_precision(), metrics.average_precision(matrix, labels).value),
        (counts.auroc(), metrics.micro_auroc(matrix, labels)),
        (counts.false_positive_rate_at(), metrics.false_positive_rate_at(inside, outside)),
    ):
        if np.isnan(truth):
            assert np.isnan(found.value)
            continue
        assert abs(found.value - truth) <= found.bound + ROUNDING
        if counts.exact:
            assert found.bound == 0
    assert counts.exact == (len(np.unique(scores)) <= limit)


def test_bits_are_dropped_only_as_far_as_the_limit_asks():
    scores, present = drawn(3, 300, "plain", np.float32)
    for limit in (250, 100, 20):
        counts = ScoreCounts.of(scores, present, limit)
        finer = ScoreCounts.of(scores, present, 10**6)._with(counts.dropped - 1)
        assert len(counts.keys) <= limit < len(finer.keys)


def test_zeros_are_equal_and_infinities_in_order():
    scores = np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf], np.float32)
    counts = ScoreCounts.of(scores, np.array([False, True, True, False, True, True]))
    assert counts.positives.tolist() == [0, 1, 1, 1, 1]
    assert counts.others.tolist() == [1, 0, 1, 0, 0]

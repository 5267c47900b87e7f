"""Oracles: golden vectors, plain loops (metrics_reference), and scikit-learn.

Counts of scores that merge are checked against the exact figure of all entries, in any sharding.
"""

from functools import reduce

import metrics_reference as slow
import numpy as np
import pytest
from golden import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from labelwise import metrics
from labelwise.metrics import ScoreCounts, lines

QUICK = settings(max_examples=40, deadline=None)
SLOW_AP = {"tied": slow.ap_tied, "untied": slow.ap_untied, "voc": slow.ap_voc}


def column(values):
    return np.asarray(values)[:, None]


@pytest.mark.parametrize("case", GOLDEN["ap"], ids=lambda case: case["name"])
def test_golden_average_precision(case):
    scores, labels = (column(case["inputs"][key]) for key in ("scores", "targets"))
    names = {
        "ap_tie_aware": "tied",
        "ap_noninterpolated": "untied",
        "ap_if_positives_first": "untied",
        "ap_voc_interpolated": "voc",
    }
    for key, expected in case["expected"].items():
        if key in names:
            ours = metrics.average_precision(scores, labels, variant=names[key]).value
        else:
            assert key == "ap_if_positives_last"
            ours = metrics.average_precision(scores[::-1], labels[::-1], variant="untied").value
        assert ours == pytest.approx(expected, rel=1e-12), key


@QUICK
@given(problem=slow.PROBLEMS)
def test_metrics_equal_the_loops(problem):
    scores, labels, observed = problem
    for by in ("label", "image"):
        for variant, loop in SLOW_AP.items():
            expected = [loop(*line) for line in slow.lines(*problem, by)]
            found = metrics.average_precision(*problem, by=by, variant=variant)
            np.testing.assert_allclose(found.items, expected, rtol=1e-12)
            assert found.undefined.tolist() == np.flatnonzero(np.isnan(expected)).tolist()
            mean = np.nanmean(expected) if found.num_defined else np.nan
            assert found.value == pytest.approx(mean, rel=1e-12, nan_ok=True)
        expected = [slow.auroc(*line) for line in slow.lines(*problem, by)]
        np.testing.assert_allclose(metrics.auroc(*problem, by=by).items, expected, rtol=1e-12)
    for name, loop in (("coverage_error", slow.coverage), ("one_error", slow.one_error)):
        expected = [loop(*line) for line in slow.lines(*problem, "image")]
        found = getattr(metrics, name)(*problem)
        np.testing.assert_allclose(found.items, expected, rtol=1e-12, err_msg=name)
    flat = scores[observed].tolist(), labels[observed].tolist()
    found, auroc = metrics.micro_average_precision(*problem), slow.auroc(*flat)
    assert found == pytest.approx(slow.ap_tied(*flat), rel=1e-12, nan_ok=True)
    assert metrics.micro_auroc(*problem) == pytest.approx(auroc, rel=1e-12, nan_ok=True)
    with pytest.MonkeyPatch.context() as patch:  # in blocks
        patch.setattr("labelwise.metrics.ranking.SORTED_ENTRIES", 10)
        assert metrics.micro_auroc(*problem) == pytest.approx(auroc, rel=1e-12, nan_ok=True)


def test_untied_ranks_long_ties_by_index():
    """Longer than what any sort does by insertion, which is stable by accident."""
    problem = slow.problem(3, rows=500, columns=3, levels=2)
    expected = [slow.ap_untied(*line) for line in slow.lines(*problem, "label")]
    found = metrics.average_precision(*problem, variant="untied")
    np.testing.assert_allclose(found.items, expected, rtol=1e-12)


def test_sorting_and_comparing_count_the_same(monkeypatch):
    """Both ways to count must agree where the choice between them would fall either way."""
    problem = slow.problem(3, rows=3000, columns=5, levels=200, rate=0.4)
    both = []
    for most in (0, 10**9):
        monkeypatch.setattr(lines, "COMPARED_POSITIVES", most)
        both.append((metrics.auroc(*problem).items, metrics.average_precision(*problem).items))
    np.testing.assert_array_equal(*both)


def test_precision_recall_curve_is_that_of_scikit_learn_where_recall_changes():
    random = np.random.default_rng(0)
    labels = random.random((40, 3)) < 0.3
    scores = random.standard_normal((40, 3)).round(1)
    precision, recall, thresholds = sk.precision_recall_curve(labels.ravel(), scores.ravel())
    kept = np.isin(thresholds, scores[labels])
    curve = metrics.precision_recall_curve(scores, labels)
    np.testing.assert_array_equal(curve.thresholds[::-1], thresholds[kept])
    np.testing.assert_allclose(curve.precision[::-1], precision[:-1][kept], rtol=1e-12)
    np.testing.assert_allclose(curve.recall[::-1], recall[:-1][kept], rtol=1e-12)
    for beta in (1.0, 2.0):
        threshold, value = curve.best(beta)
        every = [sk.fbeta_score(labels.ravel(), scores.ravel() >= t, beta=beta) for t in thresholds]
        assert value == pytest.approx(max(every), rel=1e-12)
        reached = sk.fbeta_score(labels.ravel(), scores.ravel() >= threshold, beta=beta)
        assert value == pytest.approx(reached, rel=1e-12)
    curve = metrics.precision_recall_curve(np.zeros((3, 2)), np.zeros((3, 2)))
    assert len(curve.thresholds) == 0
    with pytest.raises(ValueError, match="at least one positive"):
        curve.best()


def test_other_types_infinities_and_what_stands_at_unobserved_entries_are_read():
    scores, labels, observed = slow.problem(6, rows=30, columns=4, levels=8)
    expected = metrics.average_precision(scores, labels, observed).items
    for same in (scores.astype(np.float16), (8 * scores).astype(np.int64)):
        found = metrics.average_precision(same, labels, observed).items
        np.testing.assert_array_equal(found, expected)
    odd = np.where(observed, labels, -1)
    for low, filler in ((0, np.nan), (-np.inf, np.inf)):
        same = np.where(observed, np.where(scores == 0, low, scores), filler)
        found = metrics.average_precision(same, odd, observed).items
        np.testing.assert_array_equal(found, expected)


def test_empty_matrices_and_labels_without_positives_are_undefined():
    for shape in ((0, 3), (3, 0), (0, 0)):
        empty = np.zeros(shape)
        for by in ("label", "image"):
            found = metrics.average_precision(empty, empty, by=by)
            assert np.isnan(found.value)
            assert found.num_defined == 0
        assert np.isnan(metrics.micro_auroc(empty, empty))
    found = metrics.average_precision(np.eye(3), np.diag([1, 0, 1]))
    assert found.undefined_names(["cat", "dog", "sea"]) == ["dog"]
    with pytest.raises(ValueError, match="names must be 3, got 2"):
        found.undefined_names(["cat", "dog"])


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
    return reduce(ScoreCounts.merge, parts)


@QUICK
@given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.sampled_from(["plain", "ties", "narrow"]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(2, 500),
    st.integers(1, 6),
)
def test_counts_of_any_sharding_are_the_same_and_figures_are_within_their_bounds(
    seed, rows, kind, dtype, limit, shards
):
    scores, present = drawn(seed, rows, kind, dtype)
    counts = ScoreCounts.of(scores, present, limit)
    draw = np.random.default_rng(seed + 1)
    owner = draw.integers(shards, size=rows)
    parts = [ScoreCounts.of(scores[owner == s], present[owner == s], limit) for s in range(shards)]
    halves = [merged(half) for half in (parts[: shards // 2], parts[shards // 2 :]) if half]
    for same in (parts, [parts[place] for place in draw.permutation(shards)], halves):
        for mine, theirs in zip(
            *(vars(one).values() for one in (merged(same), counts)), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    assert len(counts.keys) <= limit
    assert (counts.positives.sum(), counts.others.sum()) == (present.sum(), (~present).sum())
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
        assert abs(found.value - truth) <= found.bound + 1e-12
        if counts.exact:
            assert found.bound == 0
    assert counts.exact == (len(np.unique(scores)) <= limit)


def test_bits_are_dropped_only_as_far_as_the_limit_asks():
    scores, present = drawn(3, 300, "plain", np.float32)
    for limit in (250, 100, 20):
        counts = ScoreCounts.of(scores, present, limit)
        finer = ScoreCounts.of(scores, present, 10**6)._with(counts.dropped - 1)
        assert len(counts.keys) <= limit < len(finer.keys)
    scores = np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf], np.float32)  # zeros are equal
    counts = ScoreCounts.of(scores, np.array([False, True, True, False, True, True]))
    assert counts.positives.tolist() == [0, 1, 1, 1, 1]
    assert counts.others.tolist() == [1, 0, 1, 0, 0]

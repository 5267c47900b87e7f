"""Oracles: golden vectors, plain loops (metrics_reference), scikit-learn, and the formulas."""

import metrics_reference as slow
import numpy as np
import pytest
import torch
from golden import GOLDEN
from hypothesis import given, settings
from scipy.optimize import brentq

from labelwise import metrics
from labelwise.metrics import CalibrationSums, ScoreCounts, mass_edges, reliability, width_edges
from labelwise.metrics.calibration import bin_of, round_edges

QUICK = settings(max_examples=40, deadline=None)


def calibrated(seed, rows=400, columns=6, dtype=np.float64):
    random = np.random.default_rng(seed)
    probs = random.random((rows, columns)).astype(dtype)
    return probs, random.random((rows, columns)) < probs


@pytest.mark.parametrize("case", GOLDEN["calibration"], ids=lambda case: case["name"])
def test_golden(case):
    inputs, expected, where = case["inputs"], case["expected"], None
    if "prob" in inputs:
        probs, labels = (np.array(inputs[key])[:, None] for key in ("prob", "targets"))
    else:
        probs, labels = (np.array(inputs[key]) for key in ("scores", "targets"))
        where = metrics.top_k_sets(probs, case["params"]["k"])
    found = reliability(probs, labels, where=where, bins=case["params"]["bins"])
    for name in ("ece", "ace", "mce"):
        assert getattr(found, name)() == pytest.approx(expected[name], rel=1e-12)
    assert found.counts.tolist() == expected["counts"]
    filled = expected["nonempty"]
    np.testing.assert_allclose(found.confidence[filled], expected["conf"], rtol=1e-12)
    np.testing.assert_allclose(found.accuracy[filled], expected["acc"], rtol=1e-12)
    gaps = np.array(expected["acc"]) - expected["conf"]  # above 0: more came than was said
    np.testing.assert_allclose(found.gaps()[filled], gaps, atol=1e-12)


@QUICK
@given(problem=slow.PROBLEMS)
@pytest.mark.parametrize("bins", [3, 60])
def test_errors_equal_the_loops(problem, bins):
    probs, labels, observed = problem
    edges = width_edges(bins)
    expected = slow.calibration_errors(probs[observed], labels[observed], edges)
    found = reliability(*problem, bins=bins)
    np.testing.assert_allclose([found.ece(), found.ace(), found.mce()], expected, atol=1e-12)
    columns = slow.lines(*problem, "label")
    expected = np.array([slow.calibration_errors(*line, edges) for line in columns])
    found = metrics.label_reliability(*problem, bins=bins)
    errors = np.stack([found.ece(), found.ace(), found.mce()], axis=1)
    np.testing.assert_allclose(errors, expected, atol=1e-12)


@pytest.mark.parametrize("bins", [3, 10, 49])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_edge_lies_in_the_bin_below_it_in_every_precision(bins, dtype):
    """k / M, rounded to the type, belongs to bin k - 1; the next number up belongs to bin k."""
    values = width_edges(bins).astype(dtype)
    edges = round_edges(width_edges(bins), values)
    wide = values.astype(np.float32) if dtype == np.float16 else values
    assert bin_of(wide, edges, np.zeros(bins + 1, dtype=np.intp)).tolist() == [0, *range(bins)]
    above = np.nextafter(values[:-1], dtype(1)).astype(wide.dtype)
    assert bin_of(above, edges, np.zeros(bins, dtype=np.intp)).tolist() == list(range(bins))


@QUICK
@given(problem=slow.PROBLEMS)
def test_mass_bins_hold_equal_counts_up_to_ties(problem):
    probs, _, observed = problem
    bins = 4
    entries = np.sort(probs[observed])
    edges = mass_edges(probs, observed, bins=bins)
    assert (edges[0], edges[-1]) == (0, 1)
    for k in range(1, bins) if len(entries) else ():
        share = -(-len(entries) * k // bins)
        assert np.count_nonzero(entries < edges[k]) < max(share, 1)
        assert np.count_nonzero(entries <= edges[k]) >= share
    own = mass_edges(probs, observed, bins=bins, per_label=True)
    for column in range(probs.shape[1]):
        one = slice(column, column + 1)
        expected = mass_edges(probs[:, one], observed[:, one], bins=bins)
        np.testing.assert_array_equal(own[column], expected)


def test_shards_merge_to_the_whole():
    probs, labels, observed = slow.problem(1, rows=97, columns=7, levels=100)
    whole, merged, streamed = (CalibrationSums.zeros(7, width_edges(12)) for _ in range(3))
    whole.update(probs, labels, observed)
    for rows in np.array_split(np.arange(97), 9):
        shard = CalibrationSums.zeros(7, width_edges(12))
        shard.update(probs[rows], labels[rows], observed[rows])
        streamed.update(probs[rows], labels[rows], observed[rows])
        merged = merged.merge(shard)
    for sums in (merged, streamed):
        np.testing.assert_array_equal(sums.counts, whole.counts)
        np.testing.assert_allclose(sums.confidence_sums, whole.confidence_sums, rtol=1e-13)
        np.testing.assert_array_equal(sums.present_sums, whole.present_sums)
        assert sums.pooled().ece() == pytest.approx(float(whole.pooled().ece()), rel=1e-12)


def test_exact_past_the_whole_numbers_of_float32():
    """float32 sums would stop at 16,777,216."""
    sums = CalibrationSums.zeros(4, width_edges(10))
    sums.update(np.full((6, 4), np.float32(0.25)), np.tile([True, False, False, False], (6, 1)))
    for _ in range(33):
        sums = sums.merge(sums)
    assert (sums.pooled().counts.sum(), sums.pooled().ece()) == (24 * 2**33, 0)
    assert sums.per_label().ece().tolist() == [0.75, 0.25, 0.25, 0.25]
    sums.update(np.full((9, 4), 0.25), np.zeros((9, 4)))
    assert sums.counts[0, 2] == 6 * 2**33 + 9


def test_values_of_every_type_lie_in_their_bins_of_which_there_may_be_many():
    # More bins than a byte can number, one set of edges a label.
    each = metrics.label_reliability(*calibrated(5, rows=700, columns=2), bins=300, binning="mass")
    assert (each.counts.sum(), each.counts.max() <= 3) == (1400, True)
    for probs in (np.array([[0], [1]]), torch.tensor([[0], [1]])):
        assert np.flatnonzero(reliability(probs, np.ones((2, 1))).counts).tolist() == [0, 9]
    probs = torch.tensor([[0.3], [0.7]], dtype=torch.bfloat16)
    assert np.flatnonzero(reliability(probs, torch.zeros(2, 1)).counts).tolist() == [2, 6]


def test_small_bins_can_be_left_out():
    probs, labels = np.array([[0.05]] * 9 + [[0.95]]), np.zeros((10, 1))
    found = reliability(probs, labels)
    assert (found.mce(), found.mce(min_count=2)) == (pytest.approx(0.95), pytest.approx(0.05))
    for error in (found.ace, found.ece):
        assert error(min_count=2) == pytest.approx(0.05)
        assert np.isnan(error(min_count=11))
    with pytest.raises(ValueError, match="min_count"):
        found.ece(min_count=0)


def test_debiased_errors_follow_their_formulas():
    probs, labels = calibrated(3, rows=60)
    found = reliability(probs, labels, bins=5)
    draws = np.random.default_rng(0).standard_normal((50_000, 5))
    deviation = np.sqrt(found.accuracy * (1 - found.accuracy) / found.counts)
    noisy = np.abs(found.gaps() + deviation * draws) @ found.counts / found.counts.sum()
    expected = 2 * found.ece() - noisy.mean()
    assert found.debiased_ece() == pytest.approx(float(expected), abs=1e-3)

    found = reliability(np.full((5, 1), 0.25), np.array([[0], [1], [1], [0], [1]]))
    assert found.debiased_squared() == pytest.approx(0.35**2 - 0.6 * 0.4 / 4, rel=1e-12)


def test_nothing_observed_is_undefined():
    found = reliability(np.array([[0.5]]), np.array([[1]]), np.array([[False]]))
    for value in (found.ece(), found.ace(), found.mce(), found.debiased_ece()):
        assert np.isnan(value)
    assert mass_edges(np.zeros((0, 2)), bins=3).tolist() == width_edges(3).tolist()
    probs, nothing = np.array([[0.0, 1.0]]), np.zeros((1, 2), bool)
    interval = metrics.calibration_interval(probs, probs, nothing, draws=10)
    assert np.isnan([interval.value, interval.low, interval.high]).all()
    assert np.isnan(metrics.smooth_ece(probs, probs, nothing))
    assert metrics.smooth_ece(probs, probs) < 1e-9


def smooth_ece_by_loop(probs, labels):
    """The authors' definition: a Gaussian reflected at 0 and 1, whose sigma is a fixed point."""
    grid = (np.arange(800) + 0.5) / 800
    shifts = [(sign, 2 * shift) for sign in (1, -1) for shift in range(-2, 3)]
    images = np.concatenate([sign * probs + shift for sign, shift in shifts])
    residuals = np.tile(labels - probs, len(shifts))

    def smoothed(sigma):
        density = residuals @ np.exp(-(((grid - images[:, None]) / sigma) ** 2) / 2)
        return np.abs(density).mean() / (len(probs) * sigma * np.sqrt(2 * np.pi))

    return brentq(lambda sigma: smoothed(sigma) - sigma, 1e-3, 1.0, xtol=1e-5)


@pytest.mark.parametrize("shift", [0.0, -0.4])
def test_smooth_error_is_the_authors_fixed_point(shift):
    random = np.random.default_rng(1)
    probs = random.random((30, 4)) ** 2
    labels = random.random((30, 4)) < np.clip(probs + shift, 0, 1)
    observed = random.random((30, 4)) < 0.7
    expected = smooth_ece_by_loop(probs[observed], labels[observed])
    assert metrics.smooth_ece(probs, labels, observed) == pytest.approx(expected, abs=2e-4)
    dirty = np.where(observed, probs, np.nan)
    assert metrics.smooth_ece(dirty, labels, where=observed) == pytest.approx(expected, abs=2e-4)


def test_sets_are_right_as_often_as_the_product_of_their_labels_says():
    """Oracle: a loop over images with all labels known, binned by the product."""
    probs, labels, observed = slow.problem(9, rows=200, columns=3, levels=50, unknown=0.1)
    probs = 0.02 + 0.96 * probs
    sets = probs > 0.4
    whole = observed.all(1)
    stated = np.where(sets, probs, 1 - probs).prod(1)[whole].tolist()
    right = (sets == (labels == 1)).all(1)[whole].tolist()
    expected = slow.calibration_errors(stated, right, width_edges(10))
    logs = np.log(probs), np.log1p(-probs)
    found = metrics.set_reliability(*logs, sets, np.where(observed, labels, -1), observed)
    np.testing.assert_allclose([found.ece(), found.ace(), found.mce()], expected, rtol=1e-12)
    assert found.counts.sum() == len(stated) < 200


# What metrics cannot read is refused with the rule and the value.

RANDOM = np.random.default_rng(4)
PROBS = RANDOM.random((10, 3))
LABELS = RANDOM.random((10, 3)) < PROBS
SETS = PROBS > 0.5
TWO, EYE, NAN = np.zeros((2, 2)), np.eye(2), np.full((2, 2), np.nan)
OWN = mass_edges(PROBS, per_label=True)
SUMS = CalibrationSums.zeros(4, width_edges(10))
SCORES = np.zeros(2, np.float32), np.array([True, False])

REFUSED = [
    (lambda: metrics.average_precision(TWO[0], TWO[0]), r"scores must be \(N, K\), got .*\(2,\)"),
    (lambda: metrics.average_precision(TWO, LABELS), "labels must have the shape of scores"),
    (lambda: metrics.average_precision(TWO, TWO + 0.5), "labels must be 0 or 1"),
    (lambda: metrics.average_precision(NAN, TWO), "must not be NaN"),
    (lambda: metrics.average_precision(TWO, TWO, TWO + 0.5), "observed must be boolean"),
    (lambda: metrics.average_precision(EYE, EYE, by="class"), "by must be .* got 'class'"),
    (lambda: metrics.confusion(EYE > 0, EYE, by="class"), "by must be"),
    (lambda: metrics.average_precision(EYE, EYE, variant="coco"), "variant must be"),
    (lambda: reliability(PROBS * 0 - 1, LABELS), r"probs must lie in \[0, 1\], .* from -1.0"),
    (lambda: reliability(PROBS, LABELS * 2.0), "labels must lie in"),
    (lambda: reliability(PROBS, LABELS, bins=0), "bins must be at least 1, got 0"),
    (lambda: reliability(PROBS, LABELS, binning="adaptive"), "binning must be"),
    (lambda: reliability(PROBS, LABELS, where=PROBS), "where must be boolean, or 0 and 1, got 0"),
    (lambda: SUMS.update(PROBS, LABELS), "probs must have 4 columns, got 3"),
    (lambda: SUMS.merge(CalibrationSums.zeros(4, width_edges(11))), "same labels and edges"),
    (lambda: CalibrationSums.zeros(4, np.zeros((3, 11))), "edges must be"),
    (lambda: CalibrationSums.zeros(3, OWN).pooled(), "bins shared by all labels"),
    (lambda: metrics.calibration_interval(PROBS, LABELS, level=1.0), "level must lie"),
    (lambda: metrics.calibration_interval(PROBS, LABELS, metric="brier"), "metric must be"),
    (lambda: metrics.confusion(SETS / 2 + 0.5, LABELS), "sets must be boolean, .* got 0.5"),
    (lambda: metrics.confusion(SETS, LABELS).f_score(undefined="nan"), "undefined must be"),
    (lambda: metrics.confusion(SETS, LABELS).f_score(beta=0), "beta must be positive"),
    (lambda: metrics.top_k_sets(PROBS, 0), "k must be between 1 and 3"),
    (lambda: metrics.top_k_sets(NAN, 1), "must not be NaN"),
    (lambda: metrics.set_sizes(np.zeros((0, 3), bool)), "at least one set"),
    (lambda: metrics.shot_groups(TWO), "train_counts must be"),
    (lambda: metrics.by_shot(np.zeros(3), np.zeros(2)), "per_label must have 2 values, got 3"),
    (lambda: metrics.separation_auroc(TWO, TWO[0]), "inside must be"),
    (lambda: metrics.false_positive_rate_at(TWO[0], TWO[0], 0), "recall must lie"),
    (lambda: metrics.max_confidence(TWO + 2), "probs must lie"),
    (lambda: ScoreCounts.of(np.array([np.nan]), np.array([True])), "must not be NaN"),
    (lambda: ScoreCounts.of(*SCORES, limit=1), "at least 2"),
    (lambda: ScoreCounts.of(*SCORES, 4).merge(ScoreCounts.of(*SCORES, 5)), "one limit and one"),
]


@pytest.mark.parametrize(("call", "rule"), REFUSED)
def test_what_cannot_be_read_is_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()

"""Oracles: scikit-learn, SciPy, resampling images one by one, and the level of simulated tests."""

import metrics_reference as slow
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit
from sklearn import metrics as sk

from labelwise import metrics


def calibrated(seed, rows=300, columns=5):
    random = np.random.default_rng(seed)
    probs = random.uniform(0.02, 0.98, (rows, columns))
    return probs, random.random((rows, columns)) < probs


def test_scores_equal_scikit_learn():
    probs, labels = calibrated(0)
    labels[:, 0] = True
    brier, log = metrics.brier_score(probs, labels), metrics.log_loss(probs, labels)
    for found, score in ((brier, sk.brier_score_loss), (log, sk.log_loss)):
        expected = [score(labels[:, k], probs[:, k]) for k in range(1, 5)]
        np.testing.assert_allclose(found.per_label.items[1:], expected, rtol=1e-12)
    assert brier.value == pytest.approx(np.mean((probs - labels) ** 2), rel=1e-12)
    assert log.value == pytest.approx(sk.log_loss(labels.ravel(), probs.ravel()), rel=1e-12)
    assert brier.count == log.count == labels.size


@pytest.mark.parametrize("score", [metrics.brier_score, metrics.log_loss])
def test_parts_add_up_and_nothing_hides_when_bins_are_single_values(score):
    random = np.random.default_rng(1)
    probs = random.choice([0.05, 0.25, 0.65, 0.95], (500, 3))
    labels = random.random((500, 3)) < 0.5 * probs + 0.2
    found = score(probs, labels)
    assert found.within == pytest.approx(0, abs=1e-12)
    assert min(found.calibration, found.resolution) > 0
    acc = {p: labels[probs == p].mean() for p in np.unique(probs)}
    mended = np.vectorize(acc.get)(probs)
    assert score(mended, labels).calibration == pytest.approx(0, abs=1e-12)
    assert score(mended, labels).value == pytest.approx(found.refinement, rel=1e-12)
    base = np.full(probs.shape, labels.mean())
    assert score(base, labels).value == pytest.approx(found.uncertainty, rel=1e-12)


MEASURES = {
    "average precision": lambda *given: metrics.average_precision(*given).items,
    "micro AUROC": metrics.micro_auroc,
    "reliability": lambda *given: metrics.label_reliability(*given, bins=8).confidence_sums,
    "Brier": lambda *given: metrics.brier_score(*given).value,
    "F": lambda p, *others: metrics.confusion(p > 0.5, *others).f_score().items,
    "top k": lambda p, *others: metrics.top_k_sets(p, 2),
    "surest": lambda p, *others: metrics.max_confidence(p),
}


@pytest.mark.parametrize("device", slow.DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MEASURES)
def test_torch_on_every_device_equals_numpy(name, dtype, device):
    probs, labels, observed = slow.problem(5, rows=40, columns=6, levels=16)
    given = [torch.from_numpy(side).to(device) for side in (labels, observed)]
    found = MEASURES[name](torch.from_numpy(probs).to(device, dtype), *given)
    np.testing.assert_array_equal(found, MEASURES[name](probs, labels, observed))


@pytest.mark.parametrize("device", slow.DEVICES)
def test_masks_and_tensors(device):
    probs, labels, observed = slow.problem(3, rows=40, columns=5, levels=9)
    probs = 0.05 + 0.9 * probs
    where = np.random.default_rng(0).random(probs.shape) < 0.7
    chosen = observed & where
    expected = np.mean((probs - labels)[chosen] ** 2)
    probs[~chosen], labels[~chosen] = np.nan, -1
    tensors = [torch.from_numpy(a).to(device) for a in (probs, labels, observed)]
    found = metrics.brier_score(*tensors, where=torch.from_numpy(where).to(device))
    assert (found.value, found.count) == (pytest.approx(expected, rel=1e-12), chosen.sum())
    log = metrics.log_loss(*tensors, where=where)
    expected = sk.log_loss(labels[chosen], probs[chosen], labels=[0, 1])
    assert log.value == pytest.approx(expected, rel=1e-12)


def test_logs_keep_what_probabilities_round_away():
    logits = torch.tensor([[60.0, -60.0, 3.0]], dtype=torch.float64)
    log_p, log_q = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
    labels = torch.tensor([[0, 1, 1]])
    found = metrics.log_loss_from_logs(log_p, log_q, labels)
    assert found.value == pytest.approx((60 + 60 + np.log1p(np.exp(-3.0))) / 3, rel=1e-12)
    rounded = metrics.log_loss(log_p.exp(), labels)
    assert (rounded.value, rounded.infinite) == (np.inf, 1)
    assert found.infinite == 0


def test_bootstrap_equals_drawing_images_one_by_one(monkeypatch):
    values = np.random.default_rng(4).exponential(size=(40, 2))

    def ratio(sums):
        return sums[:, 0] / sums[:, 1]

    found = metrics.bootstrap(values, ratio, draws=50, level=0.8, seed=3)
    drawn = np.random.default_rng(3).integers(40, size=(50, 40))
    one_by_one = [values[rows, 0].sum() / values[rows, 1].sum() for rows in drawn]
    value = values[:, 0].sum() / values[:, 1].sum()
    low, high = 2 * value - np.quantile(one_by_one, [0.9, 0.1])
    assert found.value == pytest.approx(value, rel=1e-12)
    assert [found.low, found.high] == pytest.approx([min(low, value), max(high, value)], rel=1e-9)
    monkeypatch.setattr("labelwise.metrics.intervals.DRAWN_ENTRIES", 100)
    assert metrics.bootstrap(values, ratio, draws=50, level=0.8, seed=3) == found


def too_sure(random, rows, sharpness, columns=8):
    """Probabilities, labels of images whose labels go together, and the true probabilities."""
    log_odds = 1.5 * random.normal(size=(rows, columns)) - 1 + 0.8 * random.normal(size=(rows, 1))
    probs, truth = expit(log_odds), expit(log_odds / sharpness)
    return probs, random.random((rows, columns)) < truth, truth


@pytest.mark.parametrize(("metric", "sharpness"), [("ece", 1.0), ("ace", 1.5)])
def test_interval_of_a_calibration_error_covers_the_error_of_all_images(metric, sharpness):
    """The truth is the error in the same bins of many images with their true probabilities."""
    probs, _, truth = too_sure(np.random.default_rng(0), 100_000, sharpness)
    error = getattr(metrics.reliability(probs, truth), metric)() if sharpness > 1 else 0.0
    covered, draws = 0, 20
    for seed in range(draws):
        probs, labels, _ = too_sure(np.random.default_rng(1 + seed), 100, sharpness)
        found = metrics.calibration_interval(probs, labels, metric=metric, draws=200, seed=seed)
        assert found.low <= found.value <= found.high
        assert (found.low == 0) == (found.p_value > 0.05)
        covered += found.low <= error <= found.high
    assert covered >= stats.binom.ppf(0.01, draws, 0.95)
    found = metrics.calibration_interval(np.full((40, 1), 0.5), (np.arange(40) % 2)[:, None])
    assert (found.value, found.low, found.p_value) == (0, 0, 1)
    # The share of heads of 40 coins lies within 1.96 / (2 sqrt(40)) of a half.
    assert found.high == pytest.approx(1.96 / (2 * np.sqrt(40)), rel=0.1)


def test_statistics_equal_plain_linear_algebra():
    probs, labels, observed = slow.problem(10, rows=80, columns=4, levels=97)
    probs = 0.01 + 0.98 * probs
    found = metrics.calibration_test(probs, labels, observed, bins=3)
    gap = np.where(observed, labels - probs, 0)
    bins = [(probs > k / 3) & (probs <= (k + 1) / 3) for k in range(3)]
    drawn = np.stack([np.where(inside, gap, 0).sum(1) for inside in bins])
    total = drawn.sum(axis=1)
    assert found.chi2 == pytest.approx(total @ np.linalg.solve(drawn @ drawn.T, total), rel=1e-9)
    image = (gap * (1 - 2 * probs)).sum(axis=1)
    assert found.spiegelhalter_z == pytest.approx(image.sum() / np.sqrt((image**2).sum()))
    assert found.chi2_p == pytest.approx(stats.chi2.sf(found.chi2, 3), rel=1e-9)
    expected = 2 * stats.norm.sf(abs(found.spiegelhalter_z))
    assert found.spiegelhalter_p == pytest.approx(expected, rel=1e-9)
    assert (found.degrees, found.num_images) == (3, observed.any(1).sum())


def test_certain_and_wrong_refutes_calibration_and_certain_and_right_is_no_evidence():
    probs = np.full((50, 1), 0.5)
    probs[0] = 1.0
    labels = np.arange(50)[:, None] % 2
    found = metrics.calibration_test(probs, labels)
    assert found.impossible == 1
    assert found.chi2_p == found.spiegelhalter_p == 0
    assert metrics.calibration_test(probs, labels, probs < 1).impossible == 0
    right = metrics.calibration_test(np.ones((3, 1)), np.ones((3, 1)))
    assert (right.chi2_p, right.spiegelhalter_p, right.degrees) == (1.0, 1.0, 0)
    together = metrics.calibration_test(np.array([[0.15, 0.85]]), np.array([[1, 0]]))
    assert (together.degrees, together.chi2) == (1, pytest.approx(1))

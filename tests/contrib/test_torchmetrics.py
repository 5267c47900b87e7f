"""Oracle: the metric functions on all batches at once."""

import sys
import warnings

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn.base import clone
from sklearn.metrics import f1_score, log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from labelwise import decide, metrics
from labelwise.calibration import CALIBRATORS, platt
from labelwise.contrib.sklearn import MultilabelCalibrator, MultilabelThreshold
from labelwise.contrib.torchmetrics import (
    MultilabelCalibrationError,
    MultilabelMeanAveragePrecision,
    MultilabelSetScore,
    ZeroLabelFalseAlarmRate,
)
from labelwise.links import Sigmoid

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
BATCHES = (slice(0, 7), slice(7, 40), slice(40, 60))


@pytest.fixture(params=DEVICES)
def problem(request):
    random = torch.Generator().manual_seed(0)
    probs = torch.rand(60, 5, generator=random)
    labels = (torch.rand(60, 5, generator=random) < 0.4 * probs).long()
    labels[:, 3] = 0
    observed = torch.rand(60, 5, generator=random) < 0.8
    return tuple(part.to(request.param) for part in (probs, labels, observed))


def streamed(metric, *arrays):
    metric = metric.to(arrays[0].device)
    for rows in BATCHES:
        metric.update(*(array[rows] for array in arrays))
    return metric


@pytest.mark.parametrize("error", ["ece", "ace", "mce"])
def test_calibration_error_is_that_of_all_batches(problem, error):
    pooled = streamed(MultilabelCalibrationError(5, error=error), *problem)
    expected = getattr(metrics.reliability(*problem), error)()
    assert pooled.compute().item() == pytest.approx(float(expected), rel=1e-6)
    each = streamed(MultilabelCalibrationError(5, error=error, pool=False), *problem)
    expected = getattr(metrics.label_reliability(*problem), error)()
    assert each.compute().item() == pytest.approx(np.nanmean(expected), rel=1e-6)
    where = problem[0] > 0.5
    some = MultilabelCalibrationError(5, error=error).to(where.device)
    some.update(*problem, where)
    expected = getattr(metrics.reliability(*problem, where=where), error)()
    assert some.compute().item() == pytest.approx(float(expected), rel=1e-6)


def test_ranks_are_synced_by_adding_their_sums(problem):
    """The path torchmetrics takes over ranks, with the second rank's state given by hand."""
    probs, labels, observed = problem
    first, second = slice(0, 25), slice(25, 60)
    there = MultilabelCalibrationError(5).to(probs.device)
    there.update(probs[second], labels[second], observed[second])
    assert there.counts.dtype == torch.int64  # which stays exact
    assert there.confidence_sums.dtype == there.present_sums.dtype == torch.float64
    states = iter([there.counts, there.confidence_sums, there.present_sums])
    here = MultilabelCalibrationError(
        5,
        dist_sync_fn=lambda state, group: [state, next(states)],
        distributed_available_fn=lambda: True,
    ).to(probs.device)
    here.update(probs[first], labels[first], observed[first])
    expected = metrics.reliability(*problem).ece()
    assert here.compute().item() == pytest.approx(float(expected), rel=1e-6)


def test_set_score_takes_the_sets_of_any_rule(problem):
    probs, labels, observed = problem
    sets = probs >= torch.tensor([0.1, 0.2, 0.3, 0.9, 0.5], device=probs.device)
    metric = streamed(MultilabelSetScore(5, beta=2, average="micro"), sets, labels, observed)
    expected = metrics.confusion(sets, labels, observed).micro().f_score(2).value
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)


def collection():
    return torchmetrics.MetricCollection(
        {
            "ece": MultilabelCalibrationError(5),
            "mce": MultilabelCalibrationError(5, error="mce"),
            "fine": MultilabelCalibrationError(5, bins=20),
            "map": MultilabelMeanAveragePrecision(),
            "by image": MultilabelMeanAveragePrecision(by="image"),
            "f1": MultilabelSetScore(5),
            "f2": MultilabelSetScore(5, beta=2),
            "alarms": ZeroLabelFalseAlarmRate(),
        },
        prefix="val/",
    )


def test_a_collection_says_what_its_metrics_say_alone(problem):
    """Compute groups, forward, reset, clone and prefix; the oracle is the functions themselves."""
    probs, labels, observed = problem
    named = {"probs": probs, "scores": probs, "sets": probs > 0.5}
    known = named | {"labels": labels, "observed": observed}
    counts = metrics.confusion(probs > 0.5, labels, observed)
    functions = {
        "val/ece": metrics.reliability(*problem).ece(),
        "val/mce": metrics.reliability(*problem).mce(),
        "val/fine": metrics.reliability(*problem, bins=20).ece(),
        "val/map": metrics.average_precision(*problem).value,
        "val/by image": metrics.average_precision(*problem, by="image").value,
        "val/f1": counts.f_score().value,
        "val/f2": counts.f_score(2).value,
        "val/alarms": metrics.false_alarm_rate(probs > 0.5, labels, observed).value,
    }
    expected = {name: float(value) for name, value in functions.items()}
    whole = collection().to(probs.device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in BATCHES:
            batch = whole(**{name: array[rows] for name, array in known.items()})
    part = metrics.average_precision(*(array[BATCHES[-1]] for array in problem)).value
    assert batch["val/map"].item() == pytest.approx(part, rel=1e-6)
    found = whole.compute()
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected)
    assert all(value.device == probs.device for value in found.values())
    copy = whole.clone(prefix="test/")
    whole.reset()
    assert copy.compute()["test/f1"].item() == pytest.approx(expected["val/f1"])
    whole.update(**known)
    groups = sorted(sorted(group) for group in whole.compute_groups.values())
    assert groups == [["alarms"], ["by image", "map"], ["ece", "mce"], ["f1", "f2"], ["fine"]]
    again = whole.compute()
    assert {name: value.item() for name, value in again.items()} == pytest.approx(expected)
    assert copy["fine"].counts.sum() == whole["fine"].counts.sum()


def test_probabilities_are_not_taken_for_sets_and_bad_options_are_refused(problem):
    probs, labels, _ = problem
    for metric in (ZeroLabelFalseAlarmRate(), MultilabelSetScore(5)):
        with pytest.raises(ValueError, match="sets must be boolean, or 0 and 1, got"):
            metric.to(probs.device).update(probs, labels)
    for metric, option in ((MultilabelCalibrationError, "error"), (MultilabelSetScore, "average")):
        with pytest.raises(ValueError, match=f"{option} must be"):
            metric(5, **{option: "l1"})
    for metric in (MultilabelMeanAveragePrecision(), ZeroLabelFalseAlarmRate()):
        with pytest.warns(UserWarning, match="before"):
            nothing = metric.compute()
        assert torch.isnan(nothing)  # nothing seen is undefined, not an error


def test_without_torchmetrics_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "labelwise.contrib.torchmetrics")
    with pytest.raises(ImportError, match="pip install torchmetrics"):
        import labelwise.contrib.torchmetrics  # noqa: F401


# Oracles: the functions that the estimators wrap, and scikit-learn's own checks of estimators.


def world(images=200, labels=4, seed=0):
    rng = np.random.default_rng(seed)
    odds = rng.normal(size=(images, labels)) * 1.5 - 1
    truth = (rng.random((images, labels)) < 1 / (1 + np.exp(-odds))).astype(int)
    return 2 * odds + 1, truth, rng.random((images, labels)) < 0.8


def wide(scores, labels):
    """Return labels as wide as the scores, which those of scikit-learn's own data are not."""
    shape = np.asarray(scores).shape
    if labels is None or len(shape) != 2 or np.asarray(labels).size != shape[0]:
        return labels
    values = np.asarray(labels).ravel()
    return np.repeat((values == values.max())[:, None], shape[1], 1) * 1


class Wide:
    def fit(self, X, y, mask=None):
        return super().fit(X, wide(X, y), mask)

    def score(self, X, y, mask=None):
        return super().score(X, wide(X, y), mask)


class WideCalibrator(Wide, MultilabelCalibrator):
    pass


class WideThreshold(Wide, MultilabelThreshold):
    pass


@pytest.mark.parametrize("estimator", [WideCalibrator(), WideThreshold()])
@pytest.mark.filterwarnings("ignore")
def test_all_of_scikit_learns_checks_that_apply(estimator):
    checks = check_estimator(estimator, on_fail=None, on_skip=None)
    other = [(one["check_name"], one["exception"]) for one in checks if one["status"] != "passed"]
    assert [name for name, _ in other] == ["check_array_api_input"], other  # which is skipped
    assert len(checks) > 40


@pytest.mark.parametrize("method", CALIBRATORS)
def test_calibrator_is_the_function_of_its_name(method):
    scores, truth, mask = world(80)
    found = MultilabelCalibrator(method).fit(scores, truth, mask).predict_proba(scores)
    link = CALIBRATORS[method](scores, truth, Sigmoid(), mask)
    np.testing.assert_array_equal(found, link(scores))
    assert found.shape == truth.shape


def test_calibrator_is_told_what_scores_are():
    scores, truth, _ = world()
    probs = 1 / (1 + np.exp(-scores))
    logits = MultilabelCalibrator().fit(scores, truth).predict_proba(scores)
    same = MultilabelCalibrator(scores="probs").fit(probs, truth).predict_proba(probs)
    np.testing.assert_allclose(same, logits, rtol=1e-5)
    raw = MultilabelCalibrator(scores="raw").fit(scores, truth).predict_proba(scores)
    np.testing.assert_array_equal(raw, platt(scores, truth, None)(scores))
    probs[0, 0], probs[1, 1] = 0.0, 1.0
    certain = MultilabelCalibrator(scores="probs").fit(probs, truth).predict_proba(probs)
    assert np.isfinite(certain).all()


def test_calibrator_says_what_is_wrong():
    scores, truth, _ = world(20)
    for given, told in (
        ({"method": "magic"}, "unknown calibrator 'magic'; there are: 'auto'"),
        ({"scores": "x"}, "scores must be 'logits', 'probs' or 'raw', got 'x'"),
        ({"scores": "probs"}, r"probabilities in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=told):
            MultilabelCalibrator(**given).fit(scores, truth)


def test_threshold_is_the_function_of_its_goal():
    scores, truth, mask = world()
    probs = 1 / (1 + np.exp(-scores))
    found = MultilabelThreshold(per_label=True).fit(probs, truth, mask)
    rule = decide.best_f(probs, truth, mask, scope="label")
    assert tuple(found.thresholds_) == rule.value
    np.testing.assert_array_equal(found.predict(probs), rule(probs))
    found = MultilabelThreshold("miss rate", 0.2).fit(probs, truth)
    assert found.rule_ == decide.control_recall(probs, truth, miss_rate=0.2)
    assert found.thresholds_.shape == (4,)
    found = MultilabelThreshold("cost", 3.0).fit(probs, truth)
    assert found.rule_ == decide.least_cost(probs, truth, false_alarm=1, miss=3, scope="shared")
    found = MultilabelThreshold("average k", 1.5).fit(probs, truth)
    assert found.predict(probs).sum() == 300
    for goal, rule in (
        ("precision", decide.precision_at(probs, truth, precision=0.5, scope="shared")),
        ("recall", decide.recall_at(probs, truth, recall=0.5, scope="shared")),
        ("false alarm rate", decide.control_false_alarms(probs, truth, rate=0.5, scope="shared")),
    ):
        assert MultilabelThreshold(goal, 0.5).fit(probs, truth).rule_ == rule
    with pytest.raises(ValueError, match="goal must be one of f, precision"):
        MultilabelThreshold("magic").fit(probs, truth)
    with pytest.raises(ValueError, match="'average k' has one threshold; per_label does not apply"):
        MultilabelThreshold("average k", 1.5, per_label=True).fit(probs, truth)


def test_a_pipeline_calibrates_then_decides():
    scores, truth, mask = world()
    pipe = make_pipeline(MultilabelCalibrator(), MultilabelThreshold())
    pipe.fit(scores, truth, multilabelcalibrator__mask=mask, multilabelthreshold__mask=mask)
    probs = MultilabelCalibrator().fit(scores, truth, mask).predict_proba(scores)
    expected = MultilabelThreshold().fit(probs, truth, mask)
    np.testing.assert_array_equal(pipe.predict(scores), expected.predict(probs))
    f1 = f1_score(truth, pipe.predict(scores), average="macro")
    assert pipe.score(scores, truth) == pytest.approx(f1)
    again = clone(pipe).set_params(multilabelcalibrator__method="temperature").fit(scores, truth)
    assert again.named_steps["multilabelcalibrator"].link_.kind == "temperature"


def test_cross_validation_scores_by_log_loss():
    scores, truth, _ = world()
    found = cross_val_score(MultilabelCalibrator(), scores, truth, cv=KFold(4))
    for value, (train, test) in zip(found, KFold(4).split(scores), strict=True):
        probs = MultilabelCalibrator().fit(scores[train], truth[train]).predict_proba(scores[test])
        losses = [log_loss(truth[test, k], probs[:, k], labels=[0, 1]) for k in range(4)]
        assert value == pytest.approx(-np.mean(losses))
    search = GridSearchCV(MultilabelCalibrator(), {"method": ["none", "platt"]}, cv=KFold(4))
    assert search.fit(scores, truth).best_params_ == {"method": "platt"}

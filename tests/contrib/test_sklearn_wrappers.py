"""Oracles: the functions that the estimators wrap, and scikit-learn's own checks of estimators."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import f1_score, log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from labelwise import decide
from labelwise.calibration import CALIBRATORS, platt
from labelwise.contrib.sklearn import MultilabelCalibrator, MultilabelThreshold
from labelwise.links import Sigmoid


def problem(images=200, labels=4, seed=0):
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
    scores, truth, mask = problem(80)
    found = MultilabelCalibrator(method).fit(scores, truth, mask).predict_proba(scores)
    link = CALIBRATORS[method](scores, truth, Sigmoid(), mask)
    np.testing.assert_array_equal(found, link(scores))
    assert found.shape == truth.shape


def test_calibrator_is_told_what_scores_are():
    scores, truth, _ = problem()
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
    scores, truth, _ = problem(20)
    for given, told in (
        ({"method": "magic"}, "unknown calibrator 'magic'; there are: 'auto'"),
        ({"scores": "x"}, "scores must be 'logits', 'probs' or 'raw', got 'x'"),
        ({"scores": "probs"}, r"probabilities in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=told):
            MultilabelCalibrator(**given).fit(scores, truth)


def test_threshold_is_the_function_of_its_goal():
    scores, truth, mask = problem()
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
    scores, truth, mask = problem()
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
    scores, truth, _ = problem()
    found = cross_val_score(MultilabelCalibrator(), scores, truth, cv=KFold(4))
    for value, (train, test) in zip(found, KFold(4).split(scores), strict=True):
        probs = MultilabelCalibrator().fit(scores[train], truth[train]).predict_proba(scores[test])
        losses = [log_loss(truth[test, k], probs[:, k], labels=[0, 1]) for k in range(4)]
        assert value == pytest.approx(-np.mean(losses))
    search = GridSearchCV(MultilabelCalibrator(), {"method": ["none", "platt"]}, cv=KFold(4))
    assert search.fit(scores, truth).best_params_ == {"method": "platt"}

"""Rules, thresholds, checks and answers that cannot be meant get one sentence."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from labelwise import decide
from labelwise.decide.audits import Audit
from labelwise.decide.estimate import recall_of
from labelwise.errors import DataError

RNG = np.random.default_rng(0)
P = expit(RNG.normal(size=(20, 4)))
Y = RNG.random((20, 4)) < P
Y[0] = True
LIST = decide.Promise("list", 0.9, 0.95, 400, 50, 0.95, "photos", "2026-01-01", "exact", listed=5)
EXPECTED = replace(LIST, kind="expected", confidence=None)
RECALL = decide.Promise("recall", 0.9, 0.95, 400, 400, 0.92, "photos", "2026-01-01", "exact")

WRONG = [
    (lambda: decide.TopK(0), "k must be at least 1, got 0"),
    (lambda: decide.Threshold(float("nan")), "must be one number or one per label"),
    (lambda: decide.Threshold((0.1, 0.2))(np.zeros((4, 3))), "one column per threshold"),
    (lambda: decide.ExpectedF(0), "beta must be positive"),
    (lambda: decide.ExpectedF()(np.zeros(3)), r"probs must be \(N, K\), got shape \(3,\)"),
    (lambda: decide.ExpectedF()(np.array([[1.5]])), r"probs must lie in \[0, 1\]"),
    (lambda: decide.best_f(P, Y[:2]), "shape of probs"),
    (lambda: decide.best_f(P[0], Y[0]), "must be .N, K."),
    (lambda: decide.best_f(P, Y * 0.5), "labels must be 0 or 1 where they are observed, got 0.5"),
    (lambda: decide.best_f(P * np.nan, Y), "must not be NaN"),
    (lambda: decide.best_f(P, Y, beta=0), "beta must be positive"),
    (lambda: decide.best_f(P, Y, scope="all"), "scope must be"),
    (lambda: decide.precision_at(P, Y, precision=0), "precision must lie in"),
    (lambda: decide.recall_at(P, Y, recall=1.1), "recall must lie in"),
    (lambda: decide.least_cost(P, Y, false_alarm=0, miss=1), "costs must be positive"),
    (lambda: decide.control_recall(P, Y, miss_rate=0), "miss_rate must lie strictly"),
    (lambda: decide.control_recall(P, Y, miss_rate=0.1, among="some"), "no such among"),
    (lambda: decide.control_recall(P, Y, miss_rate=0.1, scope="x"), "scope must be"),
    (lambda: decide.control_false_alarms(P, Y, rate=1), "rate must lie strictly"),
    (lambda: decide.control_false_alarms(P, Y, rate=0.1, count="x"), "no such count"),
    (lambda: decide.control_precision(P, Y, wrong_rate=1), "wrong_rate must lie strictly"),
    (lambda: decide.control_f(P, Y, level=0), "level must lie strictly"),
    (lambda: decide.control_f(P, Y, level=0.1, thresholds=[]), "a threshold and an image"),
    (lambda: decide.ListCheck(0, 0.1), "must hold a photo"),
    (lambda: decide.ListCheck(5, 0.1, checked=6), "6 cannot be checked"),
    (lambda: decide.ListAnswers(1, 0, 2, 0), "must be among those answered"),
    (lambda: decide.ListAnswers(1, 0, 1, 1), "cannot have been drawn"),
    (lambda: decide.check_promise(EXPECTED, P > 2, Y), "such lists on average"),
    (lambda: decide.judge_list(LIST, decide.ListAnswers(6, 0, 6, 0)), "cannot have more answers"),
    (lambda: decide.judge_list(RECALL, decide.ListAnswers(1, 0, 1, 0)), "only a promise of a list"),
    (lambda: decide.Answered.read([0.5, 1.5], [0], [1.0]), "between 0 and 1"),
    (lambda: decide.Answered.read([0.5, 0.5], [0, 0], [1.0, 1.0]), "one answer"),
    (lambda: decide.Answered.read([0.5, 0.5], [2], [1.0]), "among the 2"),
    (lambda: decide.Answered.read([0.5, 0.5], [1], [0.5]), "1, 0 or NaN"),
    (lambda: Audit([3, 0]), "at least one use"),
    (lambda: Audit([3], scores=[np.zeros(2)]), "one per use"),
    (lambda: Audit([3]).answer("maybe"), "yes, no or unsure"),
    (lambda: recall_of(10, 5, (6, 0), (0, 0)), "do not fit"),
]


@pytest.mark.parametrize(("call", "rule"), WRONG)
def test_what_cannot_be_meant_is_refused(call, rule):
    with pytest.raises((ValueError, DataError), match=rule):
        call()

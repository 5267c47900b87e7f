"""Oracles: the functions that the names stand for, called by hand."""

import numpy as np
import pytest

from labelwise.decide import (
    ExpectedF,
    Threshold,
    TopK,
    average_k,
    best_f,
    control_f,
    control_false_alarms,
    control_precision,
    control_recall,
    find_rule,
    fit_rule,
    least_cost,
    precision_at,
    recall_at,
)

RNG = np.random.default_rng(0)
PROBS = RNG.random((80, 4))
LABELS = RNG.random((80, 4)) < PROBS


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("0.25", Threshold(0.25), "p >= 0.25"),
        ("top-3", TopK(3), "the 3 most probable labels"),
        ("expected-f", ExpectedF(), "the set of most expected F1"),
        ("average-2", average_k(PROBS, 2), "2 labels per image on average"),
        ("best-f", best_f(PROBS, LABELS, scope="label"), "best F1, per label"),
        ("best-f-shared", best_f(PROBS, LABELS, scope="shared"), "best F1, one for all"),
        ("precision-0.6", precision_at(PROBS, LABELS, precision=0.6), "precision 0.6, per label"),
        ("precision-60", precision_at(PROBS, LABELS, precision=0.6), "precision 0.6"),
        ("precision-60%", precision_at(PROBS, LABELS, precision=0.6), "precision 0.6"),
        ("recall-1", recall_at(PROBS, LABELS, recall=1.0), "recall 1"),
        ("sensitivity-95%", recall_at(PROBS, LABELS, recall=0.95), "sensitivity 0.95, per label"),
        (
            "cost-1-5",
            least_cost(PROBS, LABELS, false_alarm=1, miss=5),
            "false alarm 1 and a miss 5",
        ),
        ("miss-rate-0.1", control_recall(PROBS, LABELS, miss_rate=0.1), "at most 0.1, one for all"),
        (
            "miss-rate-0.1-per-label",
            control_recall(PROBS, LABELS, miss_rate=0.1, scope="label"),
            "per label",
        ),
        ("wrong-rate-30%", control_precision(PROBS, LABELS, wrong_rate=0.3), "at most 0.3"),
        ("mean-f-0.2", control_f(PROBS, LABELS, level=0.2), "at least 0.2"),
        ("false-alarms-20%", control_false_alarms(PROBS, LABELS, rate=0.2), "at most 0.2"),
    ],
)
def test_a_name_is_the_function_it_stands_for(text, expected, words):
    rule, description = fit_rule(text, PROBS, LABELS)
    assert rule == expected
    assert words in description


def test_only_rules_that_need_no_fit_are_fixed():
    assert find_rule("top-2").fixed == TopK(2)
    for text in ("best-f", "average-2", "precision-0.9"):
        assert find_rule(text).fixed is None

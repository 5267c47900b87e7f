"""The one cause that would help most. Oracle: what was built into the labels and photos."""

import numpy as np
import pytest

from labelwise.evaluation import TrainingRows
from labelwise.evaluation.cause import floor_and_ceiling, likeliest_cause, told_apart
from labelwise.evaluation.evaluation import Trust
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions

NAMES = ("dog", "cat", "boat")
KNOWN, PRESENT = np.full(3, 400), np.array([80, 60, 40])
EXACT = Trust(0.4, 0.5, False, 0.01, 0.0, 0.02, 0.02, 1.0, 1.0)


def out_of_fold(missing=0.0, invented=0.0, rows=1500):
    rng = np.random.default_rng(5)
    odds = rng.normal(-1.5, 3, (rows, 3))
    labels = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
    labels &= rng.random(odds.shape) >= missing
    return odds, labels | (rng.random(odds.shape) < invented)


def trust(**changed):
    return Trust(**{**EXACT.__dict__, "p_value": 0.001, "wrong": True, **changed})


def photos(shift=0.0):
    rng = np.random.default_rng(6)
    return rng.normal(size=(300, 20)), rng.normal(size=(200, 20)) + shift


@pytest.mark.parametrize(
    ("known", "trusted", "training", "kind"),
    [
        (KNOWN, EXACT, {}, None),
        (np.full(3, 49), EXACT, {}, "few test photos"),
        (KNOWN, EXACT, {"features": photos()}, None),
        (KNOWN, EXACT, {"features": photos(0.4)}, "other photos"),
        (KNOWN, EXACT, {"positives": [100, 75, 50]}, None),
        (KNOWN, EXACT, {"positives": [100, 75, 7]}, "few of a label"),
        (KNOWN, trust(slope=0.6), {}, "calibration"),
        (KNOWN, trust(came=2.0), {}, "missing in training"),
        (KNOWN, trust(slope=0.9), {}, None),
        (KNOWN, trust(slope=0.6, came=2.0), {"wrong": 0.09}, "wrong labels"),
        (KNOWN, EXACT, {"rows": out_of_fold()}, None),
        (KNOWN, EXACT, {"rows": out_of_fold(missing=0.4)}, "missing labels"),
        (KNOWN, EXACT, {"rows": out_of_fold(missing=0.1, invented=0.03)}, "wrong labels"),
    ],
)
def test_the_cause_that_was_built_in_is_told(known, trusted, training, kind):
    sides = dict(zip(("logits", "labels"), training.pop("rows", ()), strict=False))
    sides |= dict(zip(("features", "test_features"), training.pop("features", ()), strict=False))
    sides |= {name: np.array(values) for name, values in training.items()}
    found = likeliest_cause(known, PRESENT, trusted, TrainingRows(**sides), NAMES)
    assert (None if found is None else found.kind) == kind
    if kind == "few of a label":
        assert (found.about, found.amount) == ("boat", 7)


def test_a_curve_finds_floor_and_ceiling():
    """Oracle: the shares that were dropped and invented."""
    curve = floor_and_ceiling(*(side.ravel().astype(float) for side in out_of_fold(0.3, 0.05)))
    assert curve.missing == pytest.approx(0.3 * 0.95, abs=0.06)
    assert curve.low == pytest.approx(0.05, abs=0.015)
    assert curve.p_value < 1e-6


def test_photos_of_one_kind_are_told_apart_by_chance_alone():
    area, error = told_apart(*photos())
    assert abs(area - 0.5) < 3 * error
    assert told_apart(*photos(3.0))[0] > 0.99


def test_log_odds_of_predictions_are_those_of_their_link():
    logits = np.array([[0.5, -900.0]])
    rows = Predictions(["a"], logits, np.array([[1.0, 0]]), None, ("x", "y"), "val", Sigmoid())
    made = TrainingRows.of(rows, Sigmoid(), [3, 4])
    assert made.logits.tolist() == [[pytest.approx(0.5), -30.0]]
    assert made.labels.tolist() == [[True, False]]
    assert made.positives.tolist() == [3, 4]
    assert TrainingRows.of(rows, None, None).logits is None

"""Oracle: the metric functions on all batches at once."""

import sys
import warnings

import numpy as np
import pytest
import torch
import torchmetrics

from labelwise import metrics
from labelwise.contrib.torchmetrics import (
    MultilabelCalibrationError,
    MultilabelMeanAveragePrecision,
    MultilabelSetScore,
    ZeroLabelFalseAlarmRate,
)

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

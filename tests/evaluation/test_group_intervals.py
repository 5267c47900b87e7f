"""Figures of photos in groups.

Held to figures computed again without each group, and to copies, which must not narrow an interval.
"""

from dataclasses import replace

import numpy as np
import pytest
from sample_scores import sample
from scipy.stats import t as student

from labelwise.base.groups import Groups
from labelwise.decide import Threshold
from labelwise.evaluation import evaluate, intervals
from labelwise.evaluation.intervals import groups_note, mean_interval_by_group
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision, confusion


def grouped(rows=120, groups=17, seed=0, unknown=0.0):
    predictions = sample(rows, seed=seed, unknown=unknown)
    names = np.random.default_rng(seed).integers(0, groups, rows).astype(str)
    return replace(predictions, group=names.tolist())


def copied(predictions, times):
    rows = np.repeat(np.arange(len(predictions)), times)
    made = predictions.take(rows)
    ids = [f"{name}-{place}" for place, name in enumerate(made.ids)]
    return replace(made, ids=ids, group=[str(row) for row in rows])


@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_values_without_a_group_are_those_computed_again(unknown):
    some = grouped(unknown=unknown)
    some = replace(some, logits=(some.logits * 2).round())  # many ties
    present = some.majority if some.observed is None else some.majority & some.observed
    sets = some.logits > 0
    found = intervals.mean_ap_without_groups(some.logits, present, some.observed, some.groups)
    scores = intervals.macro_f1_without_groups(sets, present, some.observed, some.groups)
    for number, name in enumerate(sorted(set(some.group))):
        rest = some.take(np.flatnonzero(np.array(some.group) != name))
        part = rest.majority if rest.observed is None else rest.majority & rest.observed
        expected = average_precision(rest.logits, part, rest.observed).value
        assert found[number] == pytest.approx(expected)
        counts = confusion(rest.logits > 0, part, rest.observed)
        assert scores[number] == pytest.approx(counts.f_score().value)


def test_copies_do_not_narrow_an_interval():
    once = sample(150, seed=2)
    tables = once, copied(once, 2), copied(once, 8), replace(copied(once, 8), group=None)
    alone, pairs, many, fooled = (
        evaluate(table, Sigmoid(), Threshold(0.5), query_length=0) for table in tables
    )
    for a, b, c in zip(alone.headline, many.headline, fooled.headline, strict=True):
        assert b.value == pytest.approx(a.value), a.name
        if a.low is None:
            assert b.low is None
        elif "ECE" not in a.name:
            if a.name == "False alarms":  # of photos alone a share, of groups a mean
                a = next(one for one in pairs.headline if one.name == a.name)
            assert b.high - b.low == pytest.approx(a.high - a.low, rel=0.04), a.name
            assert c.high - c.low < 0.6 * (a.high - a.low), a.name
        else:
            assert b.high - b.low == pytest.approx(a.high - a.low, rel=0.25), a.name
        if a.low is not None:
            assert "150 groups" in b.how
    assert many.data.groups == 150
    assert alone.data.groups is fooled.data.groups is None
    (note,) = [one for one in many.notes if "groups" in one]
    for words in ("150 groups of 8:", "8.0, as good as 150 independent photos", "35% as wide"):
        assert words in note


def test_a_mean_over_groups_is_the_jackknife_of_groups():
    random = np.random.default_rng(1)
    sums, counts = random.random(40), random.integers(0, 4, 40).astype(float)
    sums *= counts
    groups = Groups.of(random.integers(0, 9, 40))
    value = sums.sum() / counts.sum()
    low, high = mean_interval_by_group(value, sums, counts, groups, 1.0)
    values = []
    for group in range(groups.count):
        rest = groups.codes != group
        values.append(sums[rest].sum() / counts[rest].sum())
    moved = np.array(values) - np.mean(values)
    error = np.sqrt(8 / 9 * (moved**2).sum())
    reach = student.ppf(0.975, 2 * (moved**2).sum() ** 2 / (moved**4).sum() - 1)
    assert 2.306004 < reach < 3  # that of 9 groups which carry the variance alike, and more
    assert (low, high) == pytest.approx((value - reach * error, value + reach * error))
    one = Groups.of(np.zeros(40))
    assert mean_interval_by_group(value, sums, counts, one, 1.0) == (None, None)


def test_no_false_alarm_in_twelve_groups_is_no_proof_of_none():
    """Oracle: Wilson's interval of 0 in 12, by hand; a jackknife of zeros has no width."""
    some = sample(240)
    absent = np.zeros_like(some.labels)
    groups = [f"g{row % 12}" for row in range(240)]
    quiet = replace(some, labels=absent, observed=None, group=groups)
    found = evaluate(quiet, Sigmoid(), Threshold(1.0), query_length=0)
    (figure,) = [one for one in found.headline if one.name == "False alarms"]
    z = 1.959964**2
    assert (figure.value, figure.low) == (0, 0)
    assert figure.high == pytest.approx(z / (12 + z), abs=1e-4)
    assert "worth, 12, by 12 groups" in figure.how


def test_labels_of_too_few_groups_have_no_interval():
    found = evaluate(grouped(rows=200, groups=4), Sigmoid(), query_length=0).headline[0]
    assert found.low is None
    assert "fewer than 5 groups with a positive" in found.how
    alone = evaluate(replace(sample(50), group=["only"] * 50), Sigmoid(), query_length=0)
    assert all(figure.low is None for figure in alone.headline if "ECE" not in figure.name)
    assert any("come in 1 group of 50:" in note for note in alone.notes)
    for groups, said in ((1, False), (2, True), (14, True), (15, False)):
        notes = " ".join(groups_note(Groups.of(np.arange(45) % groups), None))
        assert ("fewer than 15 groups these intervals may be too narrow" in notes) == said

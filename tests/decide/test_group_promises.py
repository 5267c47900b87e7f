"""Promises on photos in groups. Oracles: copies, which say what the photos say once; slow loops."""

import re

import numpy as np
import pytest
from scipy.special import expit

from labelwise import decide
from labelwise.base.groups import Groups
from labelwise.decide import Evidence, Threshold, check_promise, label_figures


def promise_of_answers(evidence, level):
    found = decide.promise_answers(evidence, Threshold(0.5), level=level - 0.1, measure="precision")
    return decide.Promised(Threshold(found.least), (found.promise,))


FITS = (decide.promise_precision, decide.promise_recall, decide.promise_tags, promise_of_answers)


def copied(times, seed=3, rows=400, labels=3):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(rows, labels))
    present = scores + 0.4 * random.normal(size=(rows, labels)) > 0.5
    place = np.repeat(np.arange(rows), times)
    return expit(2 * scores)[place], present[place], Groups.of(place)


@pytest.mark.parametrize("fit", FITS)
def test_more_copies_within_groups_promise_nothing_more(fit):
    found = []
    for times in (2, 7):
        probs, present, groups = copied(times)
        found.append(fit(Evidence.read(probs, present, groups=groups), level=0.7))
    few, many = (one.promises[0] for one in found)
    assert found[0].rule == found[1].rule
    assert (few.groups, few.observed) == (many.groups, pytest.approx(many.observed))
    assert many.design_effect == pytest.approx(3.5 * few.design_effect)
    worth = many.counted / many.design_effect
    assert f"in {many.groups} groups, as good as {worth:,.0f} independent" in str(many)
    assert "over groups, each counting the same" in str(many)


def test_the_warning_says_what_a_promise_by_photo_is_worth():
    group, random = np.repeat(np.arange(80), 10), np.random.default_rng(1)
    common, own = random.normal(size=(2, 80, 1)), random.normal(size=(2, 800, 1))
    scores, errors = np.sqrt(0.8) * common[:, group] + np.sqrt(0.2) * own
    probs, present, groups = expit(scores), scores + 0.6 * errors > 0.7, Groups.of(group)
    wish = decide.find_promise("recall=0.8")
    made = wish(Evidence.read(probs, present, groups=groups), 0.95)
    alone = wish(Evidence.read(probs, present), 0.95)
    assert alone.warning is None
    effect, real = (
        float(re.search(pattern, made.warning)[1])
        for pattern in (r"design effect ([\d.]+)", r"fails in about (\d+)%")
    )
    missed = (present & (probs < alone.rule.value))[:, 0] * 1.0
    moved = missed - missed.sum() / present.sum() * present[:, 0]
    assert effect == pytest.approx(groups.design_effect(moved), abs=0.06)
    assert 8 <= real <= 40
    assert "in 80 groups" in made.warning


def test_tuning_photos_without_groups_do_not_undo_those_of_the_test():
    probs, present, groups = copied(5)
    other, truth, _ = copied(1, seed=8)
    tuning = Evidence.read(other, truth)
    test = Evidence.read(probs, present, groups=groups)
    (made,) = decide.promise_precision(test, level=0.7, tuning=tuning).promises
    assert (made.groups <= 400, made.test) == (True, "betting")


def test_a_promise_is_checked_by_group():
    probs, present, groups = copied(1)
    promise = decide.promise_recall(Evidence.read(probs, present), level=0.7).promises[0]
    once = check_promise(promise, probs >= 0.5, present)
    probs, present, groups = copied(6)
    photos = check_promise(promise, probs >= 0.5, present)
    by_group = check_promise(promise, probs >= 0.5, present, groups=groups)
    assert (by_group.lower, by_group.upper) == pytest.approx((once.lower, once.upper))
    assert photos.upper - photos.lower < 0.6 * (once.upper - once.lower)
    assert by_group.groups == once.counted
    assert f"new photos in {once.counted:,} groups" in str(by_group)


@pytest.mark.parametrize(
    ("control", "options"),
    [
        (decide.control_recall, {"miss_rate": 0.2}),
        (decide.control_recall, {"miss_rate": 0.2, "among": "labelled", "scope": "label"}),
        (decide.control_false_alarms, {"rate": 0.1}),
        (decide.control_false_alarms, {"rate": 0.1, "count": "any"}),
        (decide.control_precision, {"wrong_rate": 0.3}),
        (decide.control_f, {"level": 0.2}),
    ],
)
def test_copies_in_groups_control_the_risk_that_photos_do(control, options):
    once, many = copied(1, rows=90), copied(6, rows=90)
    alone = control(once[0], once[1], **options)
    assert control(many[0], many[1], groups=many[2], **options) == alone
    if control is not decide.control_f:  # six times as many photos allow more, groups must not
        assert control(many[0], many[1], **options) != alone


def test_groups_of_unequal_size_count_the_same_in_risk_control():
    probs, present, _ = copied(1)
    random = np.random.default_rng(5)
    groups = Groups.of(random.geometric(0.1, len(probs)))
    value = decide.control_recall(probs, present, miss_rate=0.2, groups=groups).value

    def loss(threshold):
        held = present.sum(1)
        share = np.where(held > 0, (present & (probs < threshold)).sum(1) / np.maximum(held, 1), 0)
        means = [share[groups.codes == group].mean() for group in range(groups.count)]
        return (sum(means) + 1) / (groups.count + 1)

    above = np.min(probs[probs > value * 1.000001])
    assert loss(value) <= 0.2 < loss(np.nextafter(above, 2))


def test_figures_per_label_are_worth_the_groups_and_not_their_photos():
    once, many = copied(1), copied(8)
    names = ("a", "b", "c")
    alone = label_figures(once[0] >= 0.5, once[1], names=names)
    fooled = label_figures(many[0] >= 0.5, many[1], names=names)
    by_group = label_figures(many[0] >= 0.5, many[1], names=names, groups=many[2])
    for a, b, c in zip(alone, by_group, fooled, strict=True):
        for what in ("precision", "recall", "f1"):
            one, two, three = (getattr(row, what) for row in (a, b, c))
            assert two == pytest.approx(one, abs=0.003), what
            assert three[2] - three[1] < 0.5 * (one[2] - one[1])
    # without an error the groups are counted
    right = label_figures(many[1], many[1], names=names, groups=many[2])[0]
    held = int(once[1][:, 0].sum())
    assert right.recall == pytest.approx((1.0, 0.025 ** (1 / held), 1.0))

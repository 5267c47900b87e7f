"""Oracles: scikit-learn's curves, scipy's chi-square test and made worlds whose truth is known."""

import numpy as np
import pytest
from sample_scores import sample
from scipy.special import expit, logit
from scipy.stats import binom, chi2_contingency
from scipy.stats import t as student
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve

from labelwise.base.groups import Groups
from labelwise.decide import Threshold
from labelwise.evaluation import Evaluation, Subgroups, evaluate
from labelwise.evaluation.assemble import auroc_interval, holm, ratio_difference, score_curve


def test_points_lie_on_the_curves_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=25).round(1)
    present = rng.random(25) < 0.4
    roc, pr = score_curve(scores, present)
    x, y, _ = roc_curve(present, scores, drop_intermediate=False)
    assert np.array(roc) == pytest.approx(np.stack([x, y], 1))
    precision, recall, _ = precision_recall_curve(present, scores)
    expected = {(round(r, 9), round(p, 9)) for r, p in zip(recall, precision, strict=True) if r > 0}
    assert {(round(r, 9), round(p, 9)) for r, p in pr} == expected
    # Long curves are thinned and keep their ends.
    scores, present = rng.normal(size=5000), rng.random(5000) < 0.2
    roc, pr = score_curve(scores, present)
    assert all(30 < len(curve) <= 60 for curve in (roc, pr))
    assert (roc[0], roc[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert pr[-1] == pytest.approx((1.0, present.mean()))
    x, y = np.array(roc).T
    assert np.trapezoid(y, x) == pytest.approx(roc_auc_score(present, scores), abs=0.01)


def test_the_interval_of_the_area_is_its_formula_over_all_pairs_of_photos():
    """Oracle: every pair compared in a loop, and what Wilson's ends mean."""
    rng = np.random.default_rng(5)
    present = np.arange(40) < 7
    scores = (rng.normal(size=40) + 1.5 * present).round(1)
    high, low = scores[present][:, None], scores[~present]
    wins = (high > low) + (high == low) / 2
    centre = (7 * wins.mean() + 0.25) / 7.5
    variance = 0.0
    for values in (wins.mean(axis=1), wins.mean(axis=0)):
        weights = np.append(np.ones(len(values)), [0.25, 0.25])
        off = (np.append(values, [0.0, 1.0]) - centre) ** 2
        variance += weights @ off / (weights.sum() * len(values))
    photos = centre * (1 - centre) / variance
    area, *ends = auroc_interval(scores, present)
    assert area == pytest.approx(wins.mean())
    assert auroc_interval(np.ones(2), np.array([True, True])) is None
    assert auroc_interval(np.array([0.9, 0.1]), np.array([True, False])) == (1.0, None, None)
    for end in ends:  # where the share's own variance is just as far as the area
        assert abs(end - area) == pytest.approx(1.959964 * np.sqrt(end * (1 - end) / photos))


def test_the_interval_of_the_area_by_group_is_that_of_leaving_each_out():
    """Oracle: what each group moves the area by, side by side in a loop."""
    rng = np.random.default_rng(6)
    code, present = np.repeat(np.arange(9), 5), np.arange(45) % 3 == 0
    scores = rng.normal(size=45) + present + rng.normal(size=9)[code]
    wins = scores[present][:, None] > scores[~present]
    area = wins.mean()
    moved = np.zeros(9)
    for values, side in ((wins.mean(1), present), (wins.mean(0), ~present)):
        for group in range(9):
            own = code[side] == group
            moved[group] += (values - area)[own].sum() / (~own).sum()
    variance = 8 / 9 * (moved**2).sum()
    degrees = np.clip(2 * (moved**2).sum() ** 2 / (moved**4).sum() - 1, 1, 8)
    half = student.ppf(0.975, degrees) * np.sqrt(variance) / (area * (1 - area))
    found, *ends = auroc_interval(scores, present, Groups.of(code))
    assert found == pytest.approx(area)
    assert ends == pytest.approx(expit(logit(area) + np.array([-half, half])))


def test_the_test_of_a_difference_is_the_chi_square_test_of_two_shares():
    rng = np.random.default_rng(3)
    wrong = (rng.random(400) < 0.2).astype(float)
    found = ratio_difference(wrong, np.ones(400), np.arange(150), Groups(np.arange(400), 400))
    inside, outside = wrong[:150].sum(), wrong[150:].sum()
    exact = chi2_contingency([[inside, 150 - inside], [outside, 250 - outside]], correction=False)
    assert found == pytest.approx(exact.pvalue, rel=0.03)
    one = Groups.of(np.array([0, 0, 0, *range(1, 398)]))
    assert ratio_difference(wrong, np.ones(400), np.arange(3), one) is None  # no other to compare
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # textbook


def test_few_groups_that_differ_by_chance_are_not_told_apart():
    rng = np.random.default_rng(4)
    rejected = {"photo": 0, "group": 0}
    for _ in range(100):
        code = np.repeat(np.arange(24), 25)
        rate = rng.beta(1, 4, size=24)[code]
        wrong = (rng.random(600) < rate).astype(float)
        rows = np.flatnonzero(code < 12)
        for name, groups in (("photo", np.arange(600)), ("group", code)):
            rejected[name] += ratio_difference(wrong, np.ones(600), rows, Groups.of(groups)) <= 0.05
    assert rejected["photo"] > 30
    assert rejected["group"] <= binom.ppf(0.99, 100, 0.05)


def test_an_evaluation_tells_a_site_with_worse_labels_and_goes_through_json():
    own = sample(900)
    site = np.repeat(["a", "b", "c"], 300)
    logits = own.logits.copy()
    logits[site == "c"] = -logits[site == "c"]
    own = type(own)(own.ids, logits, own.labels, None, own.names, "test", own.link)
    parts = {"by": [Subgroups.of("site", site)], "curves": True, "query_length": 0}
    found = evaluate(own, own.link, Threshold(0.5), **parts)
    assert Evaluation.from_json(found.to_json()) == found
    assert {row.name: row.photos for row in found.subgroups} == dict.fromkeys("abc", 300)
    by_name = {row.name: {one.name: one for one in row.figures} for row in found.subgroups}
    assert all(by_name["c"][figure].differs for figure in ("wrong labels", "log loss"))
    wrong = (own.sets(Threshold(0.5)) != own.labels.astype(bool))[600:]
    assert by_name["c"]["wrong labels"].value == pytest.approx(wrong.mean())
    curves = {(one.label, one.part): one for one in found.curves}
    assert len(curves) == 5 * 4
    area = roc_auc_score(own.labels[600:, 0], own.logits[600:, 0])
    assert curves["dog", "c"].auroc == pytest.approx(area)
    assert curves["dog", "c"].auroc_low < area < curves["dog", "c"].auroc_high < 0.5
    whole = roc_auc_score(own.labels[:, 0], own.logits[:, 0])
    assert curves["dog", ""].auroc == pytest.approx(whole)


def test_a_site_with_one_photo_is_said():
    own = sample(50)
    site = ["lone", *["a", "b"] * 24, "a"]
    with pytest.raises(ValueError, match="site must name a subgroup of 50 photos, got 9"):
        evaluate(own, own.link, by=[Subgroups.of("site", ["a"] * 9)])
    found = evaluate(own, own.link, Threshold(0.5), query_length=0, by=[Subgroups.of("site", site)])
    assert any("1 subgroup by site with one photo each (lone)" in note for note in found.notes)
    (lone,) = [row for row in found.subgroups if row.name == "lone"]
    assert all(one.low is None and one.p_value is None for one in lone.figures)


def test_unknown_labels_have_no_part_in_curves_and_subgroups():
    own = sample(200, unknown=0.3)
    site = np.repeat(["a", "b"], 100)
    parts = {"by": [Subgroups.of("site", site)], "curves": True, "query_length": 0}
    found = evaluate(own, own.link, Threshold(0.5), **parts)
    flipped = np.where(own.observed, own.labels, 1 - own.labels)
    other = type(own)(own.ids, own.logits, flipped, own.observed, own.names, "test", own.link)
    again = evaluate(other, own.link, Threshold(0.5), **parts)
    assert (again.curves, again.subgroups) == (found.curves, found.subgroups)

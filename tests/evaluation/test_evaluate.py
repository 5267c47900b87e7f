"""Evaluation against scikit-learn, numerical derivatives, a real bootstrap, and itself."""

from dataclasses import asdict, replace
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_scores import NAMES, Halved, assert_close, in_memory, sample
from scipy.special import expit, log_expit, logit
from scipy.stats import binom, binomtest, chi2_contingency
from scipy.stats import t as student
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from labelwise import metrics
from labelwise.base.groups import Groups
from labelwise.decide import Threshold, TopK
from labelwise.errors import DataError
from labelwise.evaluation import (
    Evaluation,
    Subgroups,
    describe_link,
    evaluate,
    intervals,
    measure,
    mergeable,
)
from labelwise.evaluation.assemble import auroc_interval, holm, ratio_difference, score_curve
from labelwise.links import Sigmoid, Softmax
from labelwise.predictions import Predictions
from labelwise.queries import retrieval_map


def known_columns(predictions):
    """Return scores and labels of the known entries of each label."""
    mask = predictions.observed
    for column in range(len(predictions.names)):
        rows = slice(None) if mask is None else mask[:, column]
        yield (predictions.logits[:, column][rows], predictions.labels[:, column][rows])


@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_figures_equal_those_of_scikit_learn(unknown):
    predictions = sample(unknown=unknown)
    result = evaluate(predictions, Sigmoid(), Threshold(0.4), calibrated=Halved(), query_length=0)
    columns = list(known_columns(predictions))
    aps = [average_precision_score(labels, scores) for scores, labels in columns]
    assert result.ranking.map_class == pytest.approx(np.mean(aps))
    assert [row.ap for row in result.rows] == pytest.approx(aps)
    probs = [expit(scores / 2) for scores, _ in columns]
    truth, pooled = np.concatenate([labels for _, labels in columns]), np.concatenate(probs)
    assert result.after.log_loss == pytest.approx(log_loss(truth, pooled), rel=1e-5)
    assert result.after.brier == pytest.approx(brier_score_loss(truth, pooled), rel=1e-5)
    f1 = [f1_score(labels, p >= 0.4) for p, (_, labels) in zip(probs, columns, strict=True)]
    assert result.sets.macro_f1 == pytest.approx(np.mean(f1))
    log_p, log_q = Halved().log_probs(predictions.logits)
    known = np.exp(log_p), predictions.labels, predictions.observed
    assert result.after.smooth_ece == pytest.approx(metrics.smooth_ece(*known), rel=1e-3)
    assert sum(result.after.pooled.counts) == len(truth)
    found = metrics.reliability(*known)
    for name in ("ece", "ace", "mce"):
        assert getattr(result.after.pooled, name) == pytest.approx(float(getattr(found, name)()))
    found = metrics.reliability(*known, where=metrics.top_k_sets(known[0], 4))
    assert result.after.top_k.ece == pytest.approx(float(found.ece()))
    parts = result.after.reliability - result.after.resolution + result.after.uncertainty
    assert result.after.brier == pytest.approx(parts + result.after.within_bins)
    stated = metrics.set_reliability(log_p, log_q, known[0] >= 0.4, *known[1:])
    assert result.sets.stated.ece == pytest.approx(float(stated.ece()))
    assert (result.data.known, result.data.unknown) == (len(truth), 400 * 5 - len(truth))


def test_json_brings_back_the_same_value(tmp_path):
    options = {"calibrated": Halved(), "train_counts": [5, 20, 100, 101, 500]}
    rule = Threshold((0.1, 0.2, 0.3, 0.4, 0.5))
    result = evaluate(sample(unknown=0.2), Sigmoid(), rule, **options)
    few, medium, many = result.shots
    assert (few.labels, medium.labels, many.labels) == (1, 2, 2)
    assert few.mean_ap == pytest.approx(result.rows[0].ap)
    assert medium.mean_recall == pytest.approx((result.rows[1].recall + result.rows[2].recall) / 2)
    assert Evaluation.from_json(result.to_json()) == result
    result.save(tmp_path / "evaluation.json")
    assert Evaluation.load(tmp_path / "evaluation.json") == result
    (tmp_path / "evaluation.json").write_text('{"data": 3}')
    with pytest.raises(DataError, match=r"evaluation\.json: not an evaluation: 'data'"):
        Evaluation.load(tmp_path / "evaluation.json")


def test_a_model_that_only_ranks_gets_no_probabilities():
    result = evaluate(sample(), None, Threshold(0.5))
    none = result.before, result.after, result.sets, result.zero_label, result.link
    assert none == (None,) * 5
    assert [figure.name for figure in result.headline] == ["mAP over labels", "mAP over images"]
    assert "no probabilities" in result.notes[0]
    with_sets = evaluate(sample(), None, Threshold(0.5), calibrated=Halved(), query_length=0)
    assert with_sets.before is None is not with_sets.sets


def test_a_label_without_positives_is_left_out_and_named():
    predictions = sample()
    labels = predictions.labels.copy()
    labels[:, 2] = 0
    result = evaluate(replace(predictions, labels=labels), Sigmoid(), TopK(2))
    assert result.ranking.undefined_labels == ("beach",)
    others = [row.ap for row in result.rows if row.name != "beach"]
    assert result.rows[2].ap is None
    assert result.ranking.map_class == pytest.approx(np.mean(others))
    assert "4 of 5 labels" in result.ranking.how


def test_unknown_is_not_absent_and_a_row_of_unknowns_is_not_empty():
    predictions = sample()
    labels = predictions.labels.copy()
    labels[:10] = 0
    observed = np.ones(labels.shape, bool)
    observed[:10, 3] = False
    result, masked = (
        evaluate(replace(predictions, labels=labels, observed=mask), Sigmoid(), Threshold(0.5))
        for mask in (None, observed)
    )
    assert result.zero_label.rows - masked.zero_label.rows == 10
    assert sum(masked.zero_label.inside) + sum(masked.zero_label.outside) == 390
    assert "10 images with unknown labels" in masked.zero_label.how
    assert sum(masked.sets.true_sizes) == 390


def test_images_without_labels_by_hand():
    """Their figures, and the price of quiet for each stage and for the labels' shares."""
    predictions = sample()
    options = {"calibrated": Halved(), "query_length": 0}
    zero = evaluate(predictions, Sigmoid(), Threshold(0.5), **options).zero_label
    truth, empty = predictions.labels, (predictions.labels.sum(1) == 0)
    odds = predictions.logits.astype(np.float64)
    shares = np.broadcast_to(truth.mean(0), truth.shape)
    expected = {"before": expit(odds), "after": expit(odds / 2), "shares of the labels": shares}
    quiet = np.log1p(-expected["after"]).sum(1)
    wins = [(a < b) + (a == b) / 2 for a in quiet[~empty] for b in quiet[empty]]
    assert zero.rows == empty.sum()
    assert zero.false_alarms == pytest.approx((expected["after"][empty] >= 0.5).any(1).mean())
    assert zero.auroc_nothing == pytest.approx(np.mean(wins), abs=1e-5)
    assert [row.stage for row in zero.by_stage] == list(expected)
    for row, probs in zip(zero.by_stage, expected.values(), strict=True):
        assert row.mmc == pytest.approx(probs[empty].max(1).mean(), rel=1e-5)
        for rows, loss, brier in (
            (~empty, row.log_loss_in, row.brier_in),
            (empty, row.log_loss_out, row.brier_out),
        ):
            flat, claimed = truth[rows].ravel(), probs[rows].ravel()
            assert loss == pytest.approx(log_loss(flat, claimed, labels=[0, 1]), rel=1e-5)
            assert brier == pytest.approx(((claimed - flat) ** 2).mean(), rel=1e-5)


def test_sets_and_log_odds_may_be_given_instead_of_rule_and_link():
    predictions, rule = sample(), Threshold((0.2, 0.3, 0.4, 0.5, 0.6))
    made = evaluate(predictions, Sigmoid(), rule, calibrated=Halved(), query_length=0)
    odds = predictions.logits / 2
    words = {"calibrator": made.calibrator, "rule_words": made.sets.rule, "thresholds": rule}
    options = {"calibrated": odds, "query_length": 0, **words}
    assert evaluate(predictions, Sigmoid(), rule(expit(odds)), **options) == made


def test_influence_on_average_precision_is_its_derivative():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 9, 60).astype(np.float32)  # many ties
    labels = generator.random(60) < 0.3
    influence = intervals.ap_influence(scores, labels)
    for row in range(0, 60, 3):
        weights = np.ones((2, 60))
        weights[0, row] += 1e-5
        weights[1, row] -= 1e-5
        up, down = (average_precision_score(labels, scores, sample_weight=w) for w in weights)
        assert influence[row] == pytest.approx((up - down) / 2e-5, abs=1e-6)
    both = np.stack([scores, -scores], 1)
    known = np.stack([np.arange(60) > 9, np.ones(60, bool)], 1)
    mean = intervals.mean_ap_influence(both, known & labels[:, None], known)
    first = np.append(np.zeros(10), intervals.ap_influence(scores[10:], labels[10:]))
    np.testing.assert_allclose(mean, (first + intervals.ap_influence(-scores, labels)) / 2)


def test_average_precision_without_each_image_is_that_of_the_others():
    generator = np.random.default_rng(3)
    scores = generator.integers(0, 9, 40).astype(np.float32)  # many ties
    scores[:2] = 20, 30  # and two groups of one, the first of all
    labels = generator.random(40) < 0.3
    for truth in (labels, np.arange(40) == 1, np.arange(40) == 7):
        values = intervals.ap_without(scores, truth)
        for row in range(40):
            left = np.arange(40) != row if truth.sum() > truth[row] else np.ones(40, bool)
            expected = average_precision_score(truth[left], scores[left])
            assert values[row] == pytest.approx(expected, rel=1e-12)


def test_means_over_labels_without_each_image_are_those_of_the_others():
    predictions = sample(50, unknown=0.2)
    sets, mask = predictions.logits > 0, predictions.observed
    present = (predictions.labels == 1) & mask
    mean_ap = intervals.mean_ap_without(predictions.logits, present, mask)
    macro_f1 = intervals.macro_f1_without(sets, present, mask)
    for row in range(0, 50, 7):
        others = np.arange(50) != row
        rows = [(k, np.flatnonzero(mask[:, k] & others)) for k in range(5)]
        for score, guessed, found, near in (
            (average_precision_score, predictions.logits, mean_ap, 1e-6),
            (f1_score, sets, macro_f1, 1e-12),
        ):
            expected = np.mean([score(present[m, k], guessed[m, k]) for k, m in rows])
            assert found[row] == pytest.approx(expected, rel=near)


def test_too_few_positives_have_no_interval_and_the_reason_is_said():
    predictions = sample(60)
    labels = torch.zeros(60, 5)
    labels[:3, :3] = 1
    figure = evaluate(replace(predictions, labels=labels), Sigmoid()).headline[0]
    assert (figure.low, figure.high) == (None, None)
    assert "No interval: 5 labels have 9 positives here, fewer than 2 each" in figure.how
    labels[3, 3] = 1
    figure = evaluate(replace(predictions, labels=labels), Sigmoid()).headline[0]
    assert figure.low < figure.value < figure.high


def test_the_lower_end_allows_for_half_as_much_bias_again_and_degrees_are_welchs():
    """Values without each image, and bias and error from them by hand."""
    without = np.array([0.62, 0.60, 0.61, 0.59, 0.63])
    value, bias = 0.6, 4 * (0.61 - 0.6)
    error = np.sqrt(4 / 5 * 0.001)
    low, high = intervals.jackknife_interval(value, without, 2.0)
    centre = value - 1.5 * bias
    assert logit(low) == pytest.approx(logit(centre) - 2 * error / (centre * (1 - centre)))
    assert logit(high) == pytest.approx(logit(value) + 2 * error / (value * (1 - value)))
    # One label of n positives has n - 1; two alike twice that; Welch's formula for unlike ones.
    assert intervals.degrees_of(np.array([9])) == pytest.approx(8)
    assert intervals.degrees_of(np.array([9, 0, 9])) == pytest.approx(16)
    welch = (1 / 4 + 1 / 20) ** 2 / ((1 / 4) ** 2 / 3 + (1 / 20) ** 2 / 19)
    assert intervals.degrees_of(np.array([4, 20])) == pytest.approx(welch)
    assert intervals.degrees_of(np.array([1])) == 0.5


def test_false_alarms_have_the_interval_of_their_share():
    predictions = sample()
    found = evaluate(predictions, Sigmoid(), Threshold(0.5), query_length=0)
    figure = next(one for one in found.headline if one.name == "False alarms")
    empty = (predictions.labels == 0).all(1)
    alarms = int((predictions.logits[empty] >= 0).any(1).sum())
    expected = binomtest(alarms, int(empty.sum())).proportion_ci(method="wilson")
    assert (figure.low, figure.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert "Wilson" in figure.how


def test_retrieval_is_that_of_the_probabilities_by_length():
    predictions = sample(80, unknown=0.2)
    logs = log_expit(predictions.logits), log_expit(-predictions.logits)
    expected = retrieval_map(*logs, predictions.labels, predictions.observed, longest=2)
    found = evaluate(predictions, Sigmoid(), query_length=2).retrieval
    assert [(point.length, point.queries, point.skipped, point.sampled) for point in found] == [
        (result.length, result.queries, result.skipped, False) for result in expected
    ]
    assert [p.map for p in found] == pytest.approx([r.value for r in expected], abs=1e-6)


def test_certain_and_wrong_is_infinite_where_it_is_known_and_else_does_no_harm():
    predictions = sample(50, unknown=0.3)
    logits, known = predictions.logits.astype(np.float64), predictions.observed
    logits[tuple(np.argwhere(known & (predictions.labels == 0))[0])] = torch.inf
    before = evaluate(replace(predictions, logits=logits), Sigmoid()).before
    assert (before.infinite, before.log_loss) == (1, None)
    expected = ((expit(logits) - predictions.labels) ** 2)[known].mean()
    assert before.brier == pytest.approx(float(expected), rel=1e-5)
    logits = predictions.logits.copy()
    logits[tuple(np.argwhere(~known)[0])] = torch.inf
    result = evaluate(replace(predictions, logits=logits), Sigmoid())
    assert result.before.infinite == 0
    loss = next(figure for figure in result.headline if figure.name == "Log loss")
    assert loss.low < loss.value < loss.high


def test_soft_labels_are_judged_as_shares_where_that_can_be():
    """Oracle: every image four times, with hard labels in the proportion of the shares."""
    rng = np.random.default_rng(3)
    hard = torch.from_numpy(rng.integers(0, 2, (50, 4, len(NAMES))))
    logits = torch.from_numpy(rng.normal(size=(50, len(NAMES)))).float()
    ids = [str(row) for row in range(50)]
    soft = Predictions(ids, logits, hard.double().mean(1), None, tuple(NAMES), "test")
    copied = [f"{name}-{copy}" for name in ids for copy in range(4)], logits.repeat_interleave(4, 0)
    every = Predictions(*copied, hard.flatten(0, 1), None, tuple(NAMES), "test")
    cut = replace(soft, labels=soft.majority.astype(np.uint8))
    found, copies, hardened = (
        evaluate(rows, Sigmoid(), Threshold(0.5), query_length=0) for rows in (soft, every, cut)
    )
    for name in ("log_loss", "label_mean_ece", "reliability", "resolution"):
        assert getattr(found.before, name) == pytest.approx(getattr(copies.before, name))
    spread = (soft.labels * (1 - soft.labels)).mean().item()  # of the people, not of the model
    assert found.before.brier + spread == pytest.approx(copies.before.brier)
    assert found.before.pooled.ece == pytest.approx(copies.before.pooled.ece)
    assert (found.ranking.map_class, found.sets) == (hardened.ranking.map_class, hardened.sets)
    log_p, log_q = Sigmoid().log_probs(soft.logits.astype(np.float64))
    figures = {figure.name: figure for figure in found.headline}
    assert figures["Log loss"].value == pytest.approx(copies.before.log_loss)
    for name, entries in (
        ("Log loss", -(soft.labels * log_p + (1 - soft.labels) * log_q)),
        ("Brier score", (np.exp(log_p) - soft.labels) ** 2),
    ):
        sums = entries.sum(1)
        half = 1.959964 * np.sqrt(((sums - sums.mean()) ** 2).sum()) / (50 * len(NAMES))
        assert figures[name].high - figures[name].value == pytest.approx(half, rel=1e-5)
    note = found.notes[-1]
    shares = soft.labels[(soft.labels > 0) & (soft.labels < 1)]
    entropy = -(shares * np.log(shares) + (1 - shares) * np.log(1 - shares)).sum() / 50 / len(NAMES)
    assert f"{len(shares)} of {50 * len(NAMES)} known labels are soft" in note
    assert f"a log loss of {entropy:.4f}." in note
    with pytest.raises(DataError, match="some are soft; use evaluate"):
        measure(logits, soft.labels, None, link=Sigmoid())
    wrong = soft.labels.copy()
    wrong[3, 1] = 1.5
    with pytest.raises(DataError, match=r"in \[0, 1\] .*, got 1\.5 for 'cat' of '3'"):
        evaluate(replace(soft, labels=wrong), Sigmoid())


# Sums that merge over shards. Oracle: the evaluation of all rows in memory, figure by figure.


def shards_of(predictions, owner, rule=None, **options):
    for shard in range(owner.max() + 1):
        rows = np.flatnonzero(owner == shard)
        own, given = predictions.take(rows), rule[rows] if isinstance(rule, torch.Tensor) else rule
        yield measure(own.logits, own.labels, own.observed, rule=given, **options)


def with_empty_rows(predictions, share):
    """Return the predictions with some rows that carry no label."""
    labels = predictions.labels.copy()
    labels[: int(len(labels) * share)] = 0
    return replace(predictions, labels=labels)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 5, 60]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from(["sets", Threshold(0.4), TopK(2), None]),
    st.integers(1, 5),
    st.booleans(),
)
def test_shards_have_the_figures_of_all_rows(seed, rows, unknown, empty, rule, shards, certain):
    predictions = with_empty_rows(sample(rows, unknown=unknown, seed=seed), empty)
    if certain and seed % 3:  # with a sigmoid: where the label is absent, the log loss is infinite
        predictions.logits[0, 0] = np.inf
    draw = np.random.default_rng(seed)
    if rule == "sets":
        rule = torch.from_numpy(draw.random((rows, 5)) < 0.3)
    link = Softmax() if seed % 3 == 0 else Sigmoid()
    if predictions.observed is not None and not predictions.observed.any():
        return
    truth = in_memory(predictions, link, rule)
    parts = list(shards_of(predictions, draw.integers(shards, size=rows), rule, link=link))
    for order in (parts, [parts[place] for place in draw.permutation(len(parts))]):
        merged = reduce(lambda one, other: one.merge(other), order)
        given = rule if not isinstance(rule, torch.Tensor) else None
        found = merged.evaluation(
            predictions.names, link=describe_link(link), rule=given, split="test"
        )
        assert_close(asdict(found), asdict(replace(truth, judgement=None)))
        assert found.ranking.map_class_bound == 0


def test_with_few_cells_ranking_figures_are_within_their_bounds(monkeypatch):
    monkeypatch.setattr(mergeable, "FEWEST_CELLS", 20)
    monkeypatch.setattr(mergeable, "ALL_CELLS", 320)
    predictions = with_empty_rows(sample(400), 0.3)
    truth = evaluate(predictions, Sigmoid(), query_length=0)
    found = measure(predictions.logits, predictions.labels, link=Sigmoid()).evaluation(
        predictions.names, link="sigmoid"
    )
    assert 0 < found.ranking.map_class_bound < 0.1
    assert f"{found.ranking.map_class_bound:.2g}" in found.headline[0].how
    off = abs(found.ranking.map_class - truth.ranking.map_class)
    assert 0 < off <= found.ranking.map_class_bound
    for one, other in zip(found.rows, truth.rows, strict=True):
        assert abs(one.ap - other.ap) <= one.ap_bound
    assert "AUROC and FPR are within" in found.zero_label.how
    assert found.zero_label.auroc_max == pytest.approx(truth.zero_label.auroc_max, abs=0.1)


# Oracles: scikit-learn's curves, scipy's chi-square test and made worlds whose truth is known.


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

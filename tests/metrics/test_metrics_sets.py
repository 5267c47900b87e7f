"""Oracles: golden vectors, plain loops (metrics_reference), scikit-learn, counts by hand."""

from collections import Counter

import metrics_reference as slow
import numpy as np
import pytest
import torch
from golden import GOLDEN
from hypothesis import given, settings
from sklearn import metrics as sk

from labelwise import metrics

QUICK = settings(max_examples=40, deadline=None)


def sets_problem(seed, **options):
    scores, labels, observed = slow.problem(seed, **options)
    return scores > 0.5, labels, observed


@pytest.mark.parametrize("case", GOLDEN["f1_topk"], ids=lambda case: case["name"])
def test_golden_top_k(case):
    scores, labels = (np.array(case["inputs"][key]) for key in ("scores", "targets"))
    found, expected = metrics.top_k_scores(scores, labels, **case["params"]), case["expected"]
    np.testing.assert_allclose(found.per_label, expected["per_class_f1"], rtol=1e-12)
    for ours, key in (("macro_f1",) * 2, ("micro_f1",) * 2, ("cf1", "CF1_from_mean_PR")):
        assert 100 * getattr(found, ours) == pytest.approx(expected[key], rel=1e-12)


@pytest.mark.parametrize("case", GOLDEN["avgk_class_groups"], ids=lambda case: case["name"])
def test_golden_shots(case):
    counts = np.array(case["inputs"]["train_counts"])
    values = np.array(case["inputs"]["per_class_accuracy"])
    assert metrics.shot_groups(counts).tolist() == case["expected"]["groups"]
    groups = metrics.by_shot(values, torch.from_numpy(counts))
    for shot in ("few", "medium", "many"):
        assert groups[shot].value == pytest.approx(case["expected"][shot], rel=1e-12)


@QUICK
@given(problem=slow.PROBLEMS)
def test_counts_equal_the_loops(problem):
    scores, labels, observed = problem
    sets = scores > 0.5
    for by in ("label", "image"):
        found = metrics.confusion(sets, labels, observed, by=by)
        counts = zip(found.tp, found.fp, found.fn, found.tn, strict=True)
        lines = slow.lines(sets, labels, observed, by)
        for (chosen, present), line in zip(lines, counts, strict=True):
            pairs = Counter(zip(map(bool, chosen), map(bool, present), strict=True))
            kinds = (True, True), (True, False), (False, True), (False, False)
            assert line == tuple(pairs[kind] for kind in kinds)


@pytest.mark.parametrize(
    ("undefined", "value", "beta"), [("skip", np.nan, 1.0), ("zero", 0, 2.0), ("one", 1, 0.5)]
)
def test_scores_equal_scikit_learn(beta, undefined, value):
    sets, labels, _ = sets_problem(0, rows=60, columns=10, rate=0.1)
    sets[:, 0] = labels[:, 0] = False
    sets[0] = labels[0] = False
    keep = {"zero_division": value}
    found = metrics.confusion(sets, labels)
    by_image = metrics.confusion(sets, labels, by="image")
    for average, counts in (("macro", found), ("micro", found.micro()), ("samples", by_image)):
        for score, ours, more in (
            (sk.precision_score, counts.precision(undefined), {}),
            (sk.recall_score, counts.recall(undefined), {}),
            (sk.fbeta_score, counts.f_score(beta, undefined), {"beta": beta}),
        ):
            expected = score(labels, sets, average=average, **keep, **more)
            assert ours.value == pytest.approx(expected, rel=1e-12)
    assert metrics.hamming_loss(sets, labels) == pytest.approx(sk.hamming_loss(labels, sets))
    exact = metrics.subset_accuracy(sets, labels)
    assert exact.value == pytest.approx(sk.accuracy_score(labels, sets))


def test_cf1_is_the_harmonic_mean_of_the_mean_precision_and_recall():
    sets, labels, _ = sets_problem(1, rows=60, columns=10)
    counts = metrics.confusion(sets, labels)
    p, r = counts.precision().value, counts.recall().value
    assert counts.cf1() == pytest.approx(2 / (1 / p + 1 / r), rel=1e-12)
    assert metrics.confusion(np.array([[True, False]]), np.array([[0, 1]])).cf1() == 0
    assert np.isnan(metrics.confusion(np.zeros((1, 1), dtype=bool), np.zeros((1, 1))).cf1())


def test_unknown_entries_are_neither_right_nor_wrong():
    sets, labels, observed = sets_problem(2, rows=30, columns=5, unknown=0.5)
    labels[~observed] = -1
    wrong = (sets != (labels == 1)) & observed
    assert metrics.hamming_loss(sets, labels, observed) == wrong.sum() / observed.sum()
    exact = metrics.subset_accuracy(sets, labels, observed)
    seen = observed.any(axis=1)
    np.testing.assert_array_equal(np.isnan(exact.items), ~seen)
    assert exact.value == (~wrong.any(axis=1))[seen].mean()
    assert np.isnan(metrics.hamming_loss(sets, labels, np.zeros_like(observed)))


@QUICK
@given(problem=slow.PROBLEMS)
def test_top_k_takes_the_lower_index_of_ties(problem):
    scores = problem[0]
    for k in range(1, scores.shape[1] + 1):
        found = metrics.top_k_sets(scores, k)
        for line, chosen in zip(scores, found, strict=True):
            best = sorted(range(len(line)), key=lambda i: (-line[i], i))[:k]
            assert np.flatnonzero(chosen).tolist() == sorted(best)
    # They count an undefined label as zero; a confusion leaves it out.
    scores, labels = np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([[1, 0], [1, 0]])
    assert metrics.top_k_scores(scores, labels, k=1).macro_f1 == 0.5
    mean = metrics.confusion(metrics.top_k_sets(scores, 1), labels).f_score()
    assert (mean.value, mean.undefined.tolist()) == (1, [1])


def test_average_k_accuracy_of_single_labels_is_the_share_of_sets_that_hold_them():
    random = np.random.default_rng(4)
    probs, classes = random.random((200, 6)), random.integers(0, 5, 200)
    sets = probs >= 0.6
    found = metrics.average_k_accuracy(sets, np.eye(6, dtype=int)[classes])
    hits = sets[np.arange(200), classes]
    assert found.per_image.value == hits.mean()
    expected = [hits[classes == k].mean() for k in range(5)]
    np.testing.assert_allclose(found.per_label.items[:5], expected, rtol=1e-12)
    assert found.per_label.undefined.tolist() == [5]
    sizes = metrics.set_sizes(sets)
    assert found.mean_size == sizes.mean == sets.sum() / 200
    assert sizes.deviation == pytest.approx(np.std(sets.sum(1)))
    assert (sizes.largest, sizes.empty) == (sets.sum(1).max(), (~sets.any(1)).mean())
    groups = metrics.by_shot(found.per_label.items, np.array([1, 1, 50, 500, 500, 500]))
    assert groups["many"].value == pytest.approx(np.mean(expected[3:5]))
    assert groups["many"].undefined.tolist() == [2]


@pytest.mark.parametrize("case", GOLDEN["ood"], ids=lambda case: case["name"])
def test_golden_separation(case):
    inside, outside = (np.array(case["inputs"][f"max_conf_{key}"]) for key in ("in", "out"))
    auroc = metrics.separation_auroc(inside, outside)
    assert auroc == pytest.approx(case["expected"]["auroc"], rel=1e-12)
    mmc = metrics.max_confidence(np.column_stack([outside / 2, outside])).mean()
    assert mmc == pytest.approx(case["expected"]["mmc_out"], rel=1e-12)


@pytest.mark.parametrize("device", slow.DEVICES)
def test_separation_equals_scikit_learn(device):
    random = np.random.default_rng(0)
    inside, outside = random.normal(1, 1, 150).round(1), random.normal(0, 1, 90).round(1)
    labels = np.repeat([1, 0], [150, 90])
    expected = sk.roc_auc_score(labels, np.concatenate([inside, outside]))
    tensors = torch.from_numpy(inside).to(device), torch.from_numpy(outside).to(device)
    assert metrics.separation_auroc(*tensors) == pytest.approx(expected, rel=1e-12)
    assert metrics.separation_auroc(outside, inside) == pytest.approx(1 - expected, rel=1e-12)
    fpr, tpr, _ = sk.roc_curve(labels, np.concatenate([inside, outside]), drop_intermediate=False)
    for recall in (0.5, 0.9, 0.95, 1.0):
        expected = fpr[np.argmax(tpr >= recall - 1e-12)]
        assert metrics.false_positive_rate_at(*tensors, recall) == pytest.approx(expected)
    # However small the recall, the threshold is the highest score of an IN image.
    inside, outside = np.array([0.2, 0.9]), np.array([0.9, 0.95, 0.1, 0.3])
    assert metrics.false_positive_rate_at(inside, outside, 1e-12) == 0.5
    counts = metrics.ScoreCounts.of(np.concatenate([inside, outside]), np.arange(6) < 2)
    assert counts.false_positive_rate_at(1e-12) == (0.5, 0.0)


def test_false_alarms_are_counted_on_zero_label_images_only():
    labels = np.array([[0, 0], [0, 0], [1, 0], [0, 0]])
    sets = np.array([[1, 0], [0, 0], [1, 1], [1, 1]], dtype=bool)
    found = metrics.false_alarm_rate(sets, labels)
    assert (found.value, found.undefined.tolist()) == (pytest.approx(2 / 3), [2])
    assert metrics.zero_label_rows(labels).tolist() == [True, True, False, True]
    observed = np.array([[True, True], [True, False], [True, True], [False, False]])
    assert metrics.zero_label_rows(labels, observed).tolist() == [True, False, False, False]


def test_top_accuracy_is_that_of_the_argmax():
    scores, labels, observed = slow.problem(1, rows=60, columns=6, levels=5)
    hits = labels[np.arange(60), scores.argmax(axis=1)] == 1
    some = labels.any(axis=1)
    found = metrics.top_accuracy(scores, labels)
    assert found.value == hits[some].mean()
    assert found.undefined.tolist() == np.flatnonzero(~some).tolist()
    masked = metrics.top_accuracy(scores, labels, observed)
    top = np.where(observed, scores, -np.inf).argmax(axis=1)
    hits, some = labels[np.arange(60), top] == 1, (labels & observed).any(axis=1)
    assert masked.value == hits[some].mean()


@pytest.mark.parametrize("device", slow.DEVICES)
def test_nothing_here_is_the_log_of_the_product(device):
    probs = np.random.default_rng(2).random((20, 7))
    log_q = torch.from_numpy(np.log1p(-probs)).to(device)
    np.testing.assert_allclose(metrics.nothing_here(log_q), np.log(np.prod(1 - probs, axis=1)))
    assert metrics.nothing_here(torch.full((1, 10_000), -100.0)).tolist() == [-1e6]
    with pytest.raises(ValueError, match="at most 0"):
        metrics.nothing_here(-log_q)

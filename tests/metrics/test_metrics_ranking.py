"""Oracles: golden vectors, plain loops (metrics_reference), and scikit-learn.

Counts of scores that merge are checked against the exact figure of all entries, in any sharding.
"""

from collections import Counter
from functools import reduce

import metrics_reference as slow
import numpy as np
import pytest
import torch
from golden import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from labelwise import metrics
from labelwise.metrics import ScoreCounts, lines

QUICK = settings(max_examples=40, deadline=None)
SLOW_AP = {"tied": slow.ap_tied, "untied": slow.ap_untied, "voc": slow.ap_voc}


def column(values):
    return np.asarray(values)[:, None]


@pytest.mark.parametrize("case", GOLDEN["ap"], ids=lambda case: case["name"])
def test_golden_average_precision(case):
    scores, labels = (column(case["inputs"][key]) for key in ("scores", "targets"))
    names = {
        "ap_tie_aware": "tied",
        "ap_noninterpolated": "untied",
        "ap_if_positives_first": "untied",
        "ap_voc_interpolated": "voc",
    }
    for key, expected in case["expected"].items():
        if key in names:
            ours = metrics.average_precision(scores, labels, variant=names[key]).value
        else:
            assert key == "ap_if_positives_last"
            ours = metrics.average_precision(scores[::-1], labels[::-1], variant="untied").value
        assert ours == pytest.approx(expected, rel=1e-12), key


@QUICK
@given(problem=slow.PROBLEMS)
def test_metrics_equal_the_loops(problem):
    scores, labels, observed = problem
    for by in ("label", "image"):
        for variant, loop in SLOW_AP.items():
            expected = [loop(*line) for line in slow.lines(*problem, by)]
            found = metrics.average_precision(*problem, by=by, variant=variant)
            np.testing.assert_allclose(found.items, expected, rtol=1e-12)
            assert found.undefined.tolist() == np.flatnonzero(np.isnan(expected)).tolist()
            mean = np.nanmean(expected) if found.num_defined else np.nan
            assert found.value == pytest.approx(mean, rel=1e-12, nan_ok=True)
        expected = [slow.auroc(*line) for line in slow.lines(*problem, by)]
        np.testing.assert_allclose(metrics.auroc(*problem, by=by).items, expected, rtol=1e-12)
    for name, loop in (("coverage_error", slow.coverage), ("one_error", slow.one_error)):
        expected = [loop(*line) for line in slow.lines(*problem, "image")]
        found = getattr(metrics, name)(*problem)
        np.testing.assert_allclose(found.items, expected, rtol=1e-12, err_msg=name)
    flat = scores[observed].tolist(), labels[observed].tolist()
    found, auroc = metrics.micro_average_precision(*problem), slow.auroc(*flat)
    assert found == pytest.approx(slow.ap_tied(*flat), rel=1e-12, nan_ok=True)
    assert metrics.micro_auroc(*problem) == pytest.approx(auroc, rel=1e-12, nan_ok=True)
    with pytest.MonkeyPatch.context() as patch:  # in blocks
        patch.setattr("labelwise.metrics.ranking.SORTED_ENTRIES", 10)
        assert metrics.micro_auroc(*problem) == pytest.approx(auroc, rel=1e-12, nan_ok=True)


def test_untied_ranks_long_ties_by_index():
    """Longer than what any sort does by insertion, which is stable by accident."""
    problem = slow.problem(3, rows=500, columns=3, levels=2)
    expected = [slow.ap_untied(*line) for line in slow.lines(*problem, "label")]
    found = metrics.average_precision(*problem, variant="untied")
    np.testing.assert_allclose(found.items, expected, rtol=1e-12)


def test_sorting_and_comparing_count_the_same(monkeypatch):
    """Both ways to count must agree where the choice between them would fall either way."""
    problem = slow.problem(3, rows=3000, columns=5, levels=200, rate=0.4)
    both = []
    for most in (0, 10**9):
        monkeypatch.setattr(lines, "COMPARED_POSITIVES", most)
        both.append((metrics.auroc(*problem).items, metrics.average_precision(*problem).items))
    np.testing.assert_array_equal(*both)


def test_precision_recall_curve_is_that_of_scikit_learn_where_recall_changes():
    random = np.random.default_rng(0)
    labels = random.random((40, 3)) < 0.3
    scores = random.standard_normal((40, 3)).round(1)
    precision, recall, thresholds = sk.precision_recall_curve(labels.ravel(), scores.ravel())
    kept = np.isin(thresholds, scores[labels])
    curve = metrics.precision_recall_curve(scores, labels)
    np.testing.assert_array_equal(curve.thresholds[::-1], thresholds[kept])
    np.testing.assert_allclose(curve.precision[::-1], precision[:-1][kept], rtol=1e-12)
    np.testing.assert_allclose(curve.recall[::-1], recall[:-1][kept], rtol=1e-12)
    for beta in (1.0, 2.0):
        threshold, value = curve.best(beta)
        every = [sk.fbeta_score(labels.ravel(), scores.ravel() >= t, beta=beta) for t in thresholds]
        assert value == pytest.approx(max(every), rel=1e-12)
        reached = sk.fbeta_score(labels.ravel(), scores.ravel() >= threshold, beta=beta)
        assert value == pytest.approx(reached, rel=1e-12)
    curve = metrics.precision_recall_curve(np.zeros((3, 2)), np.zeros((3, 2)))
    assert len(curve.thresholds) == 0
    with pytest.raises(ValueError, match="at least one positive"):
        curve.best()


def test_other_types_infinities_and_what_stands_at_unobserved_entries_are_read():
    scores, labels, observed = slow.problem(6, rows=30, columns=4, levels=8)
    expected = metrics.average_precision(scores, labels, observed).items
    for same in (scores.astype(np.float16), (8 * scores).astype(np.int64)):
        found = metrics.average_precision(same, labels, observed).items
        np.testing.assert_array_equal(found, expected)
    odd = np.where(observed, labels, -1)
    for low, filler in ((0, np.nan), (-np.inf, np.inf)):
        same = np.where(observed, np.where(scores == 0, low, scores), filler)
        found = metrics.average_precision(same, odd, observed).items
        np.testing.assert_array_equal(found, expected)


def test_empty_matrices_and_labels_without_positives_are_undefined():
    for shape in ((0, 3), (3, 0), (0, 0)):
        empty = np.zeros(shape)
        for by in ("label", "image"):
            found = metrics.average_precision(empty, empty, by=by)
            assert np.isnan(found.value)
            assert found.num_defined == 0
        assert np.isnan(metrics.micro_auroc(empty, empty))
    found = metrics.average_precision(np.eye(3), np.diag([1, 0, 1]))
    assert found.undefined_names(["cat", "dog", "sea"]) == ["dog"]
    with pytest.raises(ValueError, match="names must be 3, got 2"):
        found.undefined_names(["cat", "dog"])


def drawn(seed, rows, kind, dtype):
    draw = np.random.default_rng(seed)
    present = draw.random(rows) < draw.uniform(0.02, 0.6)
    scores = draw.normal(scale=4, size=rows) + 2 * present
    if kind == "ties":
        scores = scores.round()
    elif kind == "narrow":
        scores = 0.2 + scores / 1e4
    return scores.astype(dtype), present


def merged(parts):
    return reduce(ScoreCounts.merge, parts)


@QUICK
@given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.sampled_from(["plain", "ties", "narrow"]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(2, 500),
    st.integers(1, 6),
)
def test_counts_of_any_sharding_are_the_same_and_figures_are_within_their_bounds(
    seed, rows, kind, dtype, limit, shards
):
    scores, present = drawn(seed, rows, kind, dtype)
    counts = ScoreCounts.of(scores, present, limit)
    draw = np.random.default_rng(seed + 1)
    owner = draw.integers(shards, size=rows)
    parts = [ScoreCounts.of(scores[owner == s], present[owner == s], limit) for s in range(shards)]
    halves = [merged(half) for half in (parts[: shards // 2], parts[shards // 2 :]) if half]
    for same in (parts, [parts[place] for place in draw.permutation(shards)], halves):
        for mine, theirs in zip(
            *(vars(one).values() for one in (merged(same), counts)), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    assert len(counts.keys) <= limit
    assert (counts.positives.sum(), counts.others.sum()) == (present.sum(), (~present).sum())
    matrix, labels = scores[:, None], present[:, None]
    inside, outside = scores[present], scores[~present]
    for found, truth in (
        (counts.average_precision(), metrics.average_precision(matrix, labels).value),
        (counts.auroc(), metrics.micro_auroc(matrix, labels)),
        (counts.false_positive_rate_at(), metrics.false_positive_rate_at(inside, outside)),
    ):
        if np.isnan(truth):
            assert np.isnan(found.value)
            continue
        assert abs(found.value - truth) <= found.bound + 1e-12
        if counts.exact:
            assert found.bound == 0
    assert counts.exact == (len(np.unique(scores)) <= limit)


def test_bits_are_dropped_only_as_far_as_the_limit_asks():
    scores, present = drawn(3, 300, "plain", np.float32)
    for limit in (250, 100, 20):
        counts = ScoreCounts.of(scores, present, limit)
        finer = ScoreCounts.of(scores, present, 10**6)._with(counts.dropped - 1)
        assert len(counts.keys) <= limit < len(finer.keys)
    scores = np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf], np.float32)  # zeros are equal
    counts = ScoreCounts.of(scores, np.array([False, True, True, False, True, True]))
    assert counts.positives.tolist() == [0, 1, 1, 1, 1]
    assert counts.others.tolist() == [1, 0, 1, 0, 0]


# Oracles: golden vectors, plain loops (metrics_reference), scikit-learn, counts by hand.


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
    p, r = found.precision().value, found.recall().value  # whose harmonic mean is CF1
    assert found.cf1() == pytest.approx(2 / (1 / p + 1 / r), rel=1e-12)
    assert metrics.confusion(np.array([[True, False]]), np.array([[0, 1]])).cf1() == 0
    assert np.isnan(metrics.confusion(np.zeros((1, 1), dtype=bool), np.zeros((1, 1))).cf1())
    assert metrics.hamming_loss(sets, labels) == pytest.approx(sk.hamming_loss(labels, sets))
    exact = metrics.subset_accuracy(sets, labels)
    assert exact.value == pytest.approx(sk.accuracy_score(labels, sets))


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

"""Verdicts in words, sizes of sets. Oracles: counts by hand, scores made good or useless."""

import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_scores import sample
from scipy.stats import t as student

from labelwise.base.groups import Groups
from labelwise.decide import Threshold
from labelwise.errors import LabelwiseError
from labelwise.evaluation import TrainingRows, evaluate, intervals
from labelwise.evaluation.calibration import Known
from labelwise.evaluation.cause import floor_and_ceiling, likeliest_cause, told_apart
from labelwise.evaluation.evaluation import Trust, far_apart
from labelwise.evaluation.intervals import groups_note, mean_interval_by_group
from labelwise.evaluation.judge import Skill, skill_range, trust_of
from labelwise.evaluation.verdict import verdict
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision, confusion
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.report.page import decisions
from labelwise.report.runs import write_folder

NAMES = ("dog", "cat", "boat")


def evaluated(scale, *, rows=600, threshold=0.5, shift=0.0, link=True):
    """Evaluate logits of ``scale`` skill; truth is drawn by the probabilities before ``shift``."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, scale, (rows, 3)) if scale else np.full((rows, 3), -1.5)
    labels = rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))
    shown = logits + shift + rng.normal(0, 1e-6, logits.shape)
    given = torch.from_numpy(shown).float(), torch.from_numpy(labels).float()
    ids = [str(row) for row in range(rows)]
    table = Predictions(ids, *given, None, NAMES, "test", Sigmoid())
    rule = None if threshold is None else Threshold(threshold)
    return evaluate(table, Sigmoid() if link else None, rule, query_length=0), labels, shown


def test_a_useless_model_is_called_so():
    """It tags every photo: no better than always answering by frequency."""
    evaluation, labels, _ = evaluated(0.0, threshold=0.01)
    said = verdict(evaluation)
    assert said.words == ("useless",)
    assert evaluation.ranking.map_class < 0.3
    assert said.tags.startswith(f"Of 100 tags it gives, {round(100 * labels.mean())} are right")
    assert "it finds 100 of 100. It tags 100 of 100 photos that show nothing." in said.tags


def test_words_rise_with_skill():
    evaluation, labels, shown = evaluated(2.0)
    right = (shown[labels] >= 0).sum()  # tags are counted over all labels
    precision, recall = (round(100 * right / side.sum()) for side in (shown >= 0, labels))
    expected = f"Of 100 tags it gives, {precision} are right; it finds {recall} of 100."
    assert verdict(evaluation).tags.startswith(expected)
    ranges = [evaluated(scale)[0].judgement for scale in (0.0, 1.5, 4.0, 40.0)]
    assert [one.low for one in ranges] == sorted(one.low for one in ranges)
    words = [verdict(evaluated(scale)[0]).words for scale in (0.0, 1.5, 4.0, 40.0)]
    assert (words[0], words[-1]) == (("useless",), ("excellent",))
    few = verdict(evaluated(2.0, rows=25)[0])
    assert len(few.words) == 3
    ends = f"{few.words[0]} and {few.words[-1]}"
    assert f"Verdict: between {ends}. 25 photos cannot tell more." in str(few)
    none = str(verdict(evaluated(2.0, rows=2)[0]))
    assert "Verdict: cannot tell. 2 photos cannot tell more." in none


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scale": 3.0, "shift": 2.0}, ("Its probabilities are off by ", "times as many labels")),
        ({"scale": 3.0, "threshold": None, "link": False}, ("It ranks labels (mAP ", "no prob")),
        ({"scale": 2.0, "threshold": 1.1}, ("It gives no tags. No error found",)),
        ({"scale": 2.0, "rows": 49}, ("49 photos would show only errors above ",)),
    ],
)
def test_what_is_said_of_tags_and_probabilities(given, words):
    said = str(verdict(evaluated(**given)[0]))
    assert all(word in said for word in words)


def small(rows=30, seed=0):
    """Return scores with ties, labels of which one is rare and one absent, what is known, sets."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, 4)).round(1)
    present = rng.random((rows, 4)) < 1 / (1 + np.exp(1 - 2 * scores))
    present[:, 2] = np.arange(rows) == 5
    present[:, 3] = False
    observed = rng.random((rows, 4)) < 0.8
    observed[5] = True
    return scores, present & observed, observed, scores > 0.4


def plain_skill(scores, present, observed, sets):
    """The skill by loops: average precision of scikit-learn, the constant answer by trying."""
    precision = pytest.importorskip("sklearn.metrics").average_precision_score
    tested = [k for k in range(4) if present[:, k].any()]
    known = [observed[:, k] for k in range(4)]
    mean = np.mean([precision(present[known[k], k], scores[known[k], k]) for k in tested])
    shares = [present[known[k], k].mean() for k in range(4)]
    chance = np.mean([shares[k] for k in tested])

    def f1(given):
        given = given & observed
        return 2 * (given & present).sum() / (given.sum() + present.sum())

    constants = []
    for count in range(1, 5):
        given = np.zeros(present.shape, bool)
        given[:, np.argsort(-np.array(shares), kind="stable")[:count]] = True
        constants.append(f1(given))
    constant = max(constants)
    return ((mean - chance) / (1 - chance) + (f1(sets) - constant) / (1 - constant)) / 2


def test_skill_under_weights_is_that_of_repeated_photos():
    """Oracle: the same photos written out as often as they weigh, judged by scikit-learn."""
    scores, present, observed, sets = small()
    rng = np.random.default_rng(1)
    weights = rng.multinomial(30, np.full(30, 1 / 30), 3)
    weights[:, 5] += 1
    found = Skill.of(scores, Known(present, observed), sets)(weights.astype(np.float32))
    for times, value in zip(weights, found, strict=True):
        rows = np.repeat(np.arange(30), times)
        each = (side[rows] for side in (scores, present, observed, sets))
        assert value == pytest.approx(plain_skill(*each), abs=1e-5)


def test_influence_is_the_derivative_by_the_weight():
    """Oracle: the weight of one photo moved a little."""
    scores, present, observed, sets = small(60, seed=2)
    skill = Skill.of(scores, Known(present, observed), sets)
    centre, moved = skill.influence(scores)
    for photo in range(0, 60, 7):
        weights = np.ones((2, 60), np.float32)
        weights[:, photo] += np.array([0.05, -0.05])
        up, down = skill(weights)
        assert (up - down) / 0.1 == pytest.approx(moved[photo], abs=2e-4)
    assert centre == pytest.approx(plain_skill(scores, present, observed, sets), abs=1e-5)


def test_the_range_is_drawn_by_group_and_speaks_of_labels_that_no_photo_shows():
    """Oracles: copies in a group say no more than one of them; a label less, a narrower range."""
    scores, present, _, sets = small(40, seed=3)
    known = Known(present, None)
    alone = skill_range(scores, known, sets)
    fours = [np.repeat(side, 4, axis=0) for side in (scores, present, sets)]
    groups = Groups(np.repeat(np.arange(40), 4), 40)
    grouped = skill_range(fours[0], Known(fours[1], None, None, groups), fours[2])
    assert grouped == pytest.approx(alone, abs=1e-6)
    narrower = skill_range(fours[0], Known(fours[1], None), fours[2])
    assert narrower[1] - narrower[0] < grouped[1] - grouped[0]
    tested = Known(present[:, :3], None)
    less = skill_range(scores[:, :3], tested, sets[:, :3])
    assert alone[0] < less[0]
    assert alone[1] > less[1]
    assert skill_range(scores, Known(np.zeros((40, 4), bool), None), sets) == (None, None)


def test_untested_labels_are_named_and_counted():
    evaluation = evaluated(2.0, rows=60)[0]
    judgement = replace(evaluation.judgement, untested=("boat",))
    said = verdict(replace(evaluation, judgement=judgement))
    assert said.untested == "No test photo shows 1 of 3 labels, which cannot be judged: boat."
    assert said.untested in str(said)


def test_the_verdict_is_also_given_without_copies():
    """Oracle: the table that never had them, and what is said where nothing else is there."""
    table, copies = small_table(60), np.arange(60) < 20
    whole = evaluate(table, Sigmoid(), Threshold(0.5), query_length=0, copies=copies)
    rest = evaluate(table.take(np.arange(20, 60)), Sigmoid(), Threshold(0.5), query_length=0)
    judged = whole.judgement
    assert judged.copies == 20
    assert (judged.low_without, judged.high_without) == (rest.judgement.low, rest.judgement.high)
    said = verdict(whole).without
    assert said == f"Without the 20 copies of training photos: {verdict(rest).short}."
    assert said in str(verdict(whole))
    every = evaluate(table, Sigmoid(), Threshold(0.5), query_length=0, copies=copies | True)
    assert "Every test photo is a copy of a training photo" in str(verdict(every))


def test_figures_and_report_are_written_together_or_not_at_all(tmp_path):
    """The real limit of the system on a file's size lets the figures pass, and not the page.

    The charts are written last: they cannot be where a file has the name of their folder.
    """
    resource = pytest.importorskip("resource")
    before = evaluate(small_table(30), Sigmoid(), Threshold(0.5), query_length=0)
    write_folder(before, tmp_path, title="before")
    sizes = [(tmp_path / name).stat().st_size for name in ("evaluation.json", "report.html")]
    assert sizes[0] < sizes[1]
    old = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    after = evaluate(small_table(31), Sigmoid(), Threshold(0.5), query_length=0)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sum(sizes) // 2, limits[1]))
    try:
        with pytest.raises(LabelwiseError):
            write_folder(after, tmp_path, title="after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == old
    assert not list(tmp_path.glob(".*"))
    shutil.rmtree(tmp_path / "charts")
    (tmp_path / "charts").touch()
    with pytest.raises(LabelwiseError, match="part of that path is a file"):
        write_folder(after, tmp_path, title="after")
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == old
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "charts").unlink()
    write_folder(after, tmp_path, title="after")
    assert any((tmp_path / "charts").glob("*.svg"))
    assert (tmp_path / "evaluation.json").read_bytes() != old[tmp_path / "evaluation.json"]


def small_table(rows):
    rng = np.random.default_rng(7)
    logits = rng.normal(-1, 2, (rows, 3))
    labels = rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))
    shown = torch.from_numpy(logits).float(), torch.from_numpy(labels).float()
    groups = [f"g{row // 2}" for row in range(rows)]
    ids = [str(row) for row in range(rows)]
    return Predictions(ids, *shown, None, NAMES, "test", Sigmoid(), groups)


def drawn(rows, seed, slope=1.0):
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.5, 1.5, (rows, 8))
    labels = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
    return 1 / (1 + np.exp(-slope * odds)), labels


def test_exact_probabilities_are_seldom_called_wrong():
    """Oracle: labels drawn by the probabilities: at most 5 % of tests, as the binomial allows."""
    wrong = sum(trust_of(*drawn(40, seed), None, None).wrong for seed in range(300))
    assert wrong <= 26  # 99.8 % quantile of 300 draws at 5 %
    copies = [np.repeat(side, 5, axis=0) for side in drawn(40, 3)]
    groups = Groups(np.repeat(np.arange(40), 5), 40)
    one, five = trust_of(*drawn(40, 3), None, None), trust_of(*copies, None, groups)
    assert five.p_value == pytest.approx(one.p_value, rel=0.2)
    assert five.shown == pytest.approx(one.shown, rel=0.1)


def test_the_size_of_an_error_is_found_and_its_direction():
    """Oracle: the mean change of the probabilities that was made."""
    probs, labels = drawn(1500, 1, slope=2.0)
    exact = drawn(1500, 1)[0]
    trust = trust_of(probs, labels, None, None)
    true = float(np.abs(probs - exact).mean())
    assert trust.wrong
    assert trust.low <= true <= trust.high
    assert trust.size == pytest.approx(true, abs=0.006)
    assert trust.slope == pytest.approx(0.5, abs=0.05)
    assert trust_of(exact, labels, None, None).size < 0.006  # binned errors of exact ones are not 0


def test_labels_that_err_in_opposite_directions_are_seen():
    odds = np.log(drawn(1500, 1)[0] / (1 - drawn(1500, 1)[0]))
    bent = 1 / (1 + np.exp(-odds - np.where(np.arange(8) % 2, 0.5, -0.55)))
    trust = trust_of(bent, drawn(1500, 1)[1], None, None)
    assert trust.p_by_label < 0.001
    assert trust.wrong


def evaluation(chosen, true, labels=8, rows=20, observed=None):
    logits = torch.full((rows, labels), -3.0)
    logits[:, :chosen] = 3.0
    truth = torch.zeros(rows, labels)
    truth[:, :true] = 1
    names = tuple(f"label {k}" for k in range(labels))
    ids = [str(row) for row in range(rows)]
    scores = Predictions(ids, logits, truth, observed, names, "test", Sigmoid())
    return evaluate(scores, Sigmoid(), Threshold(0.5), query_length=0)


@pytest.mark.parametrize(
    ("chosen", "true", "words"),
    [
        (6, 2, ["The rule gives 6.00 labels per image and the truth has 2.00: far more"]),
        (0, 1, ["The rule gives 0.00 labels per image and the truth has 1.00: far fewer"]),
        (3, 2, []),
        (2, 3, []),
    ],
)
def test_sizes_far_from_the_truth_are_noted(chosen, true, words):
    found = [note for note in evaluation(chosen, true).notes if "labels per image" in note]
    assert [note.partition(";")[0] for note in found] == words


@pytest.mark.parametrize("complete", [0, 5])
def test_true_sizes_that_are_not_known_are_not_called_zero(complete, tmp_path):
    """Three labels are on every image, and of all but the complete ones a fourth is not known."""
    observed = torch.ones(20, 8, dtype=torch.bool)
    observed[complete:, 7] = False
    found = evaluation(6, 3, observed=observed)
    assert found.sets.true_size is None
    assert found.sets.mean_true_size == (3 if complete else None)
    assert not [note for note in found.notes if "labels per image" in note]
    page = str(decisions(found))
    assert "the truth has" not in page
    assert f"all labels are known of {complete} of 20 images" in page
    found.save(tmp_path / "evaluation.json")
    assert RunFolder(tmp_path).size_note(6.5) == ""


def test_predict_says_when_new_photos_get_far_more_labels(tmp_path):
    """Oracle: the true size of the photos that judged the run, two labels."""
    assert [far_apart(*sizes) for sizes in ((0.4, 0), (0.9, 0.45), (1, 0.5))] == [0, 0, 1]
    run = RunFolder(tmp_path)
    assert run.size_note(6.5) == ""  # of a model without figures
    evaluation(2, 2).save(tmp_path / "evaluation.json")
    assert run.size_note(2.4) == ""
    words = "6.50 labels per photo, where the photos that judged the model have 2.00"
    assert run.size_note(6.5).startswith(words)


# The one cause that would help most. Oracle: what was built into the labels and photos.

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


# Figures of photos in groups. Held to figures computed again without each group, and to copies,
# which must not narrow an interval.


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

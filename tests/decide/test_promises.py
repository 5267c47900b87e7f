"""Oracles: promised shares counted on thousands of other photos over many draws, written cases."""

import json
import re

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest

from labelwise import decide
from labelwise.base.groups import Groups
from labelwise.decide import Evidence, Threshold, check_promise, label_figures
from labelwise.errors import DataError, SettingsError
from labelwise.tables import posterior

DRAWS, PHOTOS, CONFIDENCE = 15, 700, 0.9


@pytest.fixture(scope="module")
def world():
    """12,000 photos whose labels depend on each other given the photo; scores are honest."""
    data = posterior(12_000, 1, 1, num_labels=6, most=0.4, least=0.02, spread=3.0, rho=0.5, seed=5)
    return data.eta[:12_000], data.table.targets()[0][:12_000].astype(bool)


def share(what, sets, truth):
    """Return the promised quantity."""
    hits, size, labels = (sets & truth).sum(1), sets.sum(1), truth.sum(1)
    if what == "tags":
        return hits.sum() / size.sum()
    with np.errstate(invalid="ignore"):
        if what == "f":
            return np.nan_to_num(2 * hits / (size + labels), nan=1.0).mean()
        return np.nanmean(hits / (labels if what == "recall" else size))


def draws(world, photos=PHOTOS):
    probs, truth = world
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        order = rng.permutation(len(probs))
        held, new = order[:photos], order[photos : photos + 4000]
        yield decide.Evidence.read(probs[held], truth[held]), probs[new], truth[new]


def assert_kept(broken, of=DRAWS, confidence=CONFIDENCE):
    assert binomtest(broken, of, 1 - confidence, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize(
    ("what", "make", "level", "options"),
    [
        ("precision", decide.promise_precision, 0.8, {}),
        ("recall", decide.promise_recall, 0.8, {}),
        ("f", decide.promise_f, 0.6, {}),
        ("tags", decide.promise_tags, 0.8, {}),
        ("precision", decide.promise_precision, 0.55, {"scope": "label"}),
        ("recall", decide.promise_recall, 0.75, {"scope": "label"}),
    ],
)
def test_promises_are_kept_on_new_photos(world, what, make, level, options):
    """Rare labels share one promise where each label has its own."""
    broken, sizes, promises = 0, [], []
    for evidence, probs, truth in draws(world, 1000 if options else PHOTOS):
        found = make(evidence, level=level, confidence=CONFIDENCE, **options)
        sets = found.rule(probs)
        for promise in found.promises:
            columns = [evidence.names.index(name) for name in promise.labels or evidence.names]
            broken += share(what, sets[:, columns], truth[:, columns]) < level
        promises += found.promises
        sizes.append(sets.sum() / truth.sum())
    assert_kept(broken, len(promises))
    assert len(promises) >= (2 if options else 0.9) * DRAWS
    assert not options or sum(len(one.labels) > 1 for one in promises) > 0.1 * DRAWS
    assert options or np.mean(sizes) > {"precision": 0.35, "tags": 0.3}.get(what, 0)


def test_recall_of_many_rare_labels_is_not_tested_on_the_photos_that_set_it():
    """40 rare labels, one a photo: thresholds set and tested on the same photos break it often."""
    rng, broken, attempts = np.random.default_rng(8), 0, 25

    def drawn(photos):
        label = rng.integers(40, size=photos)
        truth = label[:, None] == np.arange(40)
        return 1 / (1 + np.exp(3 - rng.normal(3.0 * truth, 1.5))), truth

    probs, truth = drawn(5000)
    for _ in range(attempts):
        evidence = decide.Evidence.read(*drawn(800))
        found = decide.promise_recall(evidence, level=0.8, confidence=0.95, scope="label")
        (promise,) = found.promises
        broken += share("recall", found.rule(probs), truth) < promise.level
    assert_kept(broken, attempts, 0.95)


@pytest.mark.parametrize("measure", ["all", "precision", "f"])
def test_answered_images_keep_the_promise_and_the_others_are_asked_about(world, measure):
    broken, answered, level = 0, [], 0.75
    for evidence, probs, truth in draws(world):
        found = decide.promise_answers(
            evidence, decide.Threshold(0.5), level=level, confidence=CONFIDENCE, measure=measure
        )
        sets, ask = found(probs)
        answered.append(1 - ask.mean())
        if ask.all():
            continue
        sets, truth = sets[~ask], truth[~ask]
        if measure == "all":
            value = (sets == truth).all(1).mean()
        elif measure == "precision":
            value = ((sets & truth).sum(1) / sets.sum(1).clip(1) + ~sets.any(1)).mean()
        else:
            value = share("f", sets, truth)
        broken += value < level
    assert_kept(broken)
    assert np.mean(answered) > 0.2


def test_certainty_is_the_chance_that_the_set_is_right():
    probs = np.array([[0.9, 0.2], [0.5, 0.4]])
    sets = probs >= 0.5
    np.testing.assert_allclose(np.exp(decide.certainty(probs, sets)), [0.9 * 0.8, 0.5 * 0.6])
    np.testing.assert_allclose(decide.certainty(probs, sets, "precision"), [0.9, 0.5])
    # One label chosen of two: F = 2 hits / (1 + labels), over the four label sets.
    expected = [0.9 * (0.8 * 1 + 0.2 * 2 / 3), 0.5 * (0.6 * 1 + 0.4 * 2 / 3)]
    np.testing.assert_allclose(decide.certainty(probs, sets, "f"), expected)


@pytest.mark.parametrize(
    ("fit", "options"),
    [
        (decide.promise_precision, {}),
        (decide.promise_precision, {"scope": "label"}),
        (decide.promise_recall, {}),
        (decide.promise_recall, {"scope": "label"}),
        (decide.promise_f, {}),
        (decide.promise_tags, {}),
    ],
)
def test_labels_that_no_photo_knows_are_promised_nothing(world, fit, options):
    """Oracle: the same photos with the known labels alone. The others were never right or wrong."""
    probs, truth = (part[:1500] for part in world)
    observed = np.zeros_like(truth)
    observed[:, ::2] = True
    names = list("abcdef")
    known = decide.Evidence.read(probs[:, ::2], truth[:, ::2], names=names[::2])
    part = fit(known, level=0.6, **options)
    whole = fit(decide.Evidence.read(probs, truth, observed, names=names), level=0.6, **options)
    assert not part.refused
    assert whole.refused[0].startswith("nothing is promised of 'b', 'd', 'f': no photo of the")
    own = [promise.labels or tuple("ace") for promise in part.promises]
    assert [promise.labels for promise in whole.promises] == own  # rare ones have one together
    if fit is not decide.promise_recall:
        assert not whole.rule(np.ones((1, 6)))[0, 1::2].any()
    if fit is not decide.promise_tags:  # there the cap counts all labels
        differing = whole.rule(probs)[:, ::2] != part.rule(probs[:, ::2])
        assert differing.mean() < 0.02  # scores of all labels are the thresholds that are tried


def test_photos_that_fitted_something_are_refused():
    probs, labels = np.full((3, 1), 0.5), np.ones((3, 1))
    with pytest.raises(DataError, match="1 of 3 were used for fitting, first 'b'; keep a share"):
        decide.Evidence.read(probs, labels, ids=["a", "b", "c"], fitted_on=["b", "x"])
    with pytest.raises(ValueError, match="give both"):
        decide.Evidence.read(probs, labels, fitted_on=["b"])
    decide.Evidence.read(probs, labels, ids=["a", "b", "c"], fitted_on=["x"])


def test_too_few_photos_promise_nothing_and_say_how_many_would_be_needed():
    evidence = decide.Evidence.read(np.full((10, 2), 0.9), np.ones((10, 2)))
    found = decide.promise_precision(evidence, level=0.9)
    assert found.rule == decide.Threshold(decide.NEVER)
    assert "29 that count would be needed" in found.refused[0]
    assert decide.promise_recall(evidence, level=0.9).rule == decide.Threshold(0.0)


def promise(**changes):
    fields = {"what": "precision", "level": 0.9, "confidence": 0.95, "n": 500, "counted": 400}
    fields |= {"observed": 0.93, "photos": "val", "made": "2026-01-01", "test": "betting"}
    return decide.Promise(**fields | changes)


def test_a_promise_is_plain_data_and_reads_as_a_sentence():
    made = promise(labels=("dog", "cat"), at_most=5)
    assert decide.Promise.from_spec(json.loads(json.dumps(made.spec()))) == made
    assert "95% confidence: at least 90.0%" in str(made)
    assert "(dog, cat)" in str(made)
    with pytest.raises(SettingsError, match="missing: level, unknown: lvl"):
        decide.Promise.from_spec({k.replace("level", "lvl"): v for k, v in made.spec().items()})
    for fields, words in (
        ({"what": "precison"}, "unknown promise 'precison'; did you mean 'precision'"),
        ({"level": 1.0}, "promise's level must lie between 0 and 1"),
        ({"kind": "shure"}, "unknown kind 'shure'; did you mean 'sure'"),
        ({"confidence": None}, "only an expected promise is without a confidence"),
    ):
        with pytest.raises(SettingsError, match=words):
            promise(**fields)


@pytest.mark.parametrize("what", ["precision", "recall", "f", "tags"])
def test_new_photos_keep_a_promise_break_it_or_cannot_tell(what):
    truth = np.tile([[True, True], [True, False], [False, False]], (300, 1))
    good, bad = truth.copy(), ~truth
    assert decide.check_promise(promise(what=what), good, truth).verdict == "kept"
    assert decide.check_promise(promise(what=what), bad, truth).verdict == "broken"
    few = decide.check_promise(promise(what=what), good[:3], truth[:3])
    assert (few.verdict, few.value) == ("cannot tell", 1.0)
    none = decide.check_promise(promise(what=what), np.zeros((0, 2), bool), np.zeros((0, 2)))
    assert none.verdict == "cannot tell"


def test_a_check_looks_at_the_labels_and_photos_that_were_promised():
    truth = np.tile([[True, True]], (300, 1))
    half = np.tile([[True, False]], (300, 1))
    for name, verdict in (("cat", "broken"), ("dog", "kept")):
        made = promise(what="recall", labels=(name,))
        assert decide.check_promise(made, half, truth, names=("dog", "cat")).verdict == verdict
    with pytest.raises(DataError, match="speaks of 'dog'"):
        decide.check_promise(made, half, truth, names=("dogs", "cat"))
    ids = [str(i) for i in range(300)]
    digest = decide.Evidence.read(half * 1.0, truth, ids=ids).digest
    with pytest.raises(DataError, match="photos the promise was made on"):
        decide.check_promise(promise(photos_digest=digest), half, truth, ids=ids[::-1])


# Promises on photos in groups. Oracles: copies, which say what the photos say once; slow loops.


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

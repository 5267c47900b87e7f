"""Oracles: the link applied to the stored logits by hand, a maximum-likelihood fit by scipy, the
rules of groups by hand, and SQLite, which answers nothing once its connection is closed.
"""

from dataclasses import replace

import numpy as np
import pytest
from forged import facts_of, rewrite
from open_indexes import nothing_left_open, open_index
from scipy.optimize import minimize
from search_setup import LABELS

from labelwise.base.progress import Silent
from labelwise.calibration.regression import Platt
from labelwise.decide import ScoredSplit, Threshold, TopK, estimate_list
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Grouped, Sigmoid, Softmax
from labelwise.metrics.shift import Likeness, audit_order
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, answer, questions, update_index
from labelwise.photos.index import IndexFacts
from labelwise.photos.shift import LibraryLikeness, evidence_of
from labelwise.queries import HitCount, Query

DOG = LABELS.index("dog")


@pytest.fixture
def index(pictured):
    return pictured


def stored(index):
    return np.stack([index.store.column(k) for k in range(len(LABELS))], axis=1).astype(float)


def use(index, **changes):
    index.use(index.spec.model_copy(update=changes), None)
    return open_index(index.folder)


@pytest.mark.parametrize("link", [Sigmoid(), Softmax()])  # each label by itself; all together
def test_probabilities_are_the_link_of_the_logits(index, link):
    index = use(index, link=link_to_spec(link))
    odds = np.exp(stored(index))
    expected = odds / (1 + odds if isinstance(link, Sigmoid) else odds.sum(1, keepdims=True))
    for label in range(len(LABELS)):
        odds = index.odds(label)
        np.testing.assert_allclose(np.exp(odds.log_p), expected[:, label], rtol=1e-5)
        np.testing.assert_allclose(np.exp(odds.log_q), 1 - expected[:, label], rtol=1e-5)
    np.testing.assert_allclose(np.exp(index.log_probs(slice(3, 7))), expected[3:7], rtol=1e-6)


def test_a_correction_is_certain_and_refits_the_others(index):
    """The refitted link is the least log loss of held-out and corrected photos together."""
    before = np.exp(index.odds(DOG).log_p)
    for row in range(4):
        index.correct(row, {"dog": "present"})
    after = np.exp(index.odds(DOG).log_p.astype(float))
    assert (after[:4] == 1).all()
    u = np.concatenate([stored(index)[:4, DOG], index.held_out.logits[:, DOG]])
    y = np.concatenate([np.ones(4), index.held_out.labels[:, DOG]])

    def loss(weights):
        z = weights[0] * u + weights[1]
        return (np.logaddexp(0, z) - y * z).sum()

    slope, offset = minimize(loss, [1.0, 0.0], tol=1e-10).x
    expected = 1 / (1 + np.exp(-(slope * stored(index)[4:, DOG] + offset)))
    np.testing.assert_allclose(after[4:], expected, rtol=1e-3)
    assert (after[4:] > before[4:]).all()
    np.testing.assert_allclose(np.exp(index.log_probs(slice(None)))[:, DOG], after, rtol=1e-6)


def test_one_correction_beside_a_few_held_out_photos_turns_no_fit_around(index):
    """Of eight held-out photos a fit by themselves would be flat, at five of nine for all photos.

    Oracle: the model's own probabilities.
    """
    index = use(index, link=link_to_spec(Platt(Sigmoid(), 60.0, -4.2, 50.0)))  # spread out
    photos = index.held_out_photos
    log_p, log_q, labels = (
        np.array(one[:8]) for one in (photos.log_p, photos.log_q, photos.stored.labels)
    )
    odds = np.array([0.4, 0.6, 0.5, 0.7, 0.3, 0.6, 0.4, 0.5])
    log_p[:, DOG], log_q[:, DOG] = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
    labels[:, DOG] = [1, 1, 1, 1, 1, 0, 0, 0]
    observed = np.ones(labels.shape, bool)
    stored = replace(photos.stored.take(np.arange(8)), labels=labels, observed=observed)
    few = replace(photos, stored=stored, log_p=log_p, log_q=log_q)
    index.__dict__["held_out_photos"] = few
    before = np.exp(index.odds(DOG).log_p.astype(float))
    surest = int(before.argmax())
    index.correct(surest, {"dog": "absent"})
    after = np.exp(index.odds(DOG).log_p.astype(float))
    others = np.arange(len(before)) != surest
    assert 0 < (before > 0.5).sum() < len(before)
    np.testing.assert_array_equal(np.argsort(after[others]), np.argsort(before[others]))
    np.testing.assert_allclose(after[others], before[others], atol=0.1)


def test_states_and_withdrawal(index):
    before = 1 / (1 + np.exp(-stored(index)))
    index.correct(5, {"dog": "absent", "cat": "unknown"})
    assert index.probability(5, "dog") == 0
    np.testing.assert_allclose(np.exp(index.odds(1).log_p), before[:, 1], rtol=1e-5)
    index.correct(5, {"dog": "present"})
    assert index.probability(5, "dog") == 1
    index.correct(5, {"dog": "withdrawn"})
    np.testing.assert_allclose(np.exp(index.odds(DOG).log_p), before[:, DOG], rtol=1e-5)
    assert [one.label for one in index.store.corrections()] == ["cat"]


def test_only_what_exists_is_corrected(index):
    for row, said, why in (
        (0, {"dgo": "present"}, "did you mean 'dog'"),
        (12, {"dog": "present"}, "numbered from 0 to 11"),
        (0, {"dog": "yes"}, r"must be one of present, absent.* got 'yes'"),
    ):
        with pytest.raises(LabelwiseError, match=why):
            index.correct(row, said)
    assert index.store.corrections() == []
    with pytest.raises(LabelwiseError, match="sort must be score or date, got 'name'"):
        answer(index, Query.parse("dog"), sort="name")
    with pytest.raises(LabelwiseError, match="calibrate it first"):
        use(index, link=None).odds(0)


@pytest.mark.parametrize("rule", [Threshold((0.3, 0.5, 0.47, 0.4)), TopK(2)])
def test_given_labels_are_the_rules_and_then_peoples(index, rule):
    index = use(index, rule=rule_to_spec(rule))
    expected = rule(1 / (1 + np.exp(-stored(index))))
    for label in range(len(LABELS)):
        np.testing.assert_array_equal(index.given(label), expected[:, label])
    row = int(np.flatnonzero(expected[:, DOG])[0])
    index.correct(row, {"dog": "absent"})
    assert not index.given(DOG)[row]
    assert not index.sets(slice(row, row + 1))[0, DOG]
    open_index(index.folder).correct(row, {"dog": "present"})  # as another program would
    assert index.given(DOG)[row]


def test_similar_photos_are_the_nearest_embeddings(index):
    vectors = index.store.embeddings().astype(np.float32)
    rows, found = index.embeddings.nearest(index.store.embeddings()[4], 5, without=[4])
    cosines = vectors @ vectors[4]
    order = [row for row in np.argsort(-cosines, kind="stable") if row != 4][:5]
    assert rows.tolist() == order
    np.testing.assert_allclose(found, cosines[order], atol=1e-3)


@pytest.mark.parametrize("by", ["uncertain", "missing", "wrong", "value"])
def test_questions_are_worth_what_they_say(index, by):
    probs = 1 / (1 + np.exp(-stored(index)))
    given = probs >= 0.5
    worths = {
        "uncertain": probs * (1 - probs),
        "missing": np.where(given, 0, probs),
        "wrong": np.where(given, 1 - probs, 0),
        "value": np.where(given, 1 - probs, probs),
    }
    asked = questions(index, by, 8)
    for one in asked:
        label = LABELS.index(one.label)
        assert one.worth == pytest.approx(worths[by][one.row, label], rel=1e-4)
        assert one.given == given[one.row, label]
    assert len({one.row for one in asked}) == len(asked)
    assert asked[0].worth == pytest.approx(worths[by].max(), rel=1e-4)
    index.correct(asked[0].row, {asked[0].label: "unknown"})
    again = questions(index, by, 8)
    assert (asked[0].row, asked[0].label) not in {(one.row, one.label) for one in again}


def test_a_promise_needs_photos_that_fitted_nothing(index):
    assert len(evidence_of(index)) == 400
    facts = index.facts.model_copy(update={"held_out": "val"})
    with index.store.database.rewriting("index.json"):
        facts.save(index.folder / "index.json")
    with pytest.raises(LabelwiseError, match="fitted nothing"):
        evidence_of(open_index(index.folder))


def test_lists_are_cut_under_the_models_own_link(index):
    """Oracle: halves of the held-out photos by hand, and the stored logits."""
    for row in range(8):
        index.correct(row, {"dog": "present"})
    log_p = -np.logaddexp(0, -stored(index)[:, DOG])
    assert (index.odds(DOG).log_p[8:] > log_p[8:] + 0.01).all()  # refitted
    held_out = index.held_out
    scores = -np.logaddexp(0, -held_out.logits[:, DOG].astype(np.float64))
    scores = scores.astype(np.float32).astype(np.float64)
    first = audit_order("halves", np.arange(len(scores))) % 2 == 0
    halves = [
        ScoredSplit(scores[some], held_out.majority[some, DOG] > 0) for some in (first, ~first)
    ]
    library = log_p.astype(np.float32).astype(np.float64)
    by_hand = estimate_list(*halves, library, wrong_at_most=0.6)
    found = answer(index, Query.parse("dog"), wrong_about=0.6)
    expected = {row for row in range(12) if library[row] >= by_hand.cut}
    assert len(expected) > 1
    assert found.above == len(expected)
    assert found.statement.kind == "none"  # 12 photos are too few to be compared
    assert not found.hits  # so the list is not shown
    assert found.statement.sentence == (
        "No estimate: your photos were not compared with the test photos; audit the list."
    )
    wrong = min(expected)
    index.correct(wrong, {"dog": "absent"})
    found = answer(index, Query.parse("dog"), wrong_about=0.6)
    assert found.above == len(expected) - 1
    rule = Threshold(float(np.exp(np.sort(log_p[8:])[1:3].mean())))
    chosen = index.sets(slice(8, 12), rule)[:, DOG]
    np.testing.assert_array_equal(chosen, np.exp(log_p[8:]) >= rule.value)


def test_a_query_that_no_held_out_photo_answers_says_that_it_was_never_tested(index):
    """As ``none`` is, where every photo that the model was tested on carries a label."""
    count = HitCount(3.2, 0.5, 6.7, 0.95)
    found = replace(answer(index, Query.parse("none")), photos=40, count=count)
    alike = LibraryLikeness(Likeness("alike", 300, 40), 40)
    tested = replace(found, checked_on=300, positives=4, likeness=alike)
    assert tested.counted == "about 3 of 40 photos match none (95% interval: 0 to 7)"
    never = replace(tested, positives=0)
    never_tested = "about 3 of 40 photos match none; never tested, so there is no interval: "
    assert never.counted == f"{never_tested}none of the 300 held-out photos matches"
    without = replace(never, checked_on=0)
    reason = "there are no held-out photos whose answer is known"
    assert without.counted == f"{never_tested}{reason}"
    assert (tested.interval, never.interval, without.interval) == ((0.5, 6.7), None, None)


def test_a_model_that_was_changed_is_noticed_before_the_first_update(model, tmp_path):
    """An index that was only made has no photos, and its model is held to its hash."""
    folder = tmp_path / "new.index"
    Index.create(folder, RunFolder(model).spec, IndexFacts(model=str(model))).close()
    path = folder / "model.json"
    facts = facts_of(path)
    rewrite(path, method=f"x{facts['method']}")
    with pytest.raises(LabelwiseError, match=r"model\.json is damaged: it is not what was written"):
        open_index(folder)


def test_a_refused_update_and_a_damaged_database_leave_nothing_open(folder):
    with nothing_left_open(), pytest.raises(LabelwiseError, match="--decode"):
        update_index(folder, decode="cuda", watch=Silent())
    (folder / "photos.sqlite").write_bytes(b"no database" * 999)
    with nothing_left_open(), pytest.raises(CheckpointError, match="cannot be read"):
        Index(folder)


GROUP = ("beach", "cat", "dog")


def grouped(index, **groups):
    """Return the index with a model that knows these groups."""
    return use(index, link=link_to_spec(Grouped(Sigmoid(), **groups)))


def said(index, row):
    """Return what is known of a photo, by its labels."""
    every = {name: index.corrections.of(LABELS.index(name)) for name in LABELS}
    return {name: one.state for name, some in every.items() for one in some if one.row == row}


def test_a_correction_settles_the_labels_that_it_excludes(index):
    index = grouped(index, exactly_one=[(0, 1, 2)])
    before = np.exp(index.log_probs(slice(0, 12)))
    absent, present = "absent", "present"
    index.correct(0, {"cat": present})
    index.correct(1, {"beach": absent, "cat": absent})
    index.correct(2, {"beach": absent, "row": present})
    assert said(index, 0) == {"beach": absent, "cat": present, "dog": absent}
    assert said(index, 1) == {"beach": absent, "cat": absent, "dog": present}
    assert said(index, 2) == {"beach": absent, "row": present}
    probs = np.exp(index.log_probs(slice(0, 12)))
    np.testing.assert_array_equal(probs[:2, :3], [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(index.sets(slice(0, 2))[:, :3], [[0, 1, 0], [0, 0, 1]])
    assert probs[2, 0] == index.probability(0, "dog") == 0 < probs[2, 1] < 1
    assert before[0, 2] > 0
    index.correct(0, {"cat": "withdrawn"})
    assert said(index, 0) == {}


def test_what_was_said_itself_stands_and_clashes_and_at_most_one_settle_nothing(index):
    index = grouped(index, exactly_one=[(0, 1, 2)])
    index.correct(0, {"beach": "present", "cat": "present"})
    index.correct(1, {"cat": "present", "dog": "unknown"})
    index.correct(2, dict.fromkeys(GROUP, "absent"))
    assert said(index, 0) == {"beach": "present", "cat": "present"}
    assert said(index, 1) == {"beach": "absent", "cat": "present", "dog": "unknown"}
    assert said(index, 2) == dict.fromkeys(GROUP, "absent")
    index = grouped(index, at_most_one=[(0, 1, 2)])
    index.correct(3, {"beach": "absent", "cat": "absent"})
    index.correct(4, {"dog": "present"})
    assert said(index, 3) == {"beach": "absent", "cat": "absent"}  # the last is not known
    assert said(index, 4) == {"beach": "absent", "cat": "absent", "dog": "present"}

"""Oracles: the link applied to the stored logits by hand, a maximum-likelihood fit by scipy, the
rules of groups by hand, and SQLite, which answers nothing once its connection is closed.
"""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forged import facts_of, rewrite
from made_index import made_index
from open_indexes import nothing_left_open, open_index
from PIL import Image
from scipy.optimize import minimize
from search_setup import LABELS, twelve_photos

from labelwise.base.progress import Silent
from labelwise.calibration.regression import Platt
from labelwise.decide import ScoredSplit, Threshold, TopK, estimate_list
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Grouped, Sigmoid, Softmax
from labelwise.metrics.shift import Likeness, audit_order
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, answer, questions, update_index
from labelwise.photos.filters import NearCopies, PhotoFilter, copied_rows, near_copies, pictures_of
from labelwise.photos.index import IndexFacts
from labelwise.photos.lists import CheckSession
from labelwise.photos.prevalence import SampleAnswers, draw_sample
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


# Searches of some photos only, and near copies. Oracles: an index of just those photos, hits of
# the whole that pass, how the library was made.

FOLDERS = ("", "2023", "2023/june", "2023-b", "2024")
DOGS, DISTINCT = Query.parse("dog"), PhotoFilter(distinct=True)


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(1).normal(-1, 2, (600, 4)).astype(np.float32)


@pytest.fixture
def filtered(model, logits, tmp_path):
    folders = [FOLDERS[row % 5] for row in range(600)]
    filtered = open_index(made_index(tmp_path / "photos.index", model, logits, folders))
    with filtered.store.transaction() as database:
        for row, *facts, _, alive in database.read("contents"):
            taken = f"{2020 + row % 5}-{1 + row % 12:02d}-15T12:00:00"
            if row % 2 == 0:  # every other photo has a date
                database.put("contents", [(row, *facts, taken, alive)])
    return filtered


@pytest.mark.parametrize(("text", "share"), [("dog, -beach", None), ("(cat | dog), -row", 0.4)])
def test_a_search_of_a_folder_is_that_of_an_index_of_the_folder(
    filtered, model, logits, tmp_path, text, share
):
    """Its photos, counts, cut and promise; a folder whose name only begins alike is another."""
    within = [row for row in range(600) if FOLDERS[row % 5] in ("2023", "2023/june")]
    other = open_index(made_index(tmp_path / "some.index", model, logits[within]))
    query, options = Query.parse(text), {"top": 600, "wrong_about": share}
    found = answer(filtered, query, photos=PhotoFilter("2023"), **options)
    alone = answer(other, query, **options)
    assert [hit.row for hit in found.hits] == [within[hit.row] for hit in alone.hits]
    assert [hit.probability for hit in found.hits] == [hit.probability for hit in alone.hits]
    assert (found.photos, found.above, found.statement) == (240, alone.above, alone.statement)
    assert found.count.expected == pytest.approx(alone.count.expected)
    assert "of 240 photos below 2023 match" in found.counted
    said, same = found.likeness.likeness, alone.likeness.likeness
    assert (said.outcome, said.photos) == (same.outcome, 240)  # the folder's own photos


@pytest.mark.parametrize(
    ("since", "until"),
    [("2021", None), (None, "2021-06"), ("2021-03-15", "2022-03-15"), ("2021", "2021")],
)
def test_days_months_and_years_are_inside(filtered, since, until):
    every = answer(filtered, DOGS, top=600).hits
    found = answer(filtered, DOGS, top=600, photos=PhotoFilter(None, since, until)).hits
    last = until or "9999"
    dated = [hit for hit in every if hit.taken and (since or "") <= hit.taken]
    assert list(found) == [hit for hit in dated if hit.taken[: len(last)] <= last]
    assert 0 < len(found) < 300


def test_a_whole_path_is_a_folder_too_and_both_filters_join(filtered):
    (root,) = filtered.store.roots().values()
    by_path = answer(filtered, DOGS, photos=PhotoFilter(f"{root}/2023/june/"), top=600)
    assert by_path.hits == answer(filtered, DOGS, photos=PhotoFilter("2023/june"), top=600).hits
    assert answer(filtered, DOGS, photos=PhotoFilter(root), top=600).photos == 600
    both = answer(filtered, DOGS, photos=PhotoFilter("2023", "2021"), top=600)
    assert 0 < both.photos < 240
    assert "below 2023, since 2021" in both.counted


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"since": "June"}, "since must be a day, a month or a year such as 2023-06-30"),
        ({"until": "2023-13"}, "until must be"),
        ({"since": "2024", "until": "2023"}, "since 2024 is after until 2023"),
        ({"rating": 9}, "a rating must lie between 1 and 5, got 9"),
        ({"folder": "holiday"}, "lies below 'holiday'; name a folder"),
        ({"folder": "/elsewhere"}, "lies below"),
    ],
)
def test_filters_that_cannot_be_say_why(pictured, options, why):
    with pytest.raises(DataError, match=why):
        PhotoFilter(**options).left_out(pictured)


def smooth(seed):
    """Return a smooth picture, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 80), Image.Resampling.BICUBIC)


def add_shots(photos):
    """Write three shots of one more picture: it, half as large, and badly encoded."""
    shot = smooth(7)
    for name, picture in (("a", shot), ("b", shot.resize((40, 40)))):
        picture.save(photos / f"shot-{name}.png")
    shot.save(photos / "shot-c.jpg", quality=40)


@pytest.fixture(scope="module")
def shots(model, tmp_path_factory):
    """The index of twelve photos and three shots."""
    home = tmp_path_factory.mktemp("shots")
    add_shots(twelve_photos(home / "photos"))
    update_index(home / "index", [home / "photos"], model=model, watch=Silent())
    return home / "index"


@pytest.fixture
def library(shots, tmp_path):
    """That index, open until the test ends."""
    return open_index(shutil.copytree(shots, tmp_path / "photos.index"))


def rows_named(filtered, word):
    alive = filtered.store.alive_rows().tolist()
    return [row for row in alive if word in Path(filtered.store.paths_of([row])[row][0]).name]


def test_what_was_known_stays_when_photos_come(update, photos):
    """The earliest of a picture leads; where it is gone, the next one that is there."""
    add_shots(photos)
    update()
    with Index(update.folder) as filtered:
        shots, before = rows_named(filtered, "shot"), pictures_of(filtered)
        assert near_copies(filtered) == NearCopies(15, 2)
        assert set(before[shots]) == {shots[0]}
        assert copied_rows(filtered).tolist() == shots[1:]
        others = np.setdiff1d(filtered.store.alive_rows(), shots)
        assert near_copies(filtered, others) == NearCopies(12, 0)
        assert before[others].tolist() == others.tolist()
    smooth(7).resize((60, 60)).save(photos / "shot-d.png")
    changes = update()
    assert any("of 16 photos of the index, 3 are near copies" in note for note in changes.notes)
    with Index(update.folder) as filtered:
        assert pictures_of(filtered).tolist() == [*before, shots[0]]
        (photos / filtered.store.paths_of(shots)[shots[0]][0]).unlink()
    update()
    with Index(update.folder) as filtered:
        assert copied_rows(filtered).tolist() == [shots[2], len(before)]
        assert near_copies(filtered) == NearCopies(15, 2)


def test_a_search_for_distinct_photos_is_one_in_a_library_without_the_copies(library):
    found, whole = (answer(library, DOGS, top=99, photos=p) for p in (DISTINCT, PhotoFilter()))
    left_out = copied_rows(library).tolist()
    assert list(found.hits) == [one for one in whole.hits if one.row not in left_out]
    assert (whole.photos, found.photos) == (15, 13)
    assert "of 13 photos near copies counted as one match dog" in found.counted


def test_a_check_draws_one_photo_of_each_picture(library):
    plain = CheckSession(library, DOGS, top=15)
    session = CheckSession(library, DOGS, top=15, distinct=True)
    copies = rows_named(library, "shot")[1:]
    assert sorted(session.rows.tolist()) == [row for row in range(15) if row not in copies]
    assert session._places == [plain._places[0] + 1]  # with its own error


def test_an_estimate_counts_pictures(library):
    """Where every picture is answered the count is exact, whichever shot stands for it."""
    shots, sample = rows_named(library, "shot"), draw_sample(library, DOGS, 99, distinct=True)
    assert sample.photos != draw_sample(library, DOGS, 99).photos
    asked = SampleAnswers(library, DOGS, sample)
    assert sum(row in shots for row in asked.rows) == 1
    asked.note({row: "yes" if row in shots else "no" for row in asked.rows})
    total = asked.estimate().total
    assert (total.photos, total.count, total.low, total.high) == (13, 1, 1, 1)


def test_an_index_that_never_had_looks_says_so(library):
    shutil.rmtree(library.folder / "looks")
    with closing(sqlite3.connect(library.folder / "photos.sqlite")) as database, database:
        database.execute("DELETE FROM checksums WHERE name LIKE 'looks/%'")
    assert near_copies(library) is None
    with pytest.raises(DataError, match="--rebuild"):
        answer(library, DOGS, photos=DISTINCT)


def test_a_list_counts_its_near_copies(library):
    query, options = Query.parse("-beach"), {"top": 99, "at_least": 0.1}
    found = answer(library, query, **options)
    assert sum("shot-" in hit.paths[0] for hit in found.hits) == 3
    assert near_copies(library, found.rows) == NearCopies(found.above, 2)
    distinct = answer(library, query, **options, photos=DISTINCT)
    assert near_copies(library, distinct.rows) == NearCopies(found.above - 2, 0)
    unsaid = answer(library, query, wrong_about=0.5)  # 15 photos cannot be compared
    assert (unsaid.hits, unsaid.copies_sentence) == ((), "")

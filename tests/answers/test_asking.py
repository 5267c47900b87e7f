"""What to label next. Oracles: every truth enumerated, a slow greedy loop, files read back."""

import re
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_indexes import open_index
from PIL import Image
from sample_scores import NAMES, sample
from scipy.optimize import minimize
from search_setup import LABELS, picture, save_model
from typed import must_run, refused

from labelwise.answers import suspects
from labelwise.answers.asking import (
    Pool,
    choose_labels,
    choose_photos,
    draw_photos,
    worth_of_labels,
)
from labelwise.answers.log import AnswerLog
from labelwise.answers.suspects import (
    Reviewed,
    crossfit_log_odds,
    crossfit_true_log_odds,
    find_suspects,
    log_changes,
    marked_checks,
    promise_suspects,
    read_review,
    repair,
    write_review,
)
from labelwise.base.progress import Silent
from labelwise.base.table_files import write_csv
from labelwise.cli.app import app
from labelwise.errors import DataError, SettingsError
from labelwise.photos import update_index
from labelwise.pictures.sources import FileImages
from labelwise.report.contact_sheet import write_suspects_page
from labelwise.scores.unlabelled_pool import answered_questions, read_pool
from labelwise.tables import LabelTable, load
from labelwise.tables.export import export

seeds = st.integers(0, 10**6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=seeds, labels=st.integers(1, 6))
def test_the_value_of_a_question_is_that_of_enumeration(seed, labels):
    """Oracle: how many labels more are right on average after the answer, over every truth."""
    rng = np.random.default_rng(seed)
    probs = rng.choice([0.0, 0.02, 0.3, 0.5, 0.7, 0.97, 1.0], (5, labels))
    sets = rng.random((5, labels)) < 0.5
    slow = np.zeros(probs.shape)
    for truth in product((0, 1), repeat=labels):
        chance = np.where(truth, probs, 1 - probs).prod(1)
        slow += chance[:, None] * (sets != np.array(truth))
    np.testing.assert_allclose(worth_of_labels(Pool.of(probs, sets), "value"), slow, atol=1e-9)


def slowly_chosen(worth, vectors, labelled, count, *, photos):
    """Return (row, column) as the docstring says it, one question at a time."""
    rows, labels = worth.shape
    worth, chosen = worth.copy(), []
    seen = {k: [row for row in range(rows) if labelled[row, k]] for k in range(labels)}

    def best(k):
        new = [
            worth[i, k] * (1 - max([0.0, *(float(vectors[i] @ vectors[j]) for j in seen[k])]))
            for i in range(rows)
        ]
        i = int(np.argmax(new)) if max(new) > 1e-6 else int(np.argmax(worth[:, k]))
        return i if worth[i, k] > 0 else None

    while len(chosen) < count:
        heads = sorted((worth[best(k), k], k) for k in range(labels) if best(k) is not None)
        if not heads:
            break
        for _, k in reversed(heads):
            i = best(k)
            if i is None or len(chosen) == count:
                continue
            chosen.append((i, k))
            worth[i, slice(None) if photos else k] = 0
            for column in range(labels) if photos else (k,):
                seen[column].append(i)
    return chosen


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=seeds, photos=st.booleans(), by=st.sampled_from(["value", "entropy"]))
def test_choices_are_those_of_a_slow_loop(seed, photos, by):
    rng = np.random.default_rng(seed)
    probs, vectors = rng.random((9, 3)), rng.normal(size=(9, 4))
    truth = np.where(rng.random((9, 3)) < 0.3, rng.integers(0, 2, (9, 3)), np.nan)
    pool = Pool.of(probs, probs > 0.5, truth, vectors)
    worth = np.where(np.isnan(truth), worth_of_labels(pool, by), 0)
    done = ~np.isnan(truth)
    labelled = np.tile(done.all(1, keepdims=True), 3) if photos else done
    slow = slowly_chosen(worth, pool.vectors.astype(float), labelled, 12, photos=photos)
    if photos:
        assert choose_photos(pool, 12, by).tolist() == [row for row, _ in slow]
    else:
        found = choose_labels(pool, 12, by)
        assert list(zip(*(part.tolist() for part in found), strict=True)) == slow


def test_copies_are_asked_last_and_closed_entries_never():
    """Oracle: equal shares over many draws; photo 2 is a copy of 0, photo 3 is known."""
    probs = np.array([[0.5, 0.1], [0.2, 0.5], [0.5, 0.1], [0.9, 0.9]])
    truth = np.full(probs.shape, np.nan)
    truth[3] = 1
    pool = Pool.of(probs, probs > 0.4, truth)
    first = [int(draw_photos(pool, 1, seed=seed)[0]) for seed in range(3000)]
    assert (np.abs(np.bincount(first, minlength=4) / 3000 - [1 / 3, 1 / 3, 1 / 3, 0]) < 0.04).all()
    for seed in range(20):
        drawn = draw_photos(pool, 9, seed=seed).tolist()
        assert sorted(drawn) == [0, 1, 2]
        assert drawn[2] != 1  # one of the copies
        assert drawn == draw_photos(pool, 9, seed=seed).tolist()
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(5, 8)), 4, axis=0)  # each photo four times
    probs = rng.random((20, 3))
    for by in ("value", "entropy", "diverse"):
        rows = choose_photos(Pool.of(probs, probs > 0.5, None, vectors), 5, by)
        assert sorted(rows // 4) == [0, 1, 2, 3, 4], by
    known = np.full((20, 3), np.nan)
    known[:4] = 0  # the first is labelled, and nothing of its copies is left to ask
    rows = choose_photos(Pool.of(probs, probs > 0.5, known, vectors), 100, "value")
    assert sorted(rows) == list(range(4, 20))
    probs = np.full((4, 2), 0.5)
    pool = Pool.of(probs, probs > 0.5, closed=np.array([[True, False]] * 4))
    rows, columns = choose_labels(pool, 10, "value")
    assert set(columns.tolist()) == {1}
    assert sorted(rows) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"by must be one of value, entropy, .* got 'worth'"):
        choose_photos(pool, 1, "worth")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next")
    save_model(folder / "model")
    for seed in range(12):
        picture(folder / "photos" / f"{seed % 8}" / f"{seed}.png", seed % 8)  # four are copies
    update_index(folder / "index", [folder / "photos"], model=folder / "model", watch=Silent())
    return folder


def run(*arguments):
    app([str(one) for one in arguments], standalone_mode=False)


def test_photos_of_a_folder_become_a_table_to_label(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    ask = [
        "data",
        "review",
        "--find",
        "next",
        "photos",
        "-m",
        "model",
        "--top",
        8,
        "-o",
        "next.csv",
    ]
    run(*ask, "--html", "n.html")
    assert "nothing else is unknown" not in capsys.readouterr().out  # 8 of 8 were asked for
    table = load("next.csv")
    assert len(table) == 8
    assert table.space.names == LABELS
    assert table.unlabelled().all()
    assert len({table.images.content(row) for row in range(8)}) == 8  # no copy before the others
    assert "data:image/jpeg" in (place / "n.html").read_text()
    capsys.readouterr()
    run("data", "convert", "next.csv", "--for", "label-studio", "-o", "tasks.json")
    assert load("tasks.json").unlabelled().all()
    # Labelled in a spreadsheet, four photos are known and are not asked again.
    known = [int(label == "dog") for label in LABELS]
    rows = [[path, *(known if row < 4 else [None] * 4)] for row, path in enumerate(table.ids)]
    write_csv(place / "part.csv", ("path", *LABELS), rows)
    capsys.readouterr()
    run(
        "data",
        "review",
        "--find",
        "next",
        "part.csv",
        "-m",
        "model",
        "-o",
        "again.csv",
        "--order",
        "diverse",
    )
    said = capsys.readouterr().out
    assert "4 photos of 8" in said
    assert "nothing else is unknown: 4 instead of" in said
    assert set(load("again.csv").ids) == {path for path, *_ in rows[4:]}


def test_answers_to_single_labels_repair_the_table(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    run("data", "review", "--find", "next", "photos", "-m", "model", "-o", "table.csv")
    ask = [
        "data",
        "review",
        "--find",
        "next",
        "table.csv",
        "-m",
        "model",
        "--questions",
        "labels",
        "--top",
        9,
    ]
    run(*ask, "-o", "ask.csv", "--order", "entropy", "--html", "labels.html", "--blind")
    questions = read_review(place / "ask.csv")
    assert len(questions) == 9
    assert {one.given for one in questions} == {"unknown"}
    assert {one.label for one in questions} == set(LABELS)
    write_review(place / "answered.csv", [replace(one, answer="yes") for one in questions])
    run("data", "review", "table.csv", "--apply", "answered.csv", "-o", "repaired.csv")
    repaired = load("repaired.csv")
    asked = {(one.photo, one.label) for one in questions}
    rows, columns = np.nonzero(repaired.targets()[0])
    names = repaired.space.names
    assert {(repaired.ids[i], names[k]) for i, k in zip(rows, columns, strict=True)} == asked
    capsys.readouterr()
    run(
        "data",
        "review",
        "--find",
        "next",
        "repaired.csv",
        "-m",
        "model",
        "--questions",
        "labels",
        "-o",
        "more.csv",
    )
    assert not asked & {(one.photo, one.label) for one in read_review(place / "more.csv")}


def test_only_photos_of_train_are_chosen(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    rows = [f"photos/{n}/{n}.png,,*,{split}" for n, split in enumerate(("train", "val", "test"))]
    (place / "split.csv").write_text("\n".join(["path,labels,unknown,split", *rows, ""]))
    run("data", "review", "--find", "next", "split.csv", "-m", "model", "-o", "chosen.csv")
    assert list(load("chosen.csv").ids) == ["photos/0/0.png"]
    assert "2 photos of val and test are not asked about" in capsys.readouterr().err


def test_an_index_and_the_output_of_predict_are_pools(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    index = open_index(place / "index")
    index.correct(0, {label: "absent" for label in LABELS})
    index.correct(1, {"dog": "unknown"})
    corrected = index.store.paths_of([0, 1])
    run("data", "review", "--find", "next", "index", "-o", "indexed.csv")
    table = load("indexed.csv")
    assert len(table) == 7  # of eight contents
    assert corrected[0][0] not in set(table.ids)
    run(
        "data",
        "review",
        "--find",
        "next",
        "index",
        "--questions",
        "labels",
        "-o",
        "indexed-labels.csv",
    )
    asked = read_review(place / "indexed-labels.csv")
    assert len(asked) == 7 * 4 - 1
    assert (corrected[1][0], "dog") not in {(one.photo, one.label) for one in asked}
    for suffix in (".parquet", ".csv", ".jsonl"):
        run("predict", "model", "photos", "-o", f"answers{suffix}")
        run(
            "data",
            "review",
            "--find",
            "next",
            f"answers{suffix}",
            "-m",
            "model",
            "--top",
            8,
            "-o",
            "of-file.csv",
        )
        found = load("of-file.csv")
        assert len({found.images.content(row) for row in range(8)}) == 8, suffix


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["photos"], "say with --model which model"),
        (["photos", "-m", "model", "--blind"], "--blind does not apply"),
        (["index", "-m", "model"], "is an index and has its own model"),
        (["photos", "-m", "model", "--questions", "labels"], "a review file must end in .csv"),
        (["known.csv", "-m", "model"], "there is nothing to ask"),
        (["photos", "-m", "model", "--order", "value", "--seed", "1"], "--seed does not apply"),
        (["empty", "-m", "model"], "there are no images in the folder"),
    ],
)
def test_what_does_not_apply_is_one_sentence(place, monkeypatch, arguments, sentence):
    monkeypatch.chdir(place)
    (place / "empty").mkdir(exist_ok=True)
    (place / "known.csv").write_text("path,labels\nphotos/0/0.png,dog\nphotos/1/1.png,\n")
    with pytest.raises(Exception, match=sentence):
        run("data", "review", "--find", "next", *arguments, "-o", "out.parquet")


def test_a_table_of_paths_alone_is_a_pool_of_photos(tmp_path):
    """Oracle: the same photos as a folder; a row without a name is named."""
    for number in range(3):
        picture(tmp_path / f"photos/{number}.png", number)
    model = save_model(tmp_path / "run")
    table = tmp_path / "photos/new.csv"
    table.write_text("path\n0.png\n1.png\n2.png\n")
    listed, folder = (read_pool(str(at), model) for at in (table, table.parent))
    np.testing.assert_array_equal(listed.pool.probs, folder.pool.probs)
    table.write_text("path,note\n0.png,a\n,b\n")
    with pytest.raises(DataError, match="row 2 must name an image, got"):
        read_pool(str(table), model)


# Suspects, reviews, repairs. Oracles: slow loops, enumeration, scikit-learn, files read back.


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["missing", "wrong"]))
def test_suspects_are_those_of_a_slow_loop(seed, kind):
    rng = np.random.default_rng(seed)
    odds = rng.integers(-3, 4, (6, 5)).astype(float)  # with ties
    labels, observed = rng.integers(0, 2, (6, 5)), rng.random((6, 5)) < 0.7
    doubts = odds if kind == "missing" else -odds
    asked = np.argwhere(observed & (labels == (kind == "wrong"))).tolist()
    slow = sorted((-doubts[row, column], row, column) for row, column in asked)
    found = find_suspects(odds, labels, observed, kind=kind, most=7)
    assert list(zip(found.rows, found.columns, strict=True)) == [one[1:] for one in slow[:7]]
    np.testing.assert_allclose(found.probs, 1 / (1 + np.exp(-odds[found.rows, found.columns])))


def test_the_test_of_a_stretch_counts_samples():
    # Of all ways to check 6 of 12 suspects with 4 false ones, how many show at most x false?
    level, size, checks = 0.26, 12, 6  # at most 3 of 12 are allowed, so 4 are too many
    seen = [sum(place < 4 for place in drawn) for drawn in combinations(range(size), checks)]
    for false in range(4):
        chance = np.mean(np.array(seen) <= false)
        told = {place: place >= false for place in range(checks)}
        marked = [place < checks for place in range(size)]
        for confidence, promised in ((1 - chance - 1e-6, size), (1 - chance + 1e-6, 0)):
            promise = promise_suspects(marked, told, level=level, confidence=confidence)
            assert promise.count == promised, (false, confidence)


def test_a_promise_ends_where_answers_end_and_strange_input_is_refused():
    marked = marked_checks(400, per_stretch=40, seed=3)
    places = np.flatnonzero(marked)
    told = {int(place): True for place in places if place < 150}
    promise = promise_suspects(marked, told, level=0.2)
    assert promise.count == 100
    assert "first 100 suspects are false; 80 of them were checked, 0 were false" in str(promise)
    assert promise_suspects(marked, {}, level=0.2).count == 0
    doubtful = {int(place): place % 2 == 0 for place in places}
    words = "were false, too many for at most 20% with 95% confidence"
    assert words in str(promise_suspects(marked, doubtful, level=0.2))
    with pytest.raises(ValueError, match="must lie in"):
        promise_suspects(marked, told, level=0.0)
    with pytest.raises(ValueError, match="kind must be"):
        find_suspects(np.zeros((2, 2)), np.zeros((2, 2)), kind="odd")
    with pytest.raises(ValueError, match="must not be NaN"):
        find_suspects(np.full((2, 2), np.nan), np.zeros((2, 2)), kind="missing")
    none = find_suspects(np.zeros((2, 2)), np.zeros((2, 2)), kind="wrong")
    assert len(none) == 0


def test_a_row_is_not_judged_by_its_own_labels_nor_by_unknown_ones():
    held = sample(300, unknown=0.2)
    flipped = held.labels.copy()
    flipped[7] = 1 - flipped[7]
    first, second = (
        crossfit_log_odds(held.logits, labels, held.link, held.observed, folds=3)
        for labels in (held.labels, flipped)
    )
    np.testing.assert_allclose(first[7], second[7], rtol=1e-9)
    assert not np.array_equal(first, second)
    with pytest.raises(SettingsError, match="folds must lie between"):
        crossfit_log_odds(held.logits, held.labels, held.link, folds=301)
    rng = np.random.default_rng(2)
    labels = rng.random((300, 3)) < 0.4
    odds, observed = rng.normal(size=(300, 3)), rng.random((300, 3)) < 0.7
    one = crossfit_true_log_odds(odds, labels, observed)
    other = crossfit_true_log_odds(odds, labels ^ ~observed, observed)
    np.testing.assert_allclose(one.log_odds, other.log_odds)


def slow_posterior(numbers, odds, labels, observed, l2):
    """Return the negative log posterior of the notes of suspects.py, entry by entry."""
    count = labels.shape[1]
    slope, offset = numbers[:count], numbers[count : 2 * count]
    pairs = numbers[2 * count : -2].reshape(2, count, count)
    missing, wrong = 1 / (1 + np.exp(-numbers[-2:]))
    p = 1 / (1 + np.exp(-odds))
    known = np.where(observed, labels, p)
    total = ((numbers[-2:] - np.log([0.05 / 0.95, 0.001 / 0.999])) ** 2).sum() / 2
    for k in range(count):
        for row in range(len(labels)):
            z = slope[k] * odds[row, k] + offset[k]
            for j in range(count):
                if j != k:
                    z += pairs[0, j, k] * (known[row, j] - known[:, j].mean())
                    z += pairs[1, j, k] * (p[row, j] - p[:, j].mean())
                    total += l2 / 2 * (pairs[:, j, k] ** 2).sum() / len(labels)
            given = wrong + (1 - missing - wrong) / (1 + np.exp(-z))
            if observed[row, k]:
                total -= np.log(given if labels[row, k] else 1 - given)
    return total


def test_true_log_odds_have_the_largest_posterior():
    rng = np.random.default_rng(0)
    first = rng.random(30) < 0.4
    labels = np.stack([first, first ^ (rng.random(30) < 0.2)], 1).astype(float)
    odds, observed = 2 * labels - 1 + rng.normal(0, 1, (30, 2)), rng.random((30, 2)) < 0.9
    # Both folds are fitted to the same rows, so that their centred labels are those of each.
    twice = [np.concatenate([part, part]) for part in (odds, labels, observed)]
    with pytest.MonkeyPatch.context() as patch:
        halves = [np.arange(60) < 30, np.arange(60) >= 30]
        patch.setattr(suspects, "_folds", lambda rows, folds, seed: halves)
        found = crossfit_true_log_odds(*twice, folds=2, l2=1.0)
    start = np.concatenate([np.ones(2), np.zeros(10), np.log([0.05 / 0.95, 0.001 / 0.999])])
    best = minimize(slow_posterior, start, (odds, labels, observed, 1.0)).x
    known = np.where(observed, labels, 1 / (1 + np.exp(-odds)))
    p = 1 / (1 + np.exp(-odds))
    pairs = best[4:12].reshape(2, 2, 2)
    for k, j in ((0, 1), (1, 0)):
        z = best[k] * odds[:, k] + best[2 + k] + pairs[0, j, k] * (known[:, j] - known[:, j].mean())
        z += pairs[1, j, k] * (p[:, j] - p[:, j].mean())
        np.testing.assert_allclose(found.log_odds[:30, k], z, atol=0.02)
    shares = 1 / (1 + np.exp(-best[-2:]))
    np.testing.assert_allclose([found.missing, found.wrong], shares, rtol=0.02)


def table(tmp_path, split=None):
    labels = np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]])
    observed = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1]])
    images = FileImages(tmp_path, ["a.jpg", "b.jpg", "c.jpg"])
    return LabelTable.from_arrays(["x", "y", "z"], images, labels, observed, split=split)


QUESTIONS = [
    Reviewed("a.jpg", "y", "absent", 0.9, True, True, "yes"),
    Reviewed("b.jpg", "z", "present", 0.1, True, False, "no"),
    Reviewed("c.jpg", "x", "absent", 0.8, True, False, "unsure"),
    Reviewed("c.jpg", "y", "absent", 0.7, False, True, ""),
    Reviewed("b.jpg", "x", "absent", 0.6, False, False, ""),
    Reviewed("c.jpg", "z", "absent", 0.6, False, False, "no"),
]


def test_answers_change_their_entries_and_no_others(tmp_path):
    before = table(tmp_path)
    after, changes = repair(before, QUESTIONS)
    labels, observed = after.targets()
    assert labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert observed.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    moved = [f"{one.before} {one.after}" for one in changes]
    assert moved == ["absent present", "present absent", "absent unknown"]
    accepted, more = repair(before, QUESTIONS, accept_promised=True)
    assert accepted.targets()[0].tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert more[-1].because == "promised"
    again, nothing = repair(after, QUESTIONS)
    assert again.targets()[0].tolist() == labels.tolist()
    assert nothing == []
    assert [one.confirmed for one in QUESTIONS] == [True, True, False, None, None, False]
    held = table(tmp_path, split=["train", "test", "train"])
    assert len(repair(held, QUESTIONS, test_too=True)[1]) == 3
    for questions, words in (
        (QUESTIONS, "'b.jpg' is in the test split"),
        ([Reviewed("d.jpg", "x", "absent", 0.5, answer="yes")], "no photo 'd.jpg'"),
        ([Reviewed("a.jpg", "dog", "absent", 0.5, answer="yes")], "unknown label 'dog'"),
    ):
        with pytest.raises(DataError, match=words):
            repair(held, questions)


def test_review_files_and_logs_are_read_as_written(tmp_path):
    strange = [*QUESTIONS, Reviewed("=1+1.jpg", "-a, b", "absent", 0.25)]
    write_review(tmp_path / "review.csv", strange)
    assert read_review(tmp_path / "review.csv") == strange
    _, changes = repair(table(tmp_path), QUESTIONS)
    for _ in range(2):
        log_changes(tmp_path / "log.jsonl", changes)
    lines = AnswerLog(tmp_path / "log.jsonl").lines()
    said = [f"{one.photo} {one.answer} {one.why}" for one in lines]
    assert said == ["a.jpg yes review", "b.jpg no review", "c.jpg unsure review"] * 2
    old = (tmp_path / "review.csv").read_text()
    (tmp_path / "review.csv").write_text(old.replace("unsure", "unknown"))  # the word of 0.2
    assert read_review(tmp_path / "review.csv") == strange


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yes,yes,yes", "yes,yes,maybe", "line 2: an answer is yes, no, unsure or empty"),
        ("absent", "missing", "line 2: given is present, absent or unknown, got 'missing'"),
        ("\n2,", "\n1,", "line 3: rank 1 is there twice"),
        ("0.9", "x", "line 2: rank and probability must be numbers"),
        ("label,", "tag,", "no column 'label'"),
    ],
)
def test_broken_review_files_are_refused(tmp_path, old, new, message):
    path = tmp_path / "review.csv"
    write_review(path, QUESTIONS)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_review(path)


def test_the_page_escapes_names_and_can_be_blind(tmp_path):
    path, questions = tmp_path / "page.html", [Reviewed("<a>.jpg", "<b>", "absent", 0.875, True)]
    write_suspects_page(path, questions)
    assert "<b>" not in path.read_text()
    assert "&lt;b&gt;" in path.read_text()
    assert "87.5%" in path.read_text()
    write_suspects_page(path, questions, blind=True)
    assert "87.5%" not in path.read_text()


def test_from_scores_to_a_repaired_table(tmp_path):
    # Sharp scores: 10 % of the present labels are hidden, and found again.
    held = sample(400)
    rng = np.random.default_rng(0)
    truth = np.asarray(held.logits > 0)
    given = truth & (rng.random(truth.shape) > 0.1)
    names = [name.replace("<b>", "").replace("</b>", "") for name in NAMES]
    arrays = {"scores": np.asarray(held.logits) * 4, "labels": given.astype(float), "names": names}
    np.savez(tmp_path / "scores.npz", ids=[f"{row}.jpg" for row in range(400)], **arrays)
    review, page = tmp_path / "review.csv", tmp_path / "page.html"
    call = ["data", "review", tmp_path / "scores.npz", "--scores", "logits", "-o", review]
    call += ["--top", 50, "--checks", 30]
    output = must_run(*call, "--html", page).output
    assert "no guarantee yet: answer the questions marked `check` (30 among the first 100" in output
    assert "No promise yet" in page.read_text()
    unanswered = must_run(*call, "--answers", review).output
    assert "no guarantee yet: answer the questions" in unanswered
    again = f"--answers {review} -o {review.with_name('review-2.csv')}"  # not over itself
    assert unanswered.splitlines()[-1].endswith(again)
    questions = read_review(review)
    place = {f"{row}.jpg": row for row in range(400)}
    column = {name: number for number, name in enumerate(names)}

    def answer(one):
        return "yes" if truth[place[one.photo], column[one.label]] else "no"

    reviewed = tmp_path / "reviewed.csv"
    write_review(reviewed, [replace(o, answer=answer(o)) if o.check else o for o in questions])
    output = must_run(*call, "--answers", reviewed).output
    assert "at most 20% of the first 50 suspects are false" in output.replace("\n", " ")
    promised = [one for one in read_review(review) if one.promised]
    assert np.mean([answer(one) == "no" for one in promised]) <= 0.2
    with pytest.raises(DataError, match="reviews another list"):
        answered_questions(questions[1:], reviewed)

    images = FileImages(tmp_path, [f"{row}.jpg" for row in range(400)])
    for name in images.ids:
        (tmp_path / name).touch()
    export(LabelTable.from_arrays(names, images, given), tmp_path / "labels.csv")
    fixed, call = (
        tmp_path / "fixed.csv",
        ["data", "review", tmp_path / "labels.csv", "--apply", review],
    )
    output = must_run(*call, "-o", fixed, "--accept-guaranteed").output
    assert re.search(r"\d+ answers, \d+ labels changed \(\d+ absent to present\)", output)
    fixed_table = load(fixed)
    columns = [fixed_table.space.column(name) for name in names]
    rows = np.argsort([int(name[:-4]) for name in fixed_table.ids])
    after = fixed_table.targets()[0].astype(bool)[rows][:, columns]
    assert (after != truth).sum() < (given != truth).sum() / 2
    assert (tmp_path / "fixed.answers.jsonl").exists()


def test_features_are_refitted_over_folds(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 8)).astype(np.float32)
    truth = features[:, :2] > 0.5
    given = truth & (rng.random(truth.shape) > 0.2)
    ids = [f"{row}.jpg" for row in range(300)]
    arrays = {"features": features, "labels": given.astype(np.uint8), "names": ["x", "y"]}
    np.savez(tmp_path / "features.npz", ids=ids, **arrays)
    review = tmp_path / "review.csv"
    call = ["data", "review", tmp_path / "features.npz", "-o", review]
    must_run(*call, "--top", 20)
    right = [truth[int(one.photo[:-4]), "xy".index(one.label)] for one in read_review(review)]
    assert np.mean(right) > 0.8
    assert "--scores does not apply" in refused(*call, "--scores", "logits")
    assert "belongs to the page" in refused(*call, "--blind")


def test_the_page_of_a_run_shows_its_photos(tmp_path):
    folder = save_model(tmp_path / "run")
    ids = [str(row) for row in range(400)]
    for name in ids:
        Image.new("RGB", (8, 8), "red").save(tmp_path / name, "PNG")
    (tmp_path / "photos.csv").write_text("path,labels\n" + "".join(f"{one},dog\n" for one in ids))
    (folder / "settings.yaml").write_text(f"data: {tmp_path / 'photos.csv'}\n")
    call = ["data", "review", folder, "--split", "test", "-o", tmp_path / "r.csv"]
    must_run(*call, "--html", tmp_path / "page.html")
    assert "<img" in (tmp_path / "page.html").read_text()

"""Suspects, reviews, repairs. Oracles: slow loops, enumeration, scikit-learn, files read back."""

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_scores import NAMES, sample
from scipy.optimize import minimize
from search_setup import save_model
from typed import must_run, refused

from labelwise.answers import suspects
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
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.sources import FileImages
from labelwise.report.contact_sheet import write_suspects_page
from labelwise.scores.unlabelled_pool import answered_questions
from labelwise.tables import LabelTable, load
from labelwise.tables.export import export


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

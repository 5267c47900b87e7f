"""Reviews and repairs. Oracle: what the file says, entry by entry, and a journey by commands."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sample_scores import NAMES, sample
from search_setup import save_model
from typed import must_run, refused

from labelwise.answers.log import AnswerLog
from labelwise.answers.suspects import Reviewed, log_changes, read_review, repair, write_review
from labelwise.data import LabelTable, load
from labelwise.data.export import export
from labelwise.errors import DataError
from labelwise.pictures.sources import FileImages
from labelwise.report.contact_sheet import write_suspects_page
from labelwise.scores.unlabelled_pool import answered_questions


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
    assert [(one.before, one.after) for one in changes] == [
        ("absent", "present"),
        ("present", "absent"),
        ("absent", "unknown"),
    ]
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
    assert [(one.photo, one.answer) for one in lines] == [
        *[("a.jpg", "yes"), ("b.jpg", "no"), ("c.jpg", "unsure")] * 2
    ]
    assert {one.why for one in lines} == {"review"}
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
    call = ["data", "suspects", tmp_path / "scores.npz", "--scores", "logits", "-o", review]
    call += ["--most", 50, "--checks", 30]
    output = must_run(*call, "--page", page).output
    assert "no guarantee yet: answer the questions marked `check` (30 among the first 100" in output
    assert "No promise yet" in page.read_text()
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
    fixed, call = tmp_path / "fixed.csv", ["data", "repair", tmp_path / "labels.csv", review]
    output = must_run(*call, "-o", fixed, "--accept-promised").output
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
    call = ["data", "suspects", tmp_path / "features.npz", "-o", review]
    must_run(*call, "--most", 20)
    column = {"x": 0, "y": 1}
    right = [truth[int(o.photo[:-4]), column[o.label]] for o in read_review(review)]
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
    page = tmp_path / "page.html"
    call = ["data", "review", folder, "--split", "test", "-o", tmp_path / "r.csv"]
    must_run(*call, "--html", page)
    assert "<img" in page.read_text()

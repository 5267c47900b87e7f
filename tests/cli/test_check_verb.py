"""``labelwise audit`` of lists and past guarantees. Oracles: the session below it, its files."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model
from typed import run

from labelwise.decide import Promise
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.models import ModelSpec
from labelwise.photos.lists import keep_receipt, receipts_of, rows_in_order
from labelwise.predictions import Predictions


def labelwise(*arguments, said=None):
    result = run(*arguments, input=said, catch_exceptions=False)
    return result.output, result.exit_code


@pytest.fixture
def made(tmp_path):
    """A function that makes an index of photos, by a model with other held-out answers or none."""

    def index_of(photos, answers=lambda held_out: held_out.labels):
        model = save_model(tmp_path / "run")
        table = model / "predictions" / "test.parquet"
        held_out = Predictions.load(table)
        table.unlink()
        if answers is not None:
            replace(held_out, labels=answers(held_out)).save(table)
        logits = np.random.default_rng(1).normal(-1, 2, (photos, 4))
        return made_index(tmp_path / "photos.index", model, logits)

    return index_of


def check(index, *options, said=None):
    call = ("audit", index, "dog", "--top", "10", "--wrong-at-most", "0.3")
    return labelwise(*call, *options, said=said)[0]


def test_questions_in_the_terminal_stop_and_go_on(made, tmp_path):
    index = made(10)
    output = check(index, said="y\nwhat\nundo\ny\ny\nstop\n")
    for words in (
        *("does each photo match dog? The list has 10 photos", "'what' is not an answer", "["),
        *("1 checked, about", "2 checked, 0 wrong or unsure; about"),
    ):
        assert words in output
    output = check(index, "-o", tmp_path / "list.txt", said="y\n" * 12)
    known = "at least 70 % of these 10 photos match dog: known, not estimated, 7 photos checked"
    assert known in output
    assert len((tmp_path / "list.txt").read_text().splitlines()) == 10


def test_the_end_of_the_input_keeps_every_answer(made):
    index = made(10)
    assert "3 checked, 3 wrong or unsure" in check(index, said="n\nd\nn\n")
    assert [one.state for one in open_index(index).store.corrections("dog")] == 2 * ["absent"]


def test_answers_of_a_table_and_what_is_missing_from_it(made, tmp_path):
    index, table = made(10), tmp_path / "answers.csv"
    paths = [own[0] for own in open_index(index).store.paths_of(range(10)).values()]

    def checked(*rows, header=("path", "answer")):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return check(index, "--answers", table)

    assert "has no answer for" in checked((paths[0], "yes"))
    assert "photos match dog: known, not estimated" in checked(*((path, "yes") for path in paths))
    with pytest.raises(LabelwiseError, match="line 2: the answer must be yes, no or unsure"):
        checked((paths[0], "perhaps"))
    with pytest.raises(LabelwiseError, match="there is no column 'path'"):
        checked(header=("photo", "said"))


def only_the_highest(held_out):
    return (held_out.logits == held_out.logits.max(0)).astype(np.float32)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (None, "No estimate: the model has no test photos; audit a list instead."),
        (only_the_highest, "; audit a list instead."),
    ],
)
def test_too_little_evidence_about_a_single_photo_estimates_nothing(made, answers, why):
    """No list is shown; one positive above all others cuts none."""
    index = made(1, answers)
    said, status = labelwise("search", index, "dog", "--wrong-about", "0.1")
    assert why in " ".join(said.split())
    assert ("0.jpg" in said, status) == (False, 1)
    assert receipts_of(open_index(index)) == []


def test_a_single_photo_that_nobody_can_tell_is_not_promised(made):
    folder = made(1, None)
    said, _ = labelwise("audit", folder, "dog", "--top", "1", said="d\n")
    assert "every answer was unsure, so nothing can be guaranteed" in said
    index = open_index(folder)
    assert index.store.corrections("dog") == receipts_of(index) == []


@pytest.fixture
def promised(made):
    """An index with the receipt of a list that version 0.2 promised on average."""
    folder = made(600)
    said = ("list", 0.5, None, 400, 50, 0.95, "held-out photos", "2026-01-01", "conformal")
    promise = Promise(*said, kind="expected", listed=120)
    keep_receipt(open_index(folder), "dog", promise, np.arange(120))
    return folder


def test_a_list_of_version_0_2_is_verified_from_its_receipt_to_the_exit_status(promised, tmp_path):
    """And 40 photos of it, wrong all of them, break nothing: one list of many may hold more."""
    output, status = labelwise("audit", promised)
    assert (status, "1 cannot be decided yet" in output) == (0, True)
    output, status = labelwise("audit", promised, "--receipts")
    (receipt,) = receipts_of(open_index(promised))
    assert (json.loads(output), status) == (json.loads(json.dumps(receipt.spec())), 0)
    table = tmp_path / "answers.csv"
    for word, told in (
        ("yes", "receipt 1, dog (expected): cannot tell: 0 of 40 photos drawn from it are wrong"),
        ("no", "40 of 40 photos drawn from it are wrong"),
    ):
        output, status = labelwise("audit", promised, "--ask", 40, "-o", table, "--overwrite")
        assert (status, "40 photos to answer" in output) == (0, True)
        with table.open(newline="") as file:
            rows = [{**row, "answer": word} for row in csv.DictReader(file)]
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *(row.values() for row in rows)])
        output, status = labelwise("audit", promised, "--answers", table)
        assert (told in output, status) == (True, 0)


def test_a_checked_list_that_turns_out_wrong_is_broken(made):
    folder = made(600)
    labelwise("audit", folder, "dog", "--top", 40, "--wrong-at-most", 0.3, said="y\n" * 60)
    assert labelwise("audit", folder, "--strict")[1] == 0
    index = open_index(folder)
    (receipt,) = receipts_of(index)
    for row in rows_in_order(index, receipt).tolist():
        index.correct(row, {"dog": "absent"})
    output, status = labelwise("audit", folder, "--strict", "--json")
    (found,) = json.loads(output)["lists"]
    assert (found["kind"], found["verdict"], status) == ("checked", "broken", 1)


def test_the_promises_of_a_run_are_held_to_its_test_photos(tmp_path):
    run = save_model(tmp_path / "run")
    with pytest.raises(DataError, match="has no guarantee to check"):
        labelwise("audit", run)
    spec = ModelSpec.load(run / "model.json")
    for level, options in ((0.05, ()), (0.99, ("--json",))):
        said = Promise("f", level, 0.95, 400, 400, level, "photos", "2026-01-01", "betting")
        spec.model_copy(update={"promises": (said.spec(),)}).save(run / "model.json")
        output, status = labelwise("audit", run, *options)
        if options:
            assert ([one["verdict"] for one in json.loads(output)], status) == (["broken"], 1)
        else:
            assert output.startswith("kept: ")
            assert ("kept in 1 of 1" in output, status) == (True, 0)
    (run / "predictions" / "test.parquet").unlink()
    with pytest.raises(DataError, match="has no held-out photos"):
        labelwise("audit", run)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("INDEX --ask 3", "give both --ask N and --out FILE"),
        ("INDEX --receipts --answers x.csv", "do different things"),
        ("INDEX --receipts --json", "about verdicts"),
        ("RUN --strict", "--strict does not apply: .* is not an index"),
        ("INDEX dog --top 10 --at-least 0.5", "--at-least and --top both end the list"),
        ("INDEX dog --top 10 --answers-at-most 20", "--answers-at-most sets the length"),
        ("INDEX dog --at-least 5", "--at-least must be a probability"),
    ],
)
def test_options_that_do_not_fit_are_refused(made, tmp_path, words, sentence):
    index = made(1)
    places = {"INDEX": index, "RUN": tmp_path / "run"}
    with pytest.raises(SettingsError, match=sentence):
        labelwise("audit", *(places.get(word, word) for word in words.split()))

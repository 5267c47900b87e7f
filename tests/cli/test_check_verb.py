"""Oracles: the session below the command (tested on its own), and the files that are written."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from open_indexes import open_index
from search_setup import picture, save_model
from typed import run

from labelwise.errors import LabelwiseError
from labelwise.photos.lists import receipts_of
from labelwise.predictions import Predictions


def labelwise(*arguments, said=None):
    return run(*arguments, input=said, catch_exceptions=False).output


@pytest.fixture
def folder(tmp_path):
    model = save_model(tmp_path / "run")
    for number in range(10):
        picture(tmp_path / "photos" / f"{number}.png", number)
    labelwise("index", tmp_path / "photos", "--model", model, "-o", tmp_path / "photos.index")
    return tmp_path


def check(folder, *options, said=None):
    call = ("audit", folder / "photos.index", "dog", "--top", "10", "--wrong-at-most", "0.3")
    return labelwise(*call, *options, said=said)


def test_questions_in_the_terminal_stop_and_go_on(folder):
    output = check(folder, said="y\nwhat\nundo\ny\ny\nstop\n")
    assert "does each photo match dog? The list has 10 photos" in output
    assert "'what' is not an answer" in output
    assert "1 checked, about" in output
    assert "[" in output
    assert "2 checked, 0 wrong or unsure; about" in output
    output = check(folder, "-o", folder / "list.txt", said="y\n" * 12)
    assert (
        "at least 70 % of these 10 photos match dog: known, not estimated, 7 photos checked"
        in output
    )
    assert len((folder / "list.txt").read_text().splitlines()) == 10


def test_the_end_of_the_input_keeps_every_answer(folder):
    assert "3 checked, 3 wrong or unsure" in check(folder, said="n\nu\nn\n")
    index = open_index(folder / "photos.index")
    assert [one.state for one in index.store.corrections("dog")] == ["absent", "absent"]


def test_answers_of_a_table_and_what_is_missing_from_it(folder):
    paths = sorted((folder / "photos").iterdir())
    table = folder / "answers.csv"

    def write(rows):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([("path", "answer"), *rows])

    write([(path, "yes") for path in paths[:1]])
    output = check(folder, "--answers", table)
    assert "has no answer for" in output
    write([(path, "yes") for path in paths])
    output = check(folder, "--answers", table)
    assert "photos match dog: known, not estimated" in output
    write([(paths[0], "perhaps")])
    with pytest.raises(LabelwiseError, match="line 2: the answer must be yes, no or unsure"):
        check(folder, "--answers", table)
    table.write_text("photo,said\n")
    with pytest.raises(LabelwiseError, match="must have the columns path and answer"):
        check(folder, "--answers", table)


def test_options_that_contradict_are_refused(folder):
    with pytest.raises(LabelwiseError, match="--at-least and --top both end the list"):
        check(folder, "--at-least", "0.5")
    with pytest.raises(LabelwiseError, match="--answers-at-most sets the length of the list"):
        check(folder, "--answers-at-most", "20")
    with pytest.raises(LabelwiseError, match="--at-least must be a probability"):
        labelwise("audit", folder / "photos.index", "dog", "--at-least", "5")


@pytest.fixture
def one_photo(tmp_path):
    """A function that indexes a single photo by a model with other held-out answers, or none."""

    def made(answers):
        model = save_model(tmp_path / "run")
        table = model / "predictions" / "test.parquet"
        if answers is None:
            table.unlink()
        else:
            held_out = Predictions.load(table)
            replace(held_out, labels=answers(held_out.logits)).save(table)
        picture(tmp_path / "photos" / "0.png", 0)
        labelwise("index", tmp_path / "photos", "--model", model, "-o", tmp_path / "photos.index")
        return tmp_path

    return made


def only_the_highest(logits):
    return (logits == logits.max(0)).astype(np.float32)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (None, "No estimate: the model has no test photos; audit a list instead."),
        (only_the_highest, "; audit a list instead."),
    ],
)
def test_too_little_evidence_about_a_single_photo_estimates_nothing(one_photo, answers, why):
    """The photo is shown all the same; one positive above all others cuts no list."""
    index = one_photo(answers) / "photos.index"
    said = labelwise("search", index, "dog", "--wrong-at-most", "0.1")
    assert why in " ".join(said.split())
    assert "0.png" in said
    assert receipts_of(open_index(index)) == []


def test_a_single_photo_that_nobody_can_tell_is_not_promised(one_photo):
    folder = one_photo(None)
    said = labelwise("audit", folder / "photos.index", "dog", "--top", "1", said="u\n")
    assert "every answer was unsure, so nothing can be guaranteed" in said
    index = open_index(folder / "photos.index")
    assert index.store.corrections("dog") == []
    assert receipts_of(index) == []

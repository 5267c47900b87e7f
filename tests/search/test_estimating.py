"""Estimates of an index, against the truth of a library whose labels are known, and the command."""

import csv
import json

import numpy as np
import pytest
from made_index import made_index
from scipy.stats import binom

from labelwise.errors import DataError
from labelwise.links import Sigmoid
from labelwise.retrieval import Query
from labelwise.search import Index
from labelwise.search.estimating import draw_sample, estimate_from_answers, read_answers

DOG = Query.parse("dog")


@pytest.fixture
def library(tmp_path, model):
    """An index of 600 photos in two folders, where dog is more frequent than the model says."""
    random = np.random.default_rng(0)
    logits = random.normal(-1, 2, (600, 4))
    truth = random.random(600) < Sigmoid()(logits[:, 2] + 1.5)
    folders = ["north" if row % 3 else "south" for row in range(600)]
    return made_index(tmp_path / "index", model, logits, folders), truth


def answered(index, sample, truth):
    rows = index.store.rows_by_hash(map(bytes.fromhex, sample.photos)).values()
    paths = index.store.paths_of(rows)
    return {paths[row][0]: float(truth[row]) for row in rows}


@pytest.mark.parametrize("answers", [40, 150])
def test_estimates_hold_the_truth_though_the_model_is_wrong(library, answers):
    folder, truth = library
    held, draws = 0, 40
    with Index(folder) as index:
        for seed in range(draws):
            (folder / "samples.jsonl").unlink(missing_ok=True)  # so that others are drawn
            sample = draw_sample(index, DOG, answers, seed=seed)
            found = estimate_from_answers(index, DOG, answered(index, sample, truth)).total
            held += found.low <= truth.sum() <= found.high
    assert held >= binom.ppf(0.001, draws, 0.95)
    assert found.answered == answers


def test_the_same_question_draws_the_same_photos(library):
    folder, _ = library
    with Index(folder) as index:
        first = draw_sample(index, DOG, 30)
        assert draw_sample(index, DOG, 30) == first
        assert len(set(first.photos)) == 30
        other = draw_sample(index, Query.parse("cat"), 30)
        assert set(other.photos) != set(first.photos)
        lines = (folder / "samples.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
    assert [one["query"] for one in records] == ["dog", "cat"]
    assert records[0]["seed"] == first.seed


def test_folders_are_drawn_from_and_estimated_apart(library):
    folder, truth = library
    south = np.arange(600) % 3 == 0
    with Index(folder) as index:
        sample = draw_sample(index, DOG, 120, by_folder=True, seed=1)
        assert [len(photos) for photos in sample.drawn.values()] == [120, 120]
        told = answered(index, sample, truth)
        found = estimate_from_answers(index, DOG, told, by_folder=True)
    north_found, south_found = found.groups
    assert (north_found.photos, south_found.photos) == (400, 200)
    assert south_found.low <= truth[south].sum() <= south_found.high
    assert north_found.low <= truth[~south].sum() <= north_found.high
    assert found.total.count == pytest.approx(truth.sum(), abs=60)
    assert found.newer == 0


def test_answers_must_be_of_the_photos_that_were_drawn(library):
    folder, truth = library
    with Index(folder) as index:
        sample = draw_sample(index, DOG, 20)
        told = answered(index, sample, truth)
        some = dict(list(told.items())[:15])
        with pytest.raises(DataError, match="5 of the 20 photos drawn for dog have no answer"):
            estimate_from_answers(index, DOG, some)
        rows = set(index.store.rows_by_hash(map(bytes.fromhex, sample.photos)).values())
        (extra,) = index.store.paths_of([min(set(range(600)) - rows)]).values()
        with pytest.raises(DataError, match="1 answers are of photos that were not drawn"):
            estimate_from_answers(index, DOG, told | {extra[0]: 1.0})
        with pytest.raises(DataError, match="were not drawn for cat"):
            estimate_from_answers(index, Query.parse("cat"), told)


def test_photos_that_are_gone_leave_library_and_sample(library):
    folder, truth = library
    with Index(folder) as index:
        sample = draw_sample(index, DOG, 200, seed=1)
        told = answered(index, sample, truth)
        with index.store.transaction():
            index.store.mark_missing(1, "south")
        left = {path: value for path, value in told.items() if "north" in path}
        found = estimate_from_answers(index, DOG, left).total
    north = np.arange(600) % 3 != 0
    assert found.photos == 400
    assert found.answered == len(left)
    assert found.low <= truth[north].sum() <= found.high


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("photo,answer\na.jpg,yes\n", "must have the columns path and answer"),
        ("path,answer\na.jpg,maybe\n", "line 2: an answer must be yes, no or unsure, got 'maybe'"),
        ("path,answer\na.jpg,\n", "got ''"),
        ("path,answer\na.jpg,yes\na.jpg,no\n", "line 3: a.jpg has two answers"),
    ],
)
def test_tables_that_do_not_answer_are_refused(tmp_path, text, words):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_answers(path)


def test_the_command_draws_reads_and_writes(library, tmp_path, capsys, monkeypatch):
    from labelwise.cli.app import main

    folder, truth = library

    def run(*words, status=0):
        monkeypatch.setattr("sys.argv", ["labelwise", "estimate", str(folder), "dog", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert (left.value.code or 0) == status
        return capsys.readouterr()

    said = run().out
    assert "if these photos are like the held-out ones" in said
    questions, counts = tmp_path / "questions.csv", tmp_path / "counts.csv"
    assert "120 photos drawn at random" in run("--answers", "120", "-o", str(questions)).out
    with questions.open(newline="") as file:
        lines = list(csv.DictReader(file))
    with questions.open("w", newline="") as file:
        table = csv.DictWriter(file, lines[0])
        table.writeheader()
        for line in lines:
            row = int(line["path"].rpartition("/")[2].removesuffix(".jpg"))
            table.writerow(line | {"answer": "yes" if truth[row] else "no"})
    said = run("--answers-from", str(questions), "-o", str(counts)).out
    with counts.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert found["method"] == "prediction-powered"
    low, high = float(found["low"]), float(found["high"])
    assert low - (high - low) < truth.sum() < high + (high - low)  # the draw is not seeded
    assert f"about {float(found['count']):,.0f} of 600 photos match dog" in said
    assert "name it with -o" in run("--answers", "5", status=1).err
    assert "draw some with --answers" in run("--by", "folder", status=1).err

"""Answers of 0.2, in SQLite and samples.jsonl. Oracle: what was written there, in its words."""

import json

import numpy as np
import pytest
from made_index import made_index

from labelwise.errors import CheckpointError
from labelwise.photos import Index
from labelwise.photos.database import sum_of
from labelwise.photos.lists import Said, answers_of, place_of
from labelwise.photos.prevalence import SampleAnswers, draw_sample
from labelwise.retrieval import Query

SAID = [(3, "dog", "absent"), (4, "dog", "present"), (3, "dog", "present"), (4, "cat", "unknown"),
        (5, "cat", "present"), (5, "cat", "withdrawn")]  # fmt: skip
LISTS = """CREATE TABLE checked_lists (id INTEGER PRIMARY KEY, query TEXT NOT NULL,
    wrong_at_most REAL NOT NULL, listed INTEGER NOT NULL, cut REAL NOT NULL, seed INTEGER NOT NULL,
    at TEXT NOT NULL)"""
CHECKS = """CREATE TABLE check_answers (id INTEGER PRIMARY KEY, query TEXT NOT NULL,
    row INTEGER NOT NULL, answer TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL)"""


@pytest.fixture
def old(tmp_path, model):
    """An index with answers as 0.2 left them."""
    folder = made_index(tmp_path / "index", model, np.zeros((20, 4)), ["a"] * 20)
    with Index(folder) as index, index.store.transaction() as database:
        for row, label, state in SAID:
            values = (row, label, state, "ada", "2026-01-01", "audit")
            database.execute(
                "INSERT INTO corrections (row, label, state, who, at, source, sum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, sum_of(*values)),
            )
        database.execute(LISTS)
        database.execute("INSERT INTO checked_lists VALUES (1, 'dog', 0.1, 9, 0.25, 77, 't')")
        database.execute("ALTER TABLE checked_lists ADD distinct_photos INTEGER DEFAULT 0")
        database.execute(CHECKS)
        for row, answer in ((1, "yes"), (2, "no"), (2, "undone"), (4, "unsure")):
            values = ("dog", row, answer, "ben", "t")
            database.execute(
                "INSERT INTO check_answers (query, row, answer, who, at) VALUES (?, ?, ?, ?, ?)",
                values,
            )
        photos = [one.hash.hex() for one in index.store.contents_of([6, 7]).values()]
    drawn = {"query": "dog", "by": "", "table": "", "answers": 2, "rows": 20, "seed": 5, "at": "t"}
    noted = {"query": "dog", "seed": 5, "at": "t", "who": None}
    lines = [
        {"kind": "sample", **drawn, "drawn": {"": photos}, "distinct": False},
        {"kind": "answers", **noted, "answers": {photos[0]: "no", photos[1]: "yes"}},
        {"kind": "answers", **noted, "answers": {photos[1]: None}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "samples.jsonl").write_text(text)
    return folder


def test_they_are_read_and_converted_by_the_first_answer(old):
    def looked(index):
        dog = Query.parse("dog")
        said = {(one.row, one.label, one.state) for one in index.store.corrections()}
        sample = draw_sample(index, dog, 2)
        asked = SampleAnswers(index, dog, sample).answers
        place = place_of(index.store, "dog", (0.1, 9, 0.25, False))
        return said, answers_of(index.store, "dog"), sample.seed, asked, place

    expected = (
        {(3, "dog", "present"), (4, "dog", "present"), (4, "cat", "unknown")},
        [Said(1, "yes", "ben"), Said(4, "unsure", "ben")],
        5,
        {6: "no"},
        0,
    )
    before = (old / "samples.jsonl").read_bytes()
    with Index(old) as index:
        assert looked(index) == expected
        assert not (old / "answers.jsonl").exists()  # whoever looks writes nothing
        index.correct(8, {"cat": "absent"}, who="eve")
        said, *others = looked(index)
    assert (said, *others) == (expected[0] | {(8, "cat", "absent")}, *expected[1:])
    with Index(old) as index:
        assert looked(index) == (said, *others)
        index.correct(8, {"cat": "withdrawn"}, who="eve")
        assert looked(index) == expected
    assert (old / "samples.jsonl").read_bytes() == before


def test_a_damaged_correction_is_named_and_nothing_is_converted(old):
    with Index(old) as index:
        index.store.database.execute("UPDATE corrections SET state = 'absent' WHERE id = 2")
        with pytest.raises(CheckpointError, match=r"photos\.sqlite is damaged: a row of its corr"):
            index.correct(8, {"cat": "absent"})
    assert not (old / "answers.jsonl").exists() or not (old / "answers.jsonl").stat().st_size

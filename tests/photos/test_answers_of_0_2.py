"""Answers of 0.2, in SQLite and samples.jsonl, and flipped bits in photos.sqlite.

Oracles: what was written there, in its words; the answers as they were.
"""

import json
import random
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from made_index import made_index
from search_setup import picture

from labelwise.base.progress import Silent
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.photos import Asked, Index
from labelwise.photos.database import sum_of
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.lists import AnsweredList, place_of
from labelwise.photos.prevalence import SampleAnswers, draw_sample
from labelwise.photos.tagging import KeptFile, WrittenFiles
from labelwise.queries import Query

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
        names = "corrections (row, label, state, who, at, source, sum)"
        for said in SAID:
            values = (*said, "ada", "2026-01-01", "audit")
            line = (*values, sum_of(*values))
            database.execute(f"INSERT INTO {names} VALUES (?, ?, ?, ?, ?, ?, ?)", line)
        database.execute(LISTS)
        database.execute("INSERT INTO checked_lists VALUES (1, 'dog', 0.1, 9, 0.25, 77, 't')")
        database.execute("ALTER TABLE checked_lists ADD distinct_photos INTEGER DEFAULT 0")
        database.execute(CHECKS)
        names = "check_answers (query, row, answer, who, at)"
        for said in ((1, "yes"), (2, "no"), (2, "undone"), (4, "unsure")):
            database.execute(f"INSERT INTO {names} VALUES ('dog', ?, ?, 'ben', 't')", said)
        photos = [one.hash.hex() for one in index.store.contents_of([6, 7]).values()]
    drawn = {"query": "dog", "by": "", "table": "", "answers": 2, "rows": 20, "seed": 5, "at": "t"}
    noted = {"query": "dog", "seed": 5, "at": "t", "who": None}
    lines = [
        {"kind": "sample", **drawn, "drawn": {"": photos}, "distinct": False},
        {"kind": "answers", **noted, "answers": {photos[0]: "no", photos[1]: "yes"}},
        {"kind": "answers", **noted, "answers": {photos[1]: None}},
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_they_are_read_and_converted_by_the_first_answer(old):
    def looked(index):
        dog = Query.parse("dog")
        said = {(one.row, one.label, one.state) for one in index.store.corrections()}
        sample = draw_sample(index, dog, 2)
        asked = SampleAnswers(index, dog, sample).answers
        place = place_of(index.store, "dog", (0.1, 9, 0.25, False))
        return said, AnsweredList(index.store, "dog").by_row, sample.seed, asked, place

    corrected = {(3, "dog", "present"), (4, "dog", "present"), (4, "cat", "unknown")}
    checked = {1: {"ben": ("yes",)}, 4: {"ben": ("unsure",)}}
    expected = (corrected, checked, 5, {6: "no"}, 0)
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


PHOTOS, PAGE = 60, 4096
FOLDERS = [f"holiday-{row % 3}" for row in range(PHOTOS)]


@pytest.fixture(scope="module")
def damaged(model, tmp_path_factory):
    """An index with dates, a dead photo, a correction and a side-car that was written."""
    home = tmp_path_factory.mktemp("damaged")
    logits = np.random.default_rng(3).normal(-1, 2, (PHOTOS, 4))
    folder = made_index(home / "photos.index", model, logits, FOLDERS)
    with Index(folder) as index:
        with index.store.transaction() as database:
            rows = database.read("contents")
            dates = [f"2023-06-0{row % 10}" for row, *_ in rows]
            rows = [(*row[:5], date, row[6]) for row, date in zip(rows, dates, strict=True)]
            database.put("contents", rows)
            index.store.mark_missing(1, FOLDERS[7], ["7.jpg"])
        index.correct(3, {"dog": "absent"}, who="ann")
        for name in ("/a.xmp", "/b.xmp"):
            WrittenFiles(index.store, "sidecars").put(name, KeptFile(b"before", b"after", {}))
    found_in(folder)  # what searches keep
    with closing(sqlite3.connect(folder / "photos.sqlite")) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    return folder


def found_in(folder):
    """Return what searches of an index find, with the paths."""
    filters = (PhotoFilter(), PhotoFilter(folder="holiday-1"), PhotoFilter(since="2023-06-05"))
    with Index(folder) as index:
        found = [Asked(index, Query.parse("dog"), one).top(PHOTOS) for one in filters]
        kept = WrittenFiles(index.store, "sidecars").paths()  # as undoing asks
        return [(one.hits, one.count, one.photos) for one in found], kept


def flipped(folder, place):
    """Return the answers once a bit was flipped, or why there are none; the file is as before."""
    path = folder / "photos.sqlite"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    try:
        return found_in(folder)
    except LabelwiseError as error:
        return str(error)
    finally:
        path.write_bytes(whole)
        for log in folder.glob("photos.sqlite-*"):
            log.unlink()


def test_a_flipped_bit_of_any_page_never_changes_an_answer_silently(damaged):
    expected, draw = found_in(damaged), random.Random(0)
    content = (damaged / "photos.sqlite").read_bytes()
    used = [at for at, byte in enumerate(content) if byte]
    by_page = [[at for at in used if at // PAGE == n] for n in range(len(content) // PAGE)]
    schema = [at for at in range(100, 2 * PAGE) if content.startswith(b"CREATE ", at)]
    names = [at for at in used if content.startswith(b".jpg", at)]
    places = [draw.choice(at or [n * PAGE]) for n, at in enumerate(by_page)]
    places += [draw.choice(schema) + draw.randrange(60) for _ in range(6)]
    places += [draw.choice(names) - 1 for _ in range(4)]
    told = 0
    for place in places:
        found = flipped(damaged, 8 * place + draw.randrange(8))
        if isinstance(found, str):
            assert "photos.sqlite" in found or "index" in found
            told += 1
        else:
            assert found == expected, f"byte {place}"
    assert told > len(places) // 5


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("a row of its roots", "UPDATE roots SET raw = x'2f62'"),
        ("a row of its contents", "UPDATE contents SET taken = '1999-01-01'"),
        ("a row of its contents", "UPDATE contents SET alive = 1"),
        ("a row of its files", "UPDATE files SET name = 'other.jpg' WHERE row = 5"),
        ("a row of its files", "UPDATE files SET row = 5 WHERE row = 6"),
        ("a row of its sidecars", "UPDATE sidecars SET before = x'00'"),
    ],
)  # fmt: skip
def test_what_is_not_as_it_was_written_is_named(damaged, part, change):
    path = damaged / "photos.sqlite"
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    try:
        with pytest.raises(CheckpointError, match=f"photos.sqlite (is damaged: {part}|cannot)"):
            found_in(damaged)
    finally:
        path.write_bytes(whole)


def test_rows_of_version_0_2_are_read_and_get_sums_when_they_are_written(update, tmp_path):
    update()
    path = update.folder / "photos.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        for table in ("roots", "contents", "files", "sidecars", "embedded"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN sum")
        database.execute("DROP TABLE photo_headers")
        database.execute("PRAGMA user_version = 3")
    with Index(update.folder) as index:
        assert len(Asked(index, Query.parse("dog")).top().hits) == 12
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(sum) FROM files").fetchone() == (0,)
        picture(tmp_path / "photos" / "new.png", 99)
        update(watch=Silent())
        assert database.execute("SELECT count(sum) FROM files").fetchone() == (1,)
        with database:
            database.execute("UPDATE files SET size = 7 WHERE name = 'new.png'")
    with Index(update.folder) as index, pytest.raises(CheckpointError, match="row of its files"):
        Asked(index, Query.parse("dog")).top()

"""Lists that a person checks, and their receipts.

Oracles: a person whose truth is known, ``ListCheck``, the index itself, the answer read back,
hashes by hand, a receipt of 0.2, a kill, counts by hand.
"""

import csv
import hashlib
import json
import random
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import picture

from labelwise.base.progress import Silent
from labelwise.decide import Promise
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.photos import Asked, Index, answer, read_list_answers, receipts_of, verify_lists
from labelwise.photos.database import sum_of
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.lists import (
    RECEIPTS_FILE,
    AnsweredList,
    CheckSession,
    carry_receipts,
    keep_receipt,
    place_of,
    rows_in_order,
    write_list_questions,
)
from labelwise.photos.prevalence import SampleAnswers, draw_sample
from labelwise.photos.shift import evidence_of
from labelwise.photos.tagging import KeptFile, WrittenFiles
from labelwise.queries import Query

DOG, CAT = Query.parse("dog"), Query.parse("cat")


def promised(index, query=DOG, share=0.2, who=None, **options):
    """Keep the receipt of a list, as version 0.2 promised it on average over searches."""
    found = answer(index, query, wrong_about=share, **options)
    said = ("list", 1 - share, None, 400, 50, 0.95, "held-out photos", "2026-01-01", "conformal")
    promise = Promise(*said, kind="expected", listed=len(found.rows))
    return found, keep_receipt(index, query, promise, found.rows, who)


def test_a_receipt_says_what_was_promised_of_which_photos_by_which_model(index, folder):
    found, receipt = promised(index, who="ann")
    (read,) = receipts_of(open_index(folder))
    assert read == receipt
    assert (read.number, read.query, read.who, read.withdrawn) == (1, "dog", "ann", False)
    rows = sorted(rows_in_order(index, read).tolist())
    everything = answer(index, DOG, wrong_about=0.2, top=600)
    assert rows == sorted(hit.row for hit in everything.hits) == sorted(found.rows.tolist())
    hashes = sorted(index.store.contents_of([row])[row].hash for row in rows)
    assert read.photos == hashlib.sha256(b"".join(hashes)).hexdigest()
    assert read.weights == index.spec.weights_sha256
    assert read.held_out == evidence_of(index).digest
    assert read.spec()["promise"]["text"] == str(read.promise)


def test_the_same_promise_is_kept_once_and_another_one_anew(index):
    _, first = promised(index)
    assert promised(index, top=3)[1] == first  # another page of the same list
    _, other = promised(index, share=0.3)
    index.correct(int(rows_in_order(index, first)[0]), {"dog": "absent"})
    _, shorter = promised(index)
    assert receipts_of(index) == [first, other, shorter]
    assert [first.number, other.number, shorter.number] == [1, 2, 3]
    assert shorter.photos != first.photos
    assert shorter.promise.listed == first.promise.listed - 1


def test_a_check_keeps_its_promise_and_withdraws_it_with_the_answer(index):
    session = CheckSession(index, DOG, wrong_at_most=0.3, top=12, who="ann")
    state = session.state()
    while state.promise is None:
        assert receipts_of(index) == []
        state = session.answer(session.ask(session.who), "yes")
    (receipt,) = receipts_of(index)
    assert receipt.promise == state.promise
    assert (receipt.promise.kind, receipt.held_out) == ("checked", "")  # no held-out photo joined
    assert sorted(rows_in_order(index, receipt)) == sorted(session.left())
    assert len(judged(index)) == 1
    session.undo()
    assert session.state().promise is None
    assert judged(index) == []  # what was withdrawn is not held to anything
    assert [one.withdrawn for one in receipts_of(index)] == [True]
    session.answer(session.ask(session.who), "yes")
    assert [one.withdrawn for one in receipts_of(index)] == [True, False]


OLD_TABLE = """CREATE TABLE receipts (id INTEGER PRIMARY KEY AUTOINCREMENT,
    query TEXT NOT NULL, promise TEXT, photos TEXT NOT NULL, weights TEXT NOT NULL,
    link TEXT NOT NULL, held_out TEXT NOT NULL, seed INTEGER NOT NULL, who TEXT NOT NULL,
    at TEXT NOT NULL, withdraws INTEGER, rows BLOB NOT NULL, seal TEXT NOT NULL)"""


def test_receipts_of_version_0_2_are_read_and_counted_on(index, folder):
    found, made = promised(index)
    line = json.loads((folder / RECEIPTS_FILE).read_text().splitlines()[1])
    (folder / RECEIPTS_FILE).unlink()
    bits = np.isin(np.arange(found.rows.max() + 1), found.rows)
    rows = zlib.compress(np.packbits(bits).tobytes())
    same = [line[name] for name in ("photos", "weights", "link", "held_out", "seed", "who", "at")]
    tags = 'tags {"cat": 0.7, "dog": 0.5}'
    with index.store.transaction() as database:
        database.execute(OLD_TABLE)
        for number, query in ((1, "dog"), (2, tags)):
            database.execute(
                f"INSERT INTO receipts VALUES ({', '.join('?' * 13)})",
                (number, query, json.dumps(line["promise"]), *same, None, rows, "seal"),
            )
    (dog,) = receipts_of(index)  # of tags no answer says anything
    assert dog == made
    assert sorted(rows_in_order(index, dog)) == sorted(found.rows)
    assert promised(index)[1].number == 1  # the same promise
    assert promised(index, share=0.3)[1].number == 3
    assert set(verify_lists(index).by_number) == {1, 3}
    (folder / RECEIPTS_FILE).write_text('{"number": 1}\n')
    with pytest.raises(CheckpointError, match=r"receipts\.jsonl holds a line that is not a rec"):
        receipts_of(index)


def test_an_index_built_anew_takes_its_receipts_over(index, model, tmp_path):
    """Oracle: the contents of the listed photos, before and after, in another order of rows."""
    _, kept = promised(index, who="ann")
    session = CheckSession(index, CAT, wrong_at_most=0.3, top=12)
    while session.state().promise is None:
        session.answer(session.ask(session.who), "yes")
    session.undo()
    logits = np.stack([index.store.column(k) for k in range(4)], axis=1)
    rebuilt = made_index(tmp_path / "other" / "photos.index", model, logits[:0])
    other = open_index(rebuilt)
    contents = [index.store.contents_of([row])[row] for row in reversed(range(600))]
    other.store.append(contents, logits[::-1], None, [])
    for _ in range(2):  # a second time, as after a kill, adds nothing
        carry_receipts(index.store, other)
        first, second = receipts_of(other)
        assert first == kept
        assert (second.query, second.withdrawn) == ("cat", True)
        listed = other.store.contents_of(rows_in_order(other, first).tolist()).values()
        hashes = sorted(one.hash for one in listed)
        assert kept.photos == hashlib.sha256(b"".join(hashes)).hexdigest()


def sure(index):
    """Keep a receipt of half a list, with a confidence, as version 0.2 promised it."""
    found = answer(index, DOG, wrong_about=0.5)
    said = ("list", 0.5, 0.95, 400, 50, 0.95, "held-out photos", "2026-01-01", "exact")
    promise = Promise(*said, kind="sure", listed=len(found.rows))
    return keep_receipt(index, DOG, promise, found.rows)


def judged(index, answers=None):
    return [verdict for _, verdict in verify_lists(index, answers).lists]


def test_answers_count_as_drawn_as_far_as_the_order_has_no_gap(index):
    order = rows_in_order(index, sure(index)).tolist()
    for row in [*order[:5], *order[7:10]]:
        index.correct(row, {"dog": "present"})
    index.correct(order[5], {"dog": "absent"})
    index.correct(order[6], {"cat": "absent"})  # says nothing of dogs
    (verdict,) = judged(index)
    told = verdict.answers
    assert (told.drawn, told.drawn_wrong, told.right, told.wrong) == (6, 1, 8, 1)
    assert verdict.verdict == "cannot tell"
    assert verdict.more > 0


def test_a_list_whose_every_photo_is_answered_is_kept_or_broken_for_certain(index):
    order = rows_in_order(index, sure(index)).tolist()
    allowed = len(order) // 2
    right = {row: at >= allowed for at, row in enumerate(order)}
    (kept,) = judged(index, {"dog": right})
    assert (kept.verdict, kept.certain, kept.least, kept.most) == ("kept", True, allowed, allowed)
    found = verify_lists(index, {"dog": {**right, order[-1]: False}})
    ((_, broken),) = found.lists
    assert (broken.verdict, broken.certain, found.together.told) == ("broken", True, 1)


def test_unsure_and_answers_that_disagree_count_as_wrong(index):
    order = rows_in_order(index, sure(index)).tolist()
    session = CheckSession(index, Query.parse("dog"), top=600)
    while session.row(photo := session.ask(session.who)) not in order:
        session.answer(photo, "yes")
    session.answer(photo, "unsure")
    other = next(row for row in order if row != session.row(photo))
    index.correct(other, {"dog": "present"})
    (verdict,) = judged(index, {"dog": {other: False}})
    assert (verdict.answers.right, verdict.answers.wrong) == (0, 2)


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_questions_are_asked_in_order_and_answers_come_back(index, tmp_path):
    table = tmp_path / "questions.csv"
    with pytest.raises(DataError, match="no list was guaranteed, so there is nothing to ask"):
        write_list_questions(index, table, 3)
    assert not table.exists()
    dog, cat = sure(index), promised(index, Query.parse("cat | row"), 0.4)[1]
    order = rows_in_order(index, dog).tolist()
    index.correct(order[1], {"dog": "present"})
    assert write_list_questions(index, table, 3) == 5  # one is known already
    header, *rows = read_rows(table)
    assert header == ["receipt", "query", "path", "answer"]
    paths = index.store.paths_of(order)
    asked = [path for _, query, path, _ in rows if query == "dog"]
    assert asked == [paths[order[0]][0], paths[order[2]][0]]
    assert {row[0] for row in rows} == {str(dog.number), str(cat.number)}
    words = ("yes", "No", "unsure", "yes", "")
    told = [  # without parentheses, as a person would write a query
        (number, query.strip("()"), path, word)
        for (number, query, path, _), word in zip(rows, words, strict=True)
    ]
    write_rows(table, [header, *told])
    told = read_list_answers(index, table)
    said = {one.query: verdict.answers for one, verdict in verify_lists(index, told).lists}
    drawn = {query: (one.drawn, one.drawn_wrong) for query, one in said.items()}
    assert drawn == {"dog": (3, 1), "(cat | row)": (2, 1)}
    with pytest.raises(DataError, match="at least one photo per list"):
        write_list_questions(index, table, 0)


def test_a_query_that_begins_with_a_minus_is_no_formula_and_is_known_again(index, tmp_path):
    promised(index, Query.parse("-dog"), 0.6)
    promised(index, CAT, 0.6)
    table = tmp_path / "questions.csv"
    write_list_questions(index, table, 1)
    rows = read_rows(table)
    assert [row[1] for row in rows] == ["query", "'-dog", "cat"]
    write_rows(table, [rows[0], *([*row[:3], "yes"] for row in rows[1:])])
    assert set(read_list_answers(index, table)) == {"-dog", "cat"}


def test_a_table_that_cannot_be_used_says_which_line(index, tmp_path):
    sure(index)
    (root,) = index.store.roots().values()
    table = tmp_path / "answers.csv"
    photo = f"{root}/0.jpg"
    table.write_text(f"path,answer\n{photo},yes\n{photo},no\n")
    assert read_list_answers(index, table) == {"dog": {0: False}}
    promised(index, CAT, 0.6)
    for text, words in (
        (f"path,answer\n{photo},yes\n", "must say in a column query which of 2 queries"),
        (f"path,answer,query\n{photo},yes,zebra\n", "line 2: no list of 'zebra' was promised"),
        ("path,answer,query\nelsewhere.jpg,yes,cat\n", "is not in"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=words):
            read_list_answers(index, table)


def session_of(pictured, text="dog", **options):
    chosen = {"wrong_at_most": 0.3, "top": 12, "who": "ann", **options}
    return CheckSession(pictured, Query.parse(text), **chosen)


def answered(session, says, most=60):
    """Answer until the list is promised or everything was asked; return the rows and the state."""
    asked, state = [], session.state()
    for _ in range(most):
        photo = session.ask(session.who)
        if photo is None or state.promise is not None:
            break
        asked.append(photo)
        state = session.answer(photo, says(photo))
    return asked, state


def test_a_list_that_is_all_right_is_promised_and_its_answers_are_corrections(pictured):
    session = session_of(pictured)
    asked, state = answered(session, lambda photo: "yes")
    fresh = [session.row(photo) for photo in asked if not photo.repeated]
    assert len(set(fresh)) == len(fresh) < 12
    assert (state.promise.checked, state.promise.listed) == (len(fresh), 12)
    assert str(state).endswith(state.promise.in_words("dog"))
    said = {one.row: one for one in pictured.store.corrections("dog")}
    assert {row: (one.state, one.source, one.who) for row, one in said.items()} == {
        row: ("present", "check", "ann") for row in fresh
    }


def test_the_draw_is_random_and_goes_on_where_it_was_left(pictured):
    """Oracle: the order of draws of one session, continued by another one."""
    first = session_of(pictured)
    order = first.rows.tolist()
    assert sorted(order) == [*range(12)]
    assert order != first.left().tolist()
    for row in order[:3]:
        photo = first.ask(first.who)
        assert first.row(photo) == row
        first.answer(photo, "no")
    again = session_of(pictured)
    assert (again.state(), again.row(again.ask(again.who))) == (first.state(), order[3])


def test_a_query_of_two_labels_corrects_them_only_where_the_answer_tells(pictured):
    session = session_of(pictured, "dog, -beach")
    yes = session.ask(session.who)
    session.answer(yes, "yes")
    session.answer(session.ask(session.who), "no")
    said = {(one.row, one.label, one.state) for one in pictured.store.corrections()}
    assert said == {(session.row(yes), "dog", "present"), (session.row(yes), "beach", "absent")}
    either = session_of(pictured, "cat | row")
    either.answer(either.ask(either.who), "yes")
    assert len(pictured.store.corrections()) == 2


def test_a_shorter_list_keeps_its_answers_and_needs_more_evidence(pictured):
    """Oracle: the answers about photos of the shorter list, counted by hand."""
    long = session_of(pictured, wrong_at_most=0.1)
    best = [int(row) for row in long.left()]
    says = {row: "yes" if place < 6 else "no" for place, row in enumerate(best)}
    _, state = answered(long, lambda photo: says[long.row(photo)], most=6)
    assert state.promise is None
    short = session_of(pictured, wrong_at_most=0.1, top=6)
    check = short.state().check
    assert check.place == 1
    assert check.needed > state.check.needed
    inside = [int(row) for row in long.rows if int(row) in best[:6]]
    assert short.rows.tolist() == inside
    known = {int(row) for row in long.rows[: state.check.checked]}
    assert check.checked == next((at for at, row in enumerate(inside) if row not in known), 6)
    _, state = answered(short, lambda photo: says[long.row(photo)])
    assert state.promise.listed == 6
    assert session_of(pictured, wrong_at_most=0.1).state().check.place == 0


def test_answers_at_random_are_noticed_kindly(pictured):
    """Oracle: a person who says yes first and no the second time."""
    session, asked = session_of(pictured, wrong_at_most=0.05), []
    while (photo := session.ask(session.who)) is not None and len(asked) < 40:
        state = session.answer(photo, "no" if session.row(photo) in asked else "yes")
        asked.append(session.row(photo))
    assert len(asked) > 8
    repeated = replace(state, repeats=3, changed=2, promise=None)
    assert "2 of 3 photos shown twice were answered differently" in str(repeated)
    assert [replace(repeated, changed=n).unsteady for n in (1, 2)] == [False, True]
    assert state.changed == state.repeats > 0
    assert state.check.wrong >= state.changed  # answers that disagree count as wrong


def test_two_people_who_disagree_and_people_who_cannot_tell(pictured):
    ann, bob = session_of(pictured), session_of(pictured, who="bob")
    photo = ann.ask(ann.who)
    ann.answer(photo, "yes")
    state = bob.answer(photo, "no")
    assert (state.disagreed, state.check.checked, state.check.wrong) == (1, 1, 1)
    assert state.repeats == 0  # nobody changed an answer
    assert "1 wrong or unsure (1 of them answered differently by two people)" in str(state)
    _, state = answered(session_of(pictured, "cat"), lambda photo: "unsure")
    assert "every answer was unsure, so nothing can be guaranteed" in str(state)
    assert pictured.store.corrections("cat") == []


def test_a_list_of_one_photo(pictured):
    session = session_of(pictured, "row", top=1)
    assert session.state().more == 1
    state = session.answer(session.ask(session.who), "yes")
    assert (state.promise.listed, session.ask(session.who)) == (1, None)
    wrong = session_of(pictured, "beach", top=1)
    assert "no photo of it is right" in str(wrong.answer(wrong.ask(wrong.who), "no"))


def test_a_list_that_fails_offers_a_shorter_one(index):
    """Oracle: a person who finds every other photo wrong; half of the list is offered."""
    session = session_of(index, wrong_at_most=0.1, top=70)
    for turn in range(16):
        state = session.answer(session.ask(session.who), ("yes", "no")[turn % 2])
    assert (state.promise, state.shorter) == (None, 35)
    assert state.more is None or state.more > 40
    assert "a list of the best 35 may take fewer: --top 35" in str(state)


def test_a_list_is_as_long_as_the_answers_can_carry(pictured):
    with pytest.raises(LabelwiseError, match="not both"):
        session_of(pictured, cut=0.5)
    with pytest.raises(LabelwiseError, match=r"no list of dog, cat, row, beach is likely .*--top"):
        session_of(pictured, "dog, cat, row, beach", top=None, wrong_at_most=0.01)


def test_a_check_goes_on_with_a_shorter_list_where_the_first_fails(index):
    """Oracle: a person who finds the first 60 % of the list right, and nothing below."""
    few, many = (session_of(index, top=None, answers=some) for some in (8, 20))
    assert len(few.rows) < len(many.rows)
    best = many.left().tolist()
    right = set(best[: int(0.6 * len(best))])
    _, state = answered(many, lambda photo: "yes" if many.row(photo) in right else "no", most=200)
    assert state.check.place > 0
    assert state.check.listed < len(best)
    left = many.left().tolist()
    assert len(left) == state.promise.listed
    assert sum(row not in right for row in left) <= 0.3 * len(left)
    assert f"of these {len(left)} photos match dog: " in str(state)
    assert session_of(index, top=None, answers=20).state() == state


def test_people_share_a_list_and_a_killed_session_goes_on(pictured):
    """Oracle: the order of draws of one person alone; what each person was asked."""
    order = session_of(pictured).rows.tolist()
    shared = session_of(pictured)
    ann, bob, eve = (shared.ask(who) for who in ("ann", "bob", "eve"))
    assert [shared.row(question) for question in (ann, bob, eve)] == order[:3]
    assert shared.ask("bob") == bob  # who looks again sees the same photo
    shared.answer(bob, "yes", "bob")
    assert shared.state().check.checked == 0  # it waits for the photo drawn before it
    again = session_of(pictured)  # of another process, which knows the log alone
    again.answer(again.ask("ann"), "no", "ann")
    assert again.state().check.checked == 2
    assert shared.undo("bob").photo == bob.photo  # each takes back their own last answer
    assert (again.state().check.checked, shared.undo("eve")) == (1, None)
    while shared.state().promise is None and (question := shared.ask("eve")) is not None:
        shared.answer(question, "yes", "eve")
    assert shared.state() == again.state()
    ends = [session.ask(who) for session in (shared, again) for who in ("ann", "bob")]
    assert [end is None or end.repeated for end in ends] == [True] * 4


# Answers of 0.2, in SQLite and samples.jsonl, and flipped bits in photos.sqlite. Oracles: what
# was written there, in its words; the answers as they were.

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

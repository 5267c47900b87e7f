"""Receipts held against answers. Oracles: a library whose every answer is known, counted by hand,
and what each kind of answer is worth: drawn in the receipt's order, or met by chance.
"""

import csv

import pytest

from labelwise.errors import DataError
from labelwise.photos import (
    answer,
    keep_found,
    read_list_answers,
    receipts_of,
    verify_lists,
)
from labelwise.photos.checking import CheckSession
from labelwise.photos.receipts import rows_in_order
from labelwise.photos.refused_searches import note_refused, refused_by_share
from labelwise.photos.verifying import write_list_questions
from labelwise.retrieval import Query


def promised(index, text="dog", share=0.5, kind="sure"):
    query = Query.parse(text)
    found = answer(index, query, wrong_at_most=share, promise=kind)
    return keep_found(index, query, found)


def judged(index, answers=None):
    return [verdict for _, verdict in verify_lists(index, answers).lists]


def test_answers_count_as_drawn_as_far_as_the_order_has_no_gap(index):
    receipt = promised(index)
    order = rows_in_order(index, receipt).tolist()
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
    receipt = promised(index)
    order = rows_in_order(index, receipt).tolist()
    allowed = len(order) // 2
    right = {row: at >= allowed for at, row in enumerate(order)}
    (verdict,) = judged(index, {"dog": right})
    assert (verdict.verdict, verdict.certain) == ("kept", True)
    assert (verdict.least, verdict.most) == (allowed, allowed)
    (verdict,) = judged(index, {"dog": {**right, order[-1]: False}})
    assert (verdict.verdict, verdict.certain) == ("broken", True)
    assert verify_lists(index, {"dog": {**right, order[-1]: False}}).together.told == 1


def test_refused_searches_are_noted_once_and_count_for_expected_lists(index):
    receipt = promised(index, kind="expected")
    for kind in ("expected", "expected", "sure"):
        assert promised(index, "dog", 0.0005, kind) is None  # 400 held-out photos are too few
    assert refused_by_share(index.store) == {0.0005: 1}
    note_refused(index.store, "cat", 0.5, 600, "weights", "link")
    order = rows_in_order(index, receipt).tolist()
    found = verify_lists(index, {"dog": {row: at % 4 > 0 for at, row in enumerate(order)}})
    (expected,) = found.together.expected
    assert (expected.lists, expected.refused) == (1, 1)
    assert expected.over_all == pytest.approx(expected.mean / 2)
    assert "50% may be on average over searches" in str(found.lists[0][1])


def test_a_sample_settles_what_it_can(index):
    """30 right answers of a list of which half may be wrong tell; so do 30 wrong ones."""
    order = rows_in_order(index, promised(index)).tolist()
    for is_right, verdict in ((True, "kept"), (False, "broken")):
        found = verify_lists(index, {"dog": dict.fromkeys(order[:30], is_right)})
        assert [one.verdict for _, one in found.lists] == [verdict]
        assert found.together.verdict == ("kept" if is_right else "cannot tell")
    assert "kept in 0 of 1; promises that hold break 1 or more of 1 with chance 0.06" in str(
        found.together
    )


def test_unsure_and_answers_that_disagree_count_as_wrong(index):
    order = rows_in_order(index, promised(index)).tolist()
    session = CheckSession(index, Query.parse("dog"), top=600, alone=True)
    while (photo := session.next_photo()).row not in order:
        session.answer(photo, "yes")
    session.answer(photo, "unsure")
    other = next(row for row in order if row != photo.row)
    index.correct(other, {"dog": "present"})
    (verdict,) = judged(index, {"dog": {other: False}})
    assert (verdict.answers.right, verdict.answers.wrong) == (0, 2)


def test_withdrawn_promises_are_not_held_to_anything(index):
    session = CheckSession(index, Query.parse("dog"), wrong_at_most=0.3, top=12, alone=True)
    while session.state().promise is None:
        session.answer(session.next_photo(), "yes")
    assert len(judged(index)) == 1
    session.undo()
    assert judged(index) == []


def test_questions_are_asked_in_order_and_answers_come_back(index, tmp_path):
    dog, cat = promised(index), promised(index, "cat | row", 0.4, "expected")
    order = rows_in_order(index, dog).tolist()
    index.correct(order[1], {"dog": "present"})
    table = tmp_path / "questions.csv"
    assert write_list_questions(index, table, 3) == 5  # one is known already
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    paths = index.store.paths_of(order)
    asked = [row["path"] for row in rows if row["query"] == "dog"]
    assert asked == [paths[order[0]][0], paths[order[2]][0]]
    assert {row["receipt"] for row in rows} == {str(dog.number), str(cat.number)}
    for row, word in zip(rows, ("yes", "No", "unsure", "yes", ""), strict=True):
        row["answer"] = word
        row["query"] = row["query"].strip("()")  # as a person would write it
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    told = read_list_answers(index, table)
    verdicts = {receipt.query: one for receipt, one in verify_lists(index, told).lists}
    assert verdicts["dog"].answers.drawn == 3
    assert verdicts["dog"].answers.drawn_wrong == 1
    assert verdicts["(cat | row)"].answers.drawn == 2
    assert verdicts["(cat | row)"].answers.drawn_wrong == 1
    with pytest.raises(DataError, match="at least one photo per list"):
        write_list_questions(index, table, 0)


def test_a_query_that_begins_with_a_minus_is_no_formula_and_is_known_again(index, tmp_path):
    promised(index, "-dog", 0.6, "expected")
    promised(index, "cat", 0.6, "expected")
    table = tmp_path / "questions.csv"
    write_list_questions(index, table, 1)
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert [row[1] for row in rows] == ["query", "'-dog", "cat"]
    rows = [rows[0], *([*row[:3], "yes"] for row in rows[1:])]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert set(read_list_answers(index, table)) == {"-dog", "cat"}
    table.write_text("answer,query,path\nyes,cat\n")
    with pytest.raises(DataError, match="is not in"):
        read_list_answers(index, table)


def test_without_a_promise_there_is_nothing_to_ask_and_no_table(index, tmp_path):
    with pytest.raises(DataError, match="nothing was promised, so there is nothing to ask"):
        write_list_questions(index, tmp_path / "questions.csv", 3)
    assert not (tmp_path / "questions.csv").exists()


def test_a_table_that_cannot_be_used_says_which_line(index, tmp_path):
    promised(index)
    (root,) = index.store.roots().values()
    table = tmp_path / "answers.csv"
    photo = f"{root}/0.jpg"
    for text, words in (
        ("path\nx\n", "must have the columns path and answer, got path"),
        (f"path,answer\n{photo},maybe\n", "line 2: the answer must be yes, no or unsure"),
        (f"path,answer,query\n{photo},yes,zebra\n", "line 2: no list of 'zebra' was promised"),
        ("path,answer\nelsewhere.jpg,yes\n", "is not in"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=words):
            read_list_answers(index, table)
    table.write_text(f"path,answer\n{photo},yes\n{photo},no\n")
    assert read_list_answers(index, table) == {"dog": {0: False}}
    promised(index, "cat", 0.6, "expected")
    with pytest.raises(DataError, match="must say in a column query"):
        read_list_answers(index, table)
    with pytest.raises(DataError, match="cannot be read"):
        read_list_answers(index, tmp_path / "none.csv")
    assert len(receipts_of(index)) == 2


def test_a_query_that_a_spreadsheet_would_compute_is_quoted_and_read_back(index, tmp_path):
    """``-dog`` is a formula there: without its apostrophe it comes back as ``#NAME?``."""
    receipt = promised(index, "-dog", 0.5, "expected")
    table = tmp_path / "questions.csv"
    assert write_list_questions(index, table, 1) == 1
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["query"] == "'-dog"
    table.write_text(f"query,path,answer\n{row['query']},{row['path']},yes\n")
    (first, *_) = rows_in_order(index, receipt).tolist()
    assert read_list_answers(index, table) == {"-dog": {first: True}}

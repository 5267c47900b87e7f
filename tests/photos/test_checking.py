"""Checks of lists. Oracles: a person whose truth is known, ``ListCheck``, the index itself."""

from dataclasses import replace

import numpy as np
import pytest
from open_indexes import open_index
from search_setup import picture

from labelwise.errors import LabelwiseError
from labelwise.photos.lists import CheckSession
from labelwise.retrieval import Query


@pytest.fixture
def index(pictured):
    return pictured


def session_of(index, text="dog", **options):
    chosen = {"wrong_at_most": 0.3, "top": 12, "who": "ann", **options}
    return CheckSession(index, Query.parse(text), **chosen)


def answered(session, says, most=60):
    """Answer until the list is promised or everything was asked; return the rows and the state."""
    asked, state = [], session.state()
    for _ in range(most):
        photo = session.next_photo()
        if photo is None or state.promise is not None:
            break
        asked.append(photo)
        state = session.answer(photo, says(photo))
    return asked, state


def test_a_list_that_is_all_right_is_promised_and_its_answers_are_corrections(index):
    session = session_of(index)
    asked, state = answered(session, lambda photo: "yes")
    fresh = [photo.row for photo in asked if not photo.repeated]
    assert len(set(fresh)) == len(fresh) < 12
    assert state.promise.checked == len(fresh)
    assert state.promise.listed == 12
    assert str(state).endswith(state.promise.in_words("dog"))
    said = {one.row: one for one in index.store.corrections("dog")}
    assert {row: (one.state, one.source, one.who) for row, one in said.items()} == {
        row: ("present", "check", "ann") for row in fresh
    }


def test_the_draw_is_random_and_goes_on_where_it_was_left(index):
    """Oracle: the order of draws of one session, continued by another one."""
    first, whole = session_of(index), session_of(index)
    np.testing.assert_array_equal(first.rows, whole.rows)
    assert sorted(first.rows.tolist()) == sorted(range(12))
    assert not np.array_equal(first.rows, first.left())
    order = [int(row) for row in first.rows]
    for row in order[:3]:
        photo = first.next_photo()
        assert photo.row == row
        first.answer(photo, "no")
    assert session_of(index).state() == first.state()
    assert session_of(index).next_photo().row == order[3]


def test_wrong_photos_leave_the_list_and_undo_takes_an_answer_back(index):
    session = session_of(index)
    photo = session.next_photo()
    before = session.state()
    after = session.answer(photo, "no")
    assert (after.check.checked, after.check.wrong, after.check.left) == (1, 1, 11)
    assert photo.row not in session.left()
    assert [one.state for one in index.store.corrections("dog")] == ["absent"]
    assert session.undo() == before
    assert index.store.corrections("dog") == []
    assert session.next_photo() == photo
    assert session.undo() == before  # nothing is left to undo


def test_a_query_of_two_labels_corrects_them_only_where_the_answer_tells(index):
    session = session_of(index, "dog, -beach")
    yes, no = session.next_photo(), None
    session.answer(yes, "yes")
    no = session.next_photo()
    session.answer(no, "no")
    said = {(one.row, one.label, one.state) for one in index.store.corrections()}
    assert said == {(yes.row, "dog", "present"), (yes.row, "beach", "absent")}
    either = session_of(index, "cat | row")
    either.answer(either.next_photo(), "yes")
    assert len(index.store.corrections()) == 2


def test_a_shorter_list_keeps_its_answers_and_needs_more_evidence(index):
    """Oracle: the answers about photos of the shorter list, counted by hand."""
    long = session_of(index, wrong_at_most=0.1)
    best = [int(row) for row in long.left()]
    says = {row: "yes" if place < 6 else "no" for place, row in enumerate(best)}
    _, state = answered(long, lambda photo: says[photo.row], most=6)
    assert state.promise is None
    short = session_of(index, wrong_at_most=0.1, top=6)
    assert short.state().check.place == 1
    assert short.state().check.needed > state.check.needed
    inside = [int(row) for row in long.rows if int(row) in best[:6]]
    assert short.rows.tolist() == inside
    known = {int(row) for row in long.rows[: state.check.checked]}
    done = next((at for at, row in enumerate(inside) if row not in known), 6)
    assert short.state().check.checked == done
    _, state = answered(short, lambda photo: says[photo.row])
    assert state.promise is not None
    assert state.promise.listed == 6
    assert session_of(index, wrong_at_most=0.1).state().check.place == 0


def test_answers_at_random_are_noticed_kindly(index):
    """Oracle: a person who says yes first and no the second time."""
    session = session_of(index, wrong_at_most=0.05)
    seen = set()

    def changing(photo):
        first = photo.row not in seen
        seen.add(photo.row)
        return "yes" if first else "no"

    asked = 0
    while (photo := session.next_photo()) is not None and asked < 40:
        state = session.answer(photo, changing(photo))
        asked += 1
    assert asked > 8
    repeated = replace(state, repeats=3, changed=2, promise=None)
    assert repeated.unsteady
    assert "2 of 3 photos shown twice were answered differently" in str(repeated)
    assert not replace(state, repeats=3, changed=1).unsteady
    assert state.changed == state.repeats > 0
    assert state.check.wrong >= state.changed  # answers that disagree count as wrong


def test_two_people_who_disagree_and_people_who_cannot_tell(index):
    ann, bob = session_of(index), session_of(index, who="bob")
    photo = ann.next_photo()
    ann.answer(photo, "yes")
    state = bob.answer(photo, "no")
    assert (state.disagreed, state.check.checked, state.check.wrong) == (1, 1, 1)
    assert state.repeats == 0  # nobody changed an answer
    assert "1 wrong or unsure (1 of them answered differently by two people)" in str(state)
    other = session_of(index, "cat")
    _, state = answered(other, lambda photo: "unsure")
    assert state.promise is None
    assert "every answer was unsure, so nothing can be guaranteed" in str(state)
    assert index.store.corrections("cat") == []


def test_a_list_of_one_photo(index):
    session = session_of(index, "row", top=1)
    assert session.state().more == 1
    state = session.answer(session.next_photo(), "yes")
    assert state.promise.listed == 1
    assert session.next_photo() is None
    wrong = session_of(index, "beach", top=1)
    state = wrong.answer(wrong.next_photo(), "no")
    assert state.promise is None
    assert "no photo of it is right" in str(state)


def test_a_list_that_fails_offers_a_shorter_one(update, photos):
    """Oracle: a person who finds every other photo wrong; half of the list is offered."""
    for number in range(12, 72):
        picture(photos / f"{number}.png", number)
    update()
    session = session_of(open_index(update.folder), wrong_at_most=0.1, top=70)
    for turn in range(16):
        state = session.answer(session.next_photo(), ("yes", "no")[turn % 2])
    assert state.promise is None
    assert state.more is None or state.more > 40
    assert state.shorter == 35
    assert "a list of the best 35 may take fewer: --top 35" in str(state)


def test_a_list_is_as_long_as_the_answers_can_carry(index):
    with pytest.raises(LabelwiseError, match="not both"):
        session_of(index, cut=0.5)
    with pytest.raises(LabelwiseError, match=r"no list of dog, cat, row, beach is likely .*--top"):
        session_of(index, "dog, cat, row, beach", top=None, wrong_at_most=0.01)


def test_a_check_goes_on_with_a_shorter_list_where_the_first_fails(folder):
    """Oracle: a person who finds the first 60 % of the list right, and nothing below."""
    index = open_index(folder)
    few, many = (session_of(index, top=None, answers=some) for some in (8, 40))
    assert len(few.rows) < len(many.rows)
    best = many.left().tolist()
    right = set(best[: int(0.6 * len(best))])
    _, state = answered(many, lambda photo: "yes" if photo.row in right else "no", most=200)
    assert state.promise is not None
    assert state.check.place > 0
    assert state.check.listed < len(best)
    left = many.left().tolist()
    assert len(left) == state.promise.listed
    assert sum(row not in right for row in left) <= 0.3 * len(left)
    assert f"of these {len(left)} photos match dog: " in str(state)
    again = session_of(index, top=None, answers=40)
    assert again.state() == state

"""Sessions of audits: resumed, shared, undone, with photos that are missing. Oracle: the truth."""

from dataclasses import replace

import pytest
from audit_setup import tagged_photos

from labelwise.answers import audit_session
from labelwise.answers.audit_session import (
    EACH_TAG,
    AuditSession,
    AuditSettings,
    corrected,
    precisions,
    recalls,
    statement,
)
from labelwise.answers.log import AnswerLog
from labelwise.answers.tag_tables import TagTable, read_tags
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.report.audit import page

SETTINGS = AuditSettings(random_photos=20)


@pytest.fixture
def world(tmp_path):
    truth, tagged = tagged_photos(tmp_path)
    return tmp_path, truth, tagged


def session_of(folder, name="log.jsonl", settings=SETTINGS, table=None):
    table = table or read_tags(folder / "tags.csv")
    return AuditSession(table, folder / "photos", AnswerLog(folder / name), settings)


def record(session, question, word, who):
    session.record([session.line(question.photo, question.tag, word, who)])


def told(question, truth):
    return "yes" if question.tag in truth[question.photo] else "no"


def answer(session, truth, who="ada", most=1000):
    """Answer by the truth; return what was asked."""
    asked = []
    while len(asked) < most and (question := session.question(who)) is not None:
        asked.append(question.key)
        if question.tag == EACH_TAG:
            shown = {tag: told(replace(question, tag=tag), truth) for tag in question.listed}
            session.record([session.shown_line(question.photo, shown, who)])
        else:
            record(session, question, told(question, truth), who)
    return asked


def test_an_audit_ends_with_a_guarantee_that_is_true(world):
    folder, truth, tagged = world
    session = session_of(folder)
    asked = answer(session, truth, most=5)
    assert not any(one.kept for one in precisions(session))
    assert "not decided" in page(session)
    asked += answer(session, truth)
    assert any(one.kept for one in precisions(session))
    assert "not decided" not in page(session)
    assert len(set(asked)) == len(asked)
    verdict, kept = session.verdict(), {session.table.tags[k] for k in session.verdict().kept}
    assert verdict.guaranteed
    assert "night" not in kept
    uses = [(photo, tag) for photo, own in tagged.items() for tag in own & kept]
    assert len(uses) == verdict.uses
    assert sum(tag in truth[photo] for photo, tag in uses) >= 0.9 * len(uses)
    labels, unknown = corrected(session)
    for photo, own in zip(session.table.photos, labels, strict=True):
        added = {tag for tag in own if tag not in tagged[photo]}
        assert set(own) <= kept
        assert added <= truth[photo]
    for photo, tag in asked:  # what a person answered is as they said
        row = session.table.photos.index(photo)
        for name in kept if tag == EACH_TAG else kept & {tag}:
            assert (name in labels[row]) == (name in truth[photo])
    assert not any(unknown)
    found = recalls(session)
    for tag in kept:
        missing = sum(tag in truth[p] and tag not in own for p, own in tagged.items())
        assert found[tag].least_missing <= missing <= found[tag].most_missing
    assert sum(tag == EACH_TAG for _, tag in asked) == 20


def test_a_session_goes_on_where_it_was_and_undo_leaves_no_trace(world):
    folder, truth, _ = world
    whole = session_of(folder, "whole.jsonl")
    asked = answer(whole, truth)
    first = session_of(folder)
    answer(first, truth, most=30)
    question = first.question("ada")
    record(first, question, "no" if told(question, truth) == "yes" else "yes", "ada")
    assert first.undo("ada").photo == question.photo
    assert first.question("ada") == question
    assert first.verdict().answers == 30
    again = session_of(folder)
    assert answer(again, truth) == asked[30:]
    assert again.verdict() == whole.verdict()
    assert corrected(again) == corrected(whole)
    for _ in range(3):
        again.undo("ada")
    assert again.question("ada").key == asked[-3]
    assert again.undo("eve") is None


def test_two_people_are_not_asked_the_same_and_their_answers_add_up(world):
    folder, truth, _ = world
    alone = session_of(folder, "alone.jsonl")
    answer(alone, truth)
    both = session_of(folder)
    seen = {"ada": [], "ben": []}
    while any((held := {who: both.question(who) for who in seen}).values()):
        if held["ada"] is not None and held["ben"] is not None:
            assert (held["ada"].photo, held["ada"].tag) != (held["ben"].photo, held["ben"].tag)
            assert both.question("ada") == held["ada"]  # it stays theirs
        for who in sorted(seen, reverse=True):  # ben answers before ada does
            if held[who] is not None:
                seen[who] += answer(both, truth, who, most=1)
    assert not set(seen["ada"]) & set(seen["ben"])
    assert both.people == ["ada", "ben"]
    assert both.verdict() == alone.verdict()


def test_who_left_does_not_stop_the_others(world, monkeypatch):
    folder, truth, _ = world
    session = session_of(folder)
    left = session.question("eve")
    answer(session, truth, most=25)
    assert session.verdict().answers >= 20  # eve's counts as unsure until someone answers it
    monkeypatch.setattr(audit_session, "HELD_SECONDS", 0.0)
    assert session.question("ada") == left


def test_people_who_disagree_cannot_tell(world):
    folder, _, _ = world
    session = session_of(folder)
    question = session.question("ada")
    for who, word in (("ada", "yes"), ("ben", "no")):
        record(session, question, word, who)
    known = precisions(session)[session.table.tags.index(question.tag)]
    assert (known.answered, known.unsure) == (1, 1)
    session.undo("ben")
    assert precisions(session)[session.table.tags.index(question.tag)].unsure == 0


def test_missing_photos_are_skipped_and_asked_about_once_they_are_back(world):
    folder, truth, _ = world
    session = session_of(folder)
    first = session.question("ada")
    path = folder / "photos" / first.photo
    path.rename(folder / "away.png")
    asked = answer(session, truth, most=45)
    assert first.photo not in {photo for photo, _ in asked}
    verdict = session.verdict()
    assert verdict.answers == len(session.answers) > 30
    assert f"{verdict.answers} answers)" in statement(session)
    (folder / "away.png").rename(path)
    assert session.question("ada") == first
    session.unreadable = {first.photo}
    assert session.question("ada") != first


def test_trusted_answers_are_not_asked_for(world):
    folder, truth, tagged = world
    table = read_tags(folder / "tags.csv")
    known = {(photo, tag): "yes" for photo, own in tagged.items() for tag in own & truth[photo]}
    known |= {(photo, tag): "no" for photo, own in tagged.items() for tag in own - truth[photo]}
    some = dict(list(known.items())[::2])
    session = session_of(folder, table=replace(table, known=some))
    asked = answer(session, truth)
    assert not set(asked) & set(some)
    assert session.verdict().guaranteed
    done = session_of(folder, "all.jsonl", table=replace(table, known=known))
    assert done.question("ada").tag == EACH_TAG  # nothing else is left


def test_another_table_and_answers_that_cannot_be_are_not_logged(world):
    folder, truth, _ = world
    answer(session_of(folder), truth, most=2)
    with pytest.raises(SettingsError, match="seed was different"):
        session_of(folder, settings=replace(SETTINGS, seed=1))
    other = TagTable.of("tags", [("000.png", "dog", None)])
    with pytest.raises(SettingsError, match="the tags have changed"):
        session_of(folder, table=other)
    folder, _, tagged = world
    session = session_of(folder)
    before = session.log.path.read_bytes()
    photo, use = next(p for p, own in tagged.items() if "dog" not in own), session.question("ada")
    for work, given, words in (
        (session.line, (photo, "dog", "yes"), "does not carry"),
        (session.line, (photo, "\0", "yes"), "does not carry"),
        (session.line, (use.photo, use.tag, "maybe"), "yes, no or unsure"),
        (session.shown_line, (photo, {"dogs": "yes"}), "not a listed tag; did you mean 'dog'"),
        (session.shown_line, ("x", {}), "not a photo"),
    ):
        with pytest.raises(DataError, match=words):
            work(*given, "ada")
    assert session.log.path.read_bytes() == before


def test_a_full_disk_loses_no_answer(world, monkeypatch):
    folder, truth, _ = world
    session = session_of(folder)
    answer(session, truth, most=3)
    question, before = session.question("ada"), session.log.path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(LabelwiseError, match="the disk is full"):
            record(session, question, "yes", "ada")
    assert session.log.path.read_bytes() == before
    assert session.question("ada") == question

"""The answer log. Oracle: what was said, line by line, and the bytes on the disk."""

import csv
import json
import os
import threading
import zlib

import pytest

from labelwise.answers.agreement import LabelAnswers, Tally, export_again
from labelwise.answers.log import HEADER, AnswerLog, LoggedAnswer, Note, answer_of, answered
from labelwise.base.files import locked
from labelwise.errors import DataError, LabelwiseError
from labelwise.photos.prevalence import read_answers
from labelwise.tables import load


def said(*photos, answer="yes", who="ada"):
    return [answered(photo, "dog", answer, who, "label") for photo in photos]


def photos_of(path):
    return [line.photo for line in AnswerLog(path).lines()]


def test_a_line_says_everything_and_is_read_back(tmp_path):
    line = LoggedAnswer("caf\udce9.jpg", "ünï", "unsure", "ada", "now", "audit", 2.5, "d1", "a/b")
    log = AnswerLog(tmp_path / "new" / "log.jsonl")
    assert log.lines() == []
    log.append([line, Note("sample", {"seed": 1, "drawn": {"": ["a"]}})])
    log.append([line])
    assert log.lines() == AnswerLog(log.path).lines() == [line, log.lines()[1], line]
    assert AnswerLog(log.path).notes("sample") == [{"seed": 1, "drawn": {"": ["a"]}}]
    raw = json.loads(log.path.read_bytes().splitlines()[1])
    assert {"photo", "label", "answer", "who", "when", "why", "weight", "draw"} < set(raw)


@pytest.mark.parametrize("cut", [1, 30, len(HEADER) - 1, len(HEADER), len(HEADER) + 20, -1])
def test_a_line_that_a_kill_cut_off_is_repaired_and_no_other_is_lost(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    AnswerLog(path).append(said("a"))
    AnswerLog(path).append(said("b"))
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    before = photos_of(path)
    assert before == (["a"] if cut == -1 else [])
    assert path.read_bytes() == content[:cut]  # whoever reads repairs nothing
    AnswerLog(path).append(said("c"))
    assert photos_of(path) == [*before, "c"]


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    path = tmp_path / "log.jsonl"
    AnswerLog(path).append(said("a"))
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DataError, match=r"line 2|not an answer log"):
            photos_of(path)


@pytest.mark.parametrize(
    "content", [b"path,dog\na.jpg,1\n", b'{"id": "a", "dog": 1}\n', b"\x89PNG", b"[]\n", b"\n"]
)
def test_a_foreign_file_is_never_written_to(tmp_path, content):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    log = AnswerLog(path)
    for act in (log.lines, lambda: log.append(said("a"))):
        with pytest.raises(DataError, match=r"mine\.jsonl is not an answer log.*mine-answers"):
            act()
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["mine.jsonl"]


def append_many(path, who):
    old = {name: getattr(said("old")[0], name) for name in LoggedAnswer.__slots__}
    log = AnswerLog(path, lambda: [old])
    for number in range(10):
        log.append(said(f"{who}{number}", who=who))


def test_several_people_share_a_log_and_convert_it_once(tmp_path):
    path = tmp_path / "log.jsonl"
    people = [threading.Thread(target=append_many, args=(path, who)) for who in ("ada", "ben")]
    watching = AnswerLog(path)
    for one in people:
        one.start()
    while any(one.is_alive() for one in people):
        watching.lines()
    found = photos_of(path)
    assert found[0] == "old"
    for who in ("ada", "ben"):
        assert [one for one in found if one.startswith(who)] == [f"{who}{n}" for n in range(10)]
    assert len(found) == 21
    assert [line.photo for line in watching.lines()] == found


def test_an_append_waits_for_the_lock_of_another(tmp_path):
    path = tmp_path / "log.jsonl"
    AnswerLog(path).append(said("a"))
    waiting = threading.Thread(target=AnswerLog(path).append, args=(said("b"),))
    with locked(path):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert photos_of(path) == ["a"]
    waiting.join()
    assert photos_of(path) == ["a", "b"]


def test_people_agree_disagree_and_undo(tmp_path):
    log = LabelAnswers(AnswerLog(tmp_path / "answers.jsonl"))
    photos = [str(tmp_path / f"{n}.png") for n in range(4)]
    for photo in photos:
        open(photo, "wb").close()
    log.add("dog", {photos[0]: "present", photos[1]: "absent", photos[2]: "unsure"}, "ada")
    log.add("cat", {photos[0]: "no"}, "ada")
    log.add("dog", {photos[1]: "yes"}, "ben")  # they disagree
    log.add("dog", {photos[3]: "yes"}, "ben")
    log.add("dog", {photos[3]: "undo"}, "ben")
    for one in (log, LabelAnswers(AnswerLog(log.log.path))):
        assert one.answered == 3
        assert one.tallies()["dog"] == Tally("dog", yes=1, unsure=1, disagreed=1)
        assert not one.is_answered(photos[3], "dog")
    log.add("dog", {photos[1]: "no"}, "ben")  # now they agree
    log.export(tmp_path / "answers.csv", ("bird", "dog"))
    table = load(str(tmp_path / "answers.csv"))
    assert table.space.names == ("bird", "dog", "cat")
    assert [str(one) for one in table.ids] == photos[:2]
    labels, observed = table.targets()
    assert labels.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert observed.tolist() == [[False, True, True], [False, True, False]]


def test_an_export_never_overwrites_another_table(tmp_path):
    log, table = LabelAnswers(AnswerLog(tmp_path / "mine.jsonl")), tmp_path / "mine.csv"
    log.add("dog", {"a": "yes"}, "ada")
    log.export(table)
    log.add("dog", {"b": "yes"}, "ada")
    export_again(table)  # as after a kill, when the table lags
    assert table.read_text().split() == ["path,dog", "a,1", "b,1"]
    table.write_text("path,dog\nmine.jpg,1\n")
    with pytest.raises(LabelwiseError, match=r"mine\.csv exists.*mine-answers\.csv"):
        log.export(table)
    assert table.read_text() == "path,dog\nmine.jpg,1\n"


def test_the_labelling_log_of_0_2_is_converted_and_kept(tmp_path):
    path, table = tmp_path / "paged.jsonl", tmp_path / "paged.csv"
    words = ("present", "absent", "unsure", "withdrawn", "present")
    states = zip("abcad", words, strict=True)
    lines = [{"photo": p, "label": "dog", "state": s, "who": "ada", "at": "t"} for p, s in states]
    old = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(old + '{"photo": "e", "lab')
    table.write_text("path,dog\nb,0\n")  # it lags, as after a kill
    log = LabelAnswers(AnswerLog(path))
    assert log.agreed == {"b": {"dog": False}, "d": {"dog": True}}
    assert path.read_text().startswith(old)
    log.add("dog", {"e": "no"}, "ben")
    assert (tmp_path / "paged.0.2.jsonl").read_text().startswith(old)
    assert path.read_bytes().startswith(HEADER)
    log.export(table)
    assert table.read_text().split() == ["path,dog", "b,0", "d,1", "e,0"]


def test_a_line_that_is_taken_out_or_put_in_is_noticed(tmp_path):
    path = tmp_path / "log.jsonl"
    for photo in "abcd":
        AnswerLog(path).append(said(photo))
    head, *lines = path.read_bytes().splitlines(keepends=True)
    for forged in (
        lines[1:],
        [lines[0], *lines[2:]],
        [lines[0], lines[0], *lines[1:]],
        lines[::-1],
    ):
        path.write_bytes(head + b"".join(forged))
        with pytest.raises(DataError, match="a line before it was taken out"):
            photos_of(path)


def test_lines_of_0_3_are_read_and_new_ones_follow_them(tmp_path):
    path = tmp_path / "log.jsonl"
    AnswerLog(path).append([*said("a", "b"), Note("list", {"seed": 1})])
    bodies = [raw[: raw.index(b', "sum"')] + b"}" for raw in path.read_bytes().splitlines()[1:]]
    old = b"".join(b[:-1] + b', "sum": "%08x"}\n' % zlib.crc32(b) for b in bodies)
    path.write_bytes(HEADER + old)
    AnswerLog(path).append(said("c"))
    AnswerLog(path).append(said("d"))
    assert [line.photo for line in AnswerLog(path).lines() if hasattr(line, "photo")] == [*"abcd"]
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*content[:4], *content[5:]]))
    with pytest.raises(DataError, match=r"line 5.*taken out"):
        AnswerLog(path).lines()


@pytest.mark.parametrize(
    "body", ['{"note": []}', '{"note": {"a": 1}}', '{"note": null}', "[1]", "3"]
)
def test_forged_lines_end_in_one_sentence(tmp_path, body):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        HEADER + body.encode()[:-1] + b', "sum": "%08x"}\n' % zlib.crc32(body.encode())
    )
    with pytest.raises(DataError, match="line 2: this line is not as labelwise wrote it"):
        AnswerLog(path).lines()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((word, "yes") for word in (" Ja ", "oui", "si", "sí", "si\N{COMBINING ACUTE ACCENT}")),
        *((word, "no") for word in ("NEIN", "non", "FALSE")),
        *((word, "unsure") for word in ("?", "d", "u")),
    ],
)
def test_people_answer_in_their_language(text, answer):
    assert answer_of(text) == answer
    with pytest.raises(DataError, match="line 2: the answer must be yes, no or unsure, got x"):
        answer_of("x", "line 2")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_spreadsheet_separates_cells_in_its_own_way(tmp_path, separator):
    rows = [["path", "answer", "note"], ["größe, neu;1.jpg", "ja", "a,b"], ["b.jpg", "", ""]]
    with (tmp_path / "answers.csv").open("w", encoding="utf-8-sig", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows(rows)
    assert read_answers(tmp_path / "answers.csv") == {"größe, neu;1.jpg": "yes"}


def test_a_file_that_is_too_large_for_a_log_is_not_read(tmp_path):
    """A terabyte of nothing, which no memory holds: neither its lines are read nor its end."""
    path = tmp_path / "answers.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)
    for use in (lambda log: log.lines(), lambda log: log.append([])):
        with pytest.raises(
            DataError, match=r"answers\.jsonl must have at most 2,147,483,648 bytes"
        ):
            use(AnswerLog(path))

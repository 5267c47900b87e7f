"""Answers as they come. Oracle: what was said, and the label table as labelwise itself reads it."""

import pytest
from words_setup import photo

from labelwise.data import load
from labelwise.errors import LabelwiseError
from labelwise.photos.words import AnswerLog, asking_order

WORDS = ("dog", "cat")


def save_photo(path):
    photo("red", 0).save(path)
    return path


def test_answers_become_a_label_table_and_stay(tmp_path):
    photos = [str(save_photo(tmp_path / f"{n}.png")) for n in range(4)]
    with AnswerLog(tmp_path / "answers.csv", WORDS) as log:
        log.add("dog", {photos[0]: "present", photos[1]: "absent", photos[2]: "unsure"}, "ada")
        log.add("cat", {photos[0]: "absent"}, "ada")
        log.add("dog", {photos[1]: "present"}, "ben")  # they disagree
        log.add("dog", {photos[3]: "present"}, "ben")
        log.add("dog", {photos[3]: "withdrawn"}, "ben")
    with AnswerLog(tmp_path / "answers.csv", WORDS) as log:
        assert log.answered == 3
        dog = log.tallies()["dog"]
        assert (dog.yes, dog.no, dog.unsure, dog.disagreed) == (1, 0, 1, 1)
        assert not log.is_answered(photos[3], "dog")
        log.add("dog", {photos[1]: "absent"}, "ben")  # now they agree
    table = load(str(tmp_path / "answers.csv"))
    assert table.space.names == WORDS
    assert [str(one) for one in table.ids] == photos[:2]
    labels, observed = table.targets()
    assert labels.tolist() == [[1, 0], [0, 0]]
    assert observed.tolist() == [[True, True], [True, False]]


def test_answers_to_words_of_before_stay_in_the_table(tmp_path):
    one = str(save_photo(tmp_path / "a.png"))
    with AnswerLog(tmp_path / "answers.csv", ("dog",)) as log:
        log.add("dog", {one: "present"}, "ada")
    with AnswerLog(tmp_path / "answers.csv", ("cat",)) as log:
        log.add("cat", {one: "absent"}, "ada")
        assert list(log.tallies()) == ["cat"]
    table = load(str(tmp_path / "answers.csv"))
    assert table.space.names == ("cat", "dog")
    assert table.targets()[0].tolist() == [[0, 1]]


def test_a_line_that_was_cut_off_is_dropped_and_others_are_not(tmp_path):
    with AnswerLog(tmp_path / "answers.csv", WORDS) as log:
        log.add("dog", {"a": "present", "b": "absent"}, "ada")
    lines = tmp_path / "answers.jsonl"
    lines.write_bytes(lines.read_bytes() + b'{"photo": "c", "la')
    with AnswerLog(tmp_path / "answers.csv", WORDS) as log:
        assert log.answered == 2
        log.add("dog", {"d": "present"}, "ada")
    with AnswerLog(tmp_path / "answers.csv", WORDS) as log:
        assert log.answered == 3
    for wrong in (b"[]\n", b'{"photo": "a"}\n', b"x\n"):
        broken = lines.read_bytes() + wrong
        (tmp_path / "broken.jsonl").write_bytes(broken)
        with pytest.raises(LabelwiseError, match="line 4: this is not an answer"):
            AnswerLog(tmp_path / "broken.csv", WORDS)
        assert (tmp_path / "broken.jsonl").read_bytes() == broken


def test_two_servers_cannot_keep_one_file(tmp_path):
    with (
        AnswerLog(tmp_path / "answers.csv", WORDS),
        pytest.raises(LabelwiseError, match="another server keeps its answers"),
    ):
        AnswerLog(tmp_path / "answers.csv", WORDS)
    AnswerLog(tmp_path / "answers.csv", WORDS).close()
    with pytest.raises(LabelwiseError, match=r"kept in a \.csv file"):
        AnswerLog(tmp_path / "answers.parquet", WORDS)


def test_each_word_has_its_own_random_order(tmp_path):
    photos = [str(n) for n in range(200)]
    dog, cat = asking_order("dog", photos), asking_order("cat", photos)
    assert sorted(dog) == sorted(photos)
    assert dog == asking_order("dog", reversed(photos))
    assert dog not in (cat, photos)
    early = sum(int(one) < 100 for one in dog[:100])
    assert 30 < early < 70  # both halves of the names are asked about from the start

"""Lists of words. Oracle: the lines as they are written, and the sentence for each wrong one."""

import pytest

from labelwise.answers.agreement import write_table
from labelwise.data import load
from labelwise.data.columns import MEANINGS, PATH_HEADERS
from labelwise.errors import DataError
from labelwise.photos.words import Word, WordList

LINES = """# animals
pet
dog: a dog, a puppy; pet

cat; pet
red bicycle
"""


def test_lines_are_read_as_the_help_says(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text(LINES, encoding="utf-8")
    words = WordList.read(file)
    assert words.words == (
        Word("pet", ("a photo of a pet", "pet")),
        Word("dog", ("a dog", "a puppy"), "pet"),
        Word("cat", ("a photo of a cat", "cat"), "pet"),
        Word("red bicycle", ("a photo of a red bicycle", "red bicycle")),
    )
    assert words.taxonomy is not None
    assert dict(words.taxonomy.parents) == {"dog": "pet", "cat": "pet"}
    again = tmp_path / "again.txt"
    again.write_text(words.text(), encoding="utf-8")
    assert WordList.read(again).words == words.words


TAKEN = (
    "'group' already means something as a column of the tables that answers are kept in; "
    "name the word otherwise, as in 'a group: a photo of a group, group'"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there are no words; write one per line"),
        ("# only a comment\n", "there are no words"),
        ("Dog\ndog\n", "'dog' and 'Dog' are the same word"),
        ("dog; pet\n", "'dog' is a kind of 'pet', which is not one of the words"),
        ("dog:\n", "line 1: after the colon of 'dog'"),
        ("cat\ndog;\n", "line 2: after the semicolon must come one word"),
        (": a dog\n", "line 1: a line must start with a word"),
        ("dog; cat\ncat; dog\n", "dog"),
        ("cat\ndog, car, sea\n", "line 2: a word must have no comma, got 'dog, car, sea'; write"),
        ("cat\n" + "x" * 201, "line 2: a word may have 200 letters, got 201 ('xxx"),
        ("dog\ta dog\n", r"line 1: a line must have no tabs or control characters"),
        ("dog: a\x00b\n", r"got 'dog: a\\x00b'; write one word per line"),
        ('"red dog"\n', "line 1: a word must have no quotation marks, got '\"red dog\"'"),
        ("cafe\u0301\ncaf\u00e9\n", "are the same word"),  # an accent by itself, and within
        ("dog\ngroup\n", TAKEN),
        ("\n".join(f"word{n}" for n in range(1001)), "may have 1,000 words, got 1,001"),
    ],
)
def test_wrong_lists_are_refused_with_the_way_out(tmp_path, text, sentence):
    file = tmp_path / "words.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        WordList.read(file)
    assert sentence in str(error.value)


def test_lists_of_windows_and_of_other_scripts_are_read(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes(b"\xef\xbb\xbfdog\r\n\r\ncat:\ta cat\t\r\n")
    assert WordList.read(file).words == (
        Word("dog", ("a photo of a dog", "dog")),
        Word("cat", ("a cat",)),
    )
    joined = "می‌خواهم"  # two parts of a Persian word, which a sign without width keeps apart
    file.write_text(f"{joined}\n犬\n", encoding="utf-8")
    assert WordList.read(file).names == (joined, "犬")


def test_files_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes(b"d\xfcrr\n")
    with pytest.raises(DataError, match="in UTF-8, and byte 2 is not; save it as UTF-8"):
        WordList.read(file)
    with pytest.raises(DataError, match="cannot be read"):
        WordList.read(tmp_path)
    with pytest.raises(DataError, match="there is no such file"):
        WordList.read(tmp_path / "none.txt")


@pytest.mark.parametrize("name", [*MEANINGS, *PATH_HEADERS, "Path", "GROUP", "Id", "=dog", "a, b"])
def test_a_word_is_refused_unless_the_table_of_its_answers_comes_back(tmp_path, name):
    table = tmp_path / "answers.csv"
    said = {f"{number}.png": {name: number > 1, "red": True} for number in range(3)}
    for photo in said:
        (tmp_path / photo).write_bytes(b"")
    for aside in (None, {"1.png"}):
        write_table(table, (name, "red"), said, aside)
        try:
            read = load(str(table))
            comes_back = read.space.names == (name, "red")
            comes_back = comes_back and read.targets()[0][:, 0].tolist() == [0, 0, 1]
        except DataError:
            comes_back = False
        if comes_back:
            assert WordList.of(name, "red").names == (name, "red")
        else:
            with pytest.raises(DataError, match="name the word otherwise"):
                WordList.of(name, "red")

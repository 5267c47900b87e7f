"""Tables as people write them, read as a person would. Oracle: what their writers say is right."""

import re

import pytest
from corpus_runner import AFTER_ONE, AT_ONCE, CRASH, MUTE, WRONG, run, shares
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import states

from labelwise.errors import QuestionError
from labelwise.tables import load


def test_no_table_of_the_corpus_is_misread():
    judged = run()
    bad = {case["name"]: outcome for case, outcome in judged if outcome.kind in (WRONG, CRASH)}
    assert not bad
    assert not [case["name"] for case, outcome in judged if outcome.kind == MUTE]
    asked = [outcome.kind for case, outcome in judged if case["is"] == "ask"]
    assert asked.count(AFTER_ONE) == len(asked)
    assert AT_ONCE not in asked
    at_once, after_one = shares(judged)
    assert at_once >= 0.8
    assert after_one >= 0.97


LABELS = ("dog", "cat", "sea", "hot dog", "bird")
WORDS = (("1", "0"), ("x", "-"), ("X", ""), ("ja", "nein"), ("oui", "non"), ("TRUE", "FALSE"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from(LABELS)), min_size=2, max_size=8),
    st.sampled_from([";", ",", "\t"]),
    st.sampled_from([*WORDS, "|", ";", ", ", "/", " and ", "+", "list"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
)
def test_any_table_comes_back_equal_or_is_asked_about(tmp_path_factory, rows, comma, form, code):
    """Oracle: the sets of labels that the table was written from."""
    names = sorted(set().union(*rows))
    if isinstance(form, tuple):
        head = ["path", *names]
        body = [[form[name not in row] for name in names] for row in rows]
    else:
        head = ["path", "labels"]
        lists = [sorted(row) for row in rows]
        body = [[repr(cells) if form == "list" else form.join(cells)] for cells in lists]
    lines = [head, *([f"{n}.jpg", *cells] for n, cells in enumerate(body))]
    text = "\r\n".join(comma.join(f'"{cell}"' for cell in line) for line in lines)
    file = tmp_path_factory.mktemp("any") / "t.csv"
    file.write_bytes(f"{text}\r\n".encode(code))
    wanted = ["".join("01"[name in row] for name in names) for row in rows]
    if not names:
        return
    try:
        table = load(file, check_files=False)
    except QuestionError:
        return
    assert (list(table.space.names), states(table)) == (names, wanted)


@pytest.mark.parametrize("cell", ["?", "none", "2", "Dog"])
def test_each_remedy_is_shown_with_the_labels_it_gives(folder, cell):
    file = folder.text("t.csv", f"path,labels\na.jpg,dog\nb.jpg,{cell}\nc.jpg,dog|cat\n")
    if cell == "2":
        file = folder.text("t.csv", "path,dog,cat\na.jpg,1,0\nb.jpg,2,0\nc.jpg,1,1\n")
    with pytest.raises(QuestionError) as caught:
        load(file, check_files=False)
    first, *ways = str(caught.value).split("\n")
    assert first.startswith(f"t.csv: the table can be read in {len(ways)} ways")
    assert all(re.search(r"a\.jpg = dog; b\.jpg = .*: `--set .*`$", way) for way in ways)

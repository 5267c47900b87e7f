"""Tables as people write them, read as a person would. Oracle: what their writers say is right."""

import json
import re
import shlex

import pytest
from corpus_runner import AFTER_ONE, AT_ONCE, CRASH, MUTE, WRONG, run, shares
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import states
from typed import run as run_verb

from labelwise.base.yaml_values import read_yaml
from labelwise.errors import DataError, QuestionError
from labelwise.tables import describe, export, load, open_table, stratified_split


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
MORE_WORDS = (("PRAVDA", "NEPRAVDA"), ("1,00", "0,00"), ("100 %", "0 %"), ("S", "N"), ("P", "A"))
WRITTEN = {
    "python": repr,
    "set": lambda cells: repr(set(cells)),
    "json": json.dumps,
    "objects": lambda cells: json.dumps([{"label": cell} for cell in cells]),
    "choices": lambda cells: json.dumps({"choices": cells}),
    "numpy": lambda cells: f"array({cells!r}, dtype=object)",
}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from(LABELS)), min_size=2, max_size=8),
    st.sampled_from([";", ",", "\t"]),
    st.sampled_from(
        [*WORDS, *MORE_WORDS, "|", ";", ", ", "/", " and ", "+", "<br>", ";#", "columns", *WRITTEN]
    ),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
)
def test_any_table_comes_back_equal_or_is_asked_about(tmp_path_factory, rows, comma, form, code):
    """Oracle: the sets of labels that the table was written from."""
    names = sorted(set().union(*rows))
    if isinstance(form, tuple):
        head = ["path", *names]
        body = [[form[name not in row] for name in names] for row in rows]
    elif form == "columns":
        head = ["path", *(f"label_{n}" for n in range(1, len(LABELS) + 1))]
        body = [[*sorted(row), *[""] * (len(LABELS) - len(row))] for row in rows]
    else:
        head = ["path", "labels"]
        written = WRITTEN.get(form, form.join)
        body = [[written(sorted(row))] for row in rows]
    lines = [head, *([f"{n}.jpg", *cells] for n, cells in enumerate(body))]
    quoted = ([cell.replace('"', '""') for cell in line] for line in lines)
    text = "\r\n".join(comma.join(f'"{cell}"' for cell in line) for line in quoted)
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


def rows_of(table):
    pairs = zip(table.ids, range(len(table)), strict=True)
    return {name: {table.space.names[k] for k in table.present.row(row)} for name, row in pairs}


def test_rows_of_one_photo_are_joined(folder):
    """Oracle: the sets by hand; a label that one row knows to be absent is known."""
    file = folder.text("t.csv", "path,label\na.jpg,dog\nb.jpg,cat\na.jpg,cat\n")
    with pytest.raises(DataError, match="`--duplicates join`"):
        load(file, check_files=False)
    table = load(file, check_files=False, duplicates="join")
    assert rows_of(table) == {"a.jpg": {"dog", "cat"}, "b.jpg": {"cat"}}
    hot = folder.text("h.csv", "path,dog,cat\na.jpg,1,\na.jpg,,0\nb.jpg,,\n")
    assert states(load(hot, check_files=False, duplicates="join")) == ["10", "??"]


@pytest.mark.parametrize(
    ("sites", "parts"), [(5, "train val test"), (3, "train val test"), (2, "")]
)
def test_a_split_by_groups_has_every_part_or_says_why_not(folder, sites, parts):
    lines = [f"{n}.jpg,dog|l{n % 3},site {n % sites}" for n in range(30)]
    file = folder.text("t.csv", "\n".join(["path,labels,group", *lines]))
    table = load(file, check_files=False)
    if not parts:
        with pytest.raises(DataError, match=r"2 groups cannot be divided into 3 parts.*--shares"):
            stratified_split(table, by_content=False)
        return
    made = stratified_split(table, by_content=False)
    assert [*made.split_sizes()] == parts.split()
    assert len({*zip(made.group, made.split.tolist(), strict=True)}) == sites


def test_a_folder_with_a_table_of_labels_is_asked_about(folder):
    """Oracle: the labels of the table, which are not the names of the folders."""
    folder.pictures("photos/a.png", "new/b.png")
    file = folder.text("labels.csv", "path,labels\nphotos/a.png,dog\nnew/b.png,cat\n")
    with pytest.raises(DataError, match=r"labels\.csv`, or `folder:.* for the folders"):
        load(file.parent)
    assert set(load(file).space.names) == {"dog", "cat"}
    assert set(load(f"folder:{file.parent}").space.names) == {"photos", "new"}


def test_one_photo_by_two_paths_is_noticed(folder):
    """Oracle: the links by hand."""
    folder.pictures("a.jpg", "b.jpg")
    (folder.path / "link.jpg").symlink_to(folder.path / "a.jpg")
    file = folder.text("t.csv", f"path,labels\na.jpg,dog\nb.jpg,cat\n{folder.path}/a.jpg,cat\n")
    with pytest.raises(DataError, match=r"'a.jpg' and '/.*/a.jpg' are one file, with different"):
        load(file)
    file = folder.text("t.csv", "path,labels\na.jpg,dog\nb.jpg,cat\nlink.jpg,dog\n")
    assert "1 photo named by two paths, such as 'a.jpg' and 'link.jpg'" in load(file).notes


def test_a_table_that_labelwise_wrote_with_yes_alone_is_read_again(folder):
    file = folder.text("t.csv", 'path,"a, b",cat\na.jpg,1,\nb.jpg,,1\n')
    table = load(file, check_files=False, means_unknown=[""])
    assert states(table) == ["1?", "?1"]
    again = folder.path / "again.csv"
    export(table, again)
    assert states(load(again, check_files=False)) == ["1?", "?1"]


def test_open_table_reads_every_view_alike(folder):
    """Oracle: what was written, as a German Excel saves it."""
    scored = "id;score:Hund;label:Hund\r\na.jpg;0,5;1\r\nb.jpg;0,25;0\r\n"
    (folder.path / "s.csv").write_bytes(scored.encode("utf-16"))
    table = open_table(folder.path / "s.csv")
    assert table.holds == "scores"
    assert table.scores().scores.ravel().tolist() == [0.5, 0.25]
    rows = "Photo;Tag;Score\na.jpg;Hündin;0,5\nb.jpg;Hündin;0,75\n"
    tagged = folder.text("t.csv", rows.encode("cp1252"))
    tags = open_table(tagged).tags()
    assert (tags.tags, tags.scores[0].tolist()) == (("Hündin",), [0.5, 0.75])
    assert "not UTF-8" in " ".join(tags.notes)
    votes = "photo;label;worker;answer\na.jpg;Hund;eva;ja\na.jpg;Hund;uli;nein\n"
    table = open_table(folder.text("v.csv", votes.encode("utf-8-sig")))
    assert table.holds == "votes"
    assert table.votes().answer.tolist() == [1, 0]
    with pytest.raises(DataError, match="there are no columns 'score:NAME'"):
        table.scores()
    labels = open_table(
        folder.text("l.csv", "Datei;Hund\na.jpg;ja\nb.jpg;nein\n"), check_files=False
    )
    assert (labels.holds, states(labels.labels())) == ("labels", ["1", "0"])


def test_a_label_without_training_photos_is_named(folder):
    file = folder.text("t.csv", "path,labels,split\na.jpg,dog,train\nb.jpg,cat,test\n")
    table = load(file, check_files=False)
    assert "no photo in train has the label 'cat': a model cannot learn it" in describe(table).notes


def test_the_settings_that_describe_writes_say_how_the_file_is_written(folder):
    """Oracle: the labels that the file was written from."""
    folder.pictures("a.jpg", "b.jpg")
    file, settings = folder.path / "t.csv", folder.path / "s.yaml"
    file.write_bytes("path,labels\na.jpg,σκύλος\nb.jpg,γάτα\n".encode("cp1253"))
    run_verb("data", "describe", file, "--set", "encoding=cp1253", "--settings", settings)
    again = load(file, **read_yaml(settings)["data_options"])
    assert list(again.space.names) == ["γάτα", "σκύλος"]


def test_the_settings_that_describe_writes_reproduce_the_reading(folder):
    folder.pictures("a.jpg", "b.jpg", "c.jpg")
    text = "Datei;Arten;Ort\na.jpg;Fuchs/Reh;x\nb.jpg;?;y\nc.jpg;Reh;z\nc.jpg;Reh;z\n"
    file = folder.text("t.csv", text)
    settings, how = folder.path / "s.yaml", ["--set", 'means_unknown=["?"]', "--set", "separator=/"]
    shown = run_verb("data", "describe", file, *how, "--duplicates", "drop", "--settings", settings)
    assert shown.exit_code == 0, shown.exception
    again = load(file, **read_yaml(settings)["data_options"])
    assert states(again) == ["11", "??", "01"]
    told = re.search("Next: labelwise (data split .*)", shown.output)[1]
    out = folder.path / "split.csv"
    words = [str(out) if word == "split.csv" else word for word in shlex.split(told)]
    result = run_verb(*words, "--shares", "train=.5,test=.5")
    assert result.exit_code == 0, result.exception

"""Tables as people bring them, and what would be misread. Oracles: files whose meaning is known."""

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typed
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import Folder, jpeg, states

from labelwise.base.names import Names
from labelwise.base.yaml_values import nested, parse_assignments
from labelwise.errors import DataError, QuestionError, SettingsError
from labelwise.tables import describe, find_unreadable, fingerprint, load, with_validation
from labelwise.tables.checks import without_unreadable
from labelwise.tables.columns import written_list
from labelwise.tables.generated import posterior


def run(*words):
    return typed.run("data", *words)


def described(*words):
    return json.loads(typed.must_run("data", "describe", *words, "--json").output)


def problem(table, *options):
    return str(run("describe", table, *options).exception)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.txt", "path\tlabels\na.jpg\tx|y\nb.jpg\ty\n"),
        ("t.txt", "path;labels\na.jpg;x|y\nb.jpg;y\n"),
        ("t.txt", "path,labels\na.jpg,x|y\nb.jpg,y\n"),
        ("t.csv", "path,labels\na.jpg,\"['x', 'y']\"\nb.jpg,['y']\n"),
        ("t.tsv", 'path\tlabels\na.jpg\t["x", "y"]\nb.jpg\t["y"]\n'),
        ("t.csv", "\ufeffsep=;\r\npath;labels\r\na.jpg;x|y\r\nb.jpg;y\r\n"),  # of Excel
        ("t.csv", "SEP=,\npath,labels\na.jpg,x|y\nb.jpg,y\n"),
        ("t.csv", b'\xef\xbb\xbfpath,labels\r\n"a.jpg","x|y "\r\n\r\nb.jpg,y\r\n'),
    ],
)
def test_tables_that_need_no_option(folder, name, text):
    folder.pictures("a.jpg", "b.jpg")
    assert load(folder.text(name, text)).targets()[0].tolist() == [[1, 1], [0, 1]]


def test_two_delimiters_in_a_header_and_a_broken_workbook_are_said(folder):
    table = folder.text("x.txt", "path,a;b\na.jpg,1;2\n")
    assert "separated by ',' or ';'" in problem(table)
    assert "a zip file, and no table" in problem(folder.text("t.XLSX", b"PK\x03\x04"))


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=4))
def test_written_lists_are_those_of_python_and_json(words):
    assert written_list(repr(words)) == ast.literal_eval(repr(words)) == words
    assert written_list(json.dumps(words, ensure_ascii=False)) == words


@pytest.mark.filterwarnings("ignore")  # of escapes that mean themselves
@settings(max_examples=30)
@given(st.text("[]'\",\\ abx\n0", max_size=12))
def test_any_text_is_a_list_only_if_python_says_so(text):
    found = written_list(f"[{text}]")
    assert found is None or ast.literal_eval(f"[{text}]") == found


@pytest.mark.parametrize("cell", ["['a', 1]", "[\"a', 'b']", "['a'"])
def test_a_broken_written_list_names_its_row(folder, cell):
    text = json.dumps({"path": "b.jpg", "labels": cell})
    file = folder.text("t.jsonl", f'{{"path": "a.jpg", "labels": "[\'x\']"}}\n{text}\n')
    with pytest.raises(DataError, match=r"t\.jsonl, row 2: .*quoted names"):
        load(file, check_files=False)


def test_extension_and_subfolders(folder):
    folder.pictures("photos/2024/a.jpg", "photos/2025/b.jpg")
    table = folder.text("t.csv", "path,labels\na,x\nb.jpg,y\n")
    assert "2 of 2 images are missing" in problem(table)
    assert "`--extension .jpg`" in problem(folder.text("bare.csv", "path,labels\nx,x\n"))
    named = load(folder.text("bare.csv", "path,labels\na,x\n"))
    assert named.notes[0] == "the names of photos get the suffix .jpg"
    found = load(table, extension=".jpg")
    assert list(found.ids) == ["photos/2024/a.jpg", "photos/2025/b.jpg"]
    assert found.notes == (f"2 images were found by name in folders below {folder.path}",)
    folder.pictures("other/a.jpg")
    assert "images are missing" in problem(table, "--extension", ".jpg")


def test_the_one_folder_that_holds_all_photos_is_named(folder):
    folder.pictures("my photos/a.jpg", "my photos/b.jpg", "copies/a.jpg")
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n")
    holder = folder.path / "my photos"
    assert f"{holder} holds them all: give `--set 'root={holder}'`" in problem(table)
    assert described(table, "--set", f"root={holder}")["images"] == 2
    folder.pictures("copies/b.jpg")
    assert "`--set root=FOLDER`" in problem(table)


def test_names_alike_but_for_case_or_the_bytes_of_an_umlaut_are_found(folder):
    folder.pictures("Photos/a.jpg", "Photos/Mu\u0308ller.JPG", "b.jpg", "c.jpg", "C.JPG")
    rows = "photos/a.JPG,x\nphotos/M\u00fcller.jpg,y\nb.jpg,\n"
    table = folder.text("t.csv", "path,labels\n" + rows)
    note = "2 paths found under a name of other case, or with accents that are stored otherwise"
    assert load(table).notes == (note,)
    assert list(load(table).ids) == ["Photos/a.jpg", "Photos/Mu\u0308ller.JPG", "b.jpg"]
    for two in ("c.Jpg,x\n", "B.jpg,x\n"):  # two files could be meant, or one twice
        odd = folder.text("u.csv", "path,labels\nb.jpg,x\n" + two)
        assert "1 of 2 images is missing" in problem(odd)


def test_duplicate_rows(folder):
    folder.pictures("a.jpg", "b.jpg")
    same = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n./a.jpg,x\n")
    assert "`--duplicates drop`" in problem(same)
    dropped = described(same, "--duplicates", "drop")
    assert (dropped["images"], dropped["notes"]) == (2, ["repeated rows: 1, dropped"])
    assert described(same, "--duplicates", "keep")["images"] == 3
    other = folder.text("u.csv", "path,labels\na.jpg,x\na.jpg,y\n")
    for choice in ("stop", "drop", "keep"):
        assert "with different labels; if each row" in problem(other, "--duplicates", choice)


def test_broken_photos_are_named(folder):
    folder.pictures("a.jpg", "b.jpg", "c.jpg")
    folder.text("b.jpg", jpeg(1)[:-20])
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\nc.jpg,\n")
    told = typed.must_run("data", "describe", table, "--content").output
    assert "images that cannot be read: 1 of 3" in told
    assert "b.jpg: the image cannot be read (image file is truncated" in told
    assert "1 image cannot be read" in problem(table, "--content", "--strict")
    whole = load(table)
    found = find_unreadable(whole)
    kept = without_unreadable(whole, found, on_error="skip")
    assert list(kept.ids) == ["a.jpg", "c.jpg"]
    assert kept.notes[-1].startswith("left out: 1 of 3 images cannot be read")
    with pytest.raises(DataError, match="`--on-error skip`"):
        without_unreadable(whole, found, on_error="stop")


def test_split_keeps_the_split_there_is(folder):
    rows = [f"{n}.jpg,{'x' if n % 2 else 'y'},{'test' if n < 10 else 'train'}" for n in range(50)]
    folder.pictures(*(f"{n}.jpg" for n in range(50)))
    table = folder.text("t.csv", "\n".join(["path,labels,split", *rows]))
    words = ("split", table, "-o", folder.path / "out.csv")
    assert "has a split already (train 40, test 10)" in str(run(*words).exception)
    assert not (folder.path / "out.csv").exists()
    assert run(*words, "--val", "0.1").exit_code == 0
    made = load(folder.path / "out.csv")
    assert made.split_sizes() == {"train": 36, "val": 4, "test": 10}
    assert set(load(table).split[made.split == "test"]) == {"test"}
    again = run("split", folder.path / "out.csv", *words[2:], "--val", "0.1")
    assert "val split already" in str(again.exception)
    assert run(*words, "--val", ".1", "--shares", "train=1").exit_code
    assert run(*words, "--shares", "train=.5,test=.5").exit_code == 0
    assert load(folder.path / "out.csv").split_sizes() == {"train": 25, "test": 25}


def test_validation_for_a_table_that_has_none():
    table = posterior(200, 0, 40).table
    given_val = with_validation(table, share=0.2)
    assert given_val.split_sizes() == {"train": 160, "val": 40, "test": 40}
    assert given_val.notes == ("40 of 200 training images became validation, there was none",)
    assert with_validation(given_val) is given_val
    plain = replace(table, split=None)
    assert with_validation(plain, share=0.25).split_sizes()["val"] == 60
    with pytest.raises(SettingsError, match="between 0 and 1"):
        with_validation(table, share=1.0)
    grouped = replace(plain, group=Names([f"patient{n // 6}" for n in range(240)]))
    held = with_validation(grouped, share=0.2)
    assert len(set(zip(grouped.group, held.split.tolist(), strict=True))) == 40
    assert set(held.split) == {"train", "val"}


def test_a_fingerprint_is_of_the_content(tmp_path):
    one, two = Folder(tmp_path / "one"), Folder(tmp_path / "two")

    def printed(folder, text, name="t.csv"):
        folder.pictures("a.jpg", "b.jpg")
        return fingerprint(load(folder.text(name, text)))

    text = "path,labels\na.jpg,x\nb.jpg,y|x\n"
    rows = '{"path": "a.jpg", "labels": ["x"]}\n{"path": "b.jpg", "labels": ["x", "y"]}\n'
    first = printed(one, text)
    assert printed(two, text) == printed(two, rows, "u.jsonl") == first
    changed = (
        *("path,labels\na.jpg,x\nb.jpg,y\n", "path,labels\nb.jpg,y|x\na.jpg,x\n"),
        "path,labels,split\na.jpg,x,train\nb.jpg,y|x,val\n",
        "path,labels,unknown\na.jpg,x,y\nb.jpg,y|x,\n",
    )
    found = {first, *(printed(two, other) for other in changed)}
    one.text("b.jpg", jpeg(1) + b"\0")
    assert len(found | {fingerprint(load(one.text("t.csv", text)))}) == 6


def test_options_of_the_wrong_type_are_one_sentence(folder):
    file = folder.text("t.csv", "path,labels\na.jpg,x\n")
    for option in ("separator=3", "columns=3", "ignore.x=1", "root=1", "delimiter=ab", "names=1"):
        told = run("describe", file, "--set", option).exception
        assert isinstance(told, SettingsError | DataError), option


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table of photos that are there."""

    def write(lines, header="path,labels"):
        folder = Folder(tmp_path)
        folder.pictures(*(f"{number}.png" for number in range(len(lines))))
        rows = [f"{number}.png,{cell}" for number, cell in enumerate(lines)]
        return folder.text("photos.csv", "\n".join([header, *rows, ""]))

    return write


def told(pattern, question):
    """Return the options of the command that an error proposes."""
    (typed,) = re.findall(pattern, str(question))
    return nested(parse_assignments(word for word in shlex.split(typed) if word != "--set"))


@pytest.mark.parametrize(
    "cells",
    [
        ["dog", "beach", "dog beach", ""],
        ["a b", "b c", "c a"],
        ["dog kite", "dog", "cat", "cat dog sofa", "cat oven"],  # a long tail
    ],
)
def test_blanks_between_labels_are_asked_about(table, cells):
    file = table(cells)
    sentence = "separated by a blank: .*`--set 'separator= '`\n.*one label in each cell: .*"
    with pytest.raises(QuestionError, match=f"(?s){sentence}`--set 'separator=|'`"):
        load(file)
    parted = load(file, separator=" ")
    assert list(parted.space.names) == sorted({word for cell in cells for word in cell.split()})
    whole = load(file, separator="|")
    assert list(whole.space.names) == sorted({cell for cell in cells if cell})


@pytest.mark.parametrize(
    "cells",
    [
        ["hot dog", "dog", "traffic light", "stop sign"],  # words that are no other label
        ["dog beach|dog", "beach", "dog"],  # what parts labels is there
        ["dog", "cat", "teddy bear", "bear", "fire hydrant"],
        ["gull", "tern", "herring gull", "little tern", "arctic fox", "red kite", "hen harrier"],
    ],
)
def test_names_with_blanks_are_names(table, cells):
    names = sorted({name for cell in cells for name in cell.split("|")})
    assert list(load(table(cells)).space.names) == names


def test_numbers_and_labels_that_stand_alone_too_are_separated_by_blanks(table):
    for cells in (["1 3", "13", "2", "1 2", "3"], ["a b", "b c", "a", "b", "c"]):
        read = load(table(cells))
        assert list(read.space.names) == sorted({word for cell in cells for word in cell.split()})
        assert read.notes == ("labels are separated by a blank",)


def test_a_name_that_holds_another_is_noted(table):
    """Of one such name nobody can say whether it is "hot dog" or dogs on a beach."""
    file = table(["dog beach", "cat", "dog"])
    assert list(load(file).space.names) == ["cat", "dog", "dog beach"]
    (note,) = load(file).notes
    assert note.startswith("'dog beach' is read as one label, and 'dog' as another; give `--set")
    assert list(load(file, separator=" ").space.names) == ["beach", "cat", "dog"]
    assert not load(file, separator="|").notes
    assert not load(table(["traffic light", "cat"])).notes


def test_numbers_are_not_two_spellings_of_one_label(table):
    for cells, count in ((["1 3", "13", "1-3"], 0), (["hot dog", "hot-dog"], 1)):
        notes = describe(load(table(cells), separator="|")).notes
        assert (
            sum("perhaps one label, spelled in two ways: 'hot" in note for note in notes) == count
        )


def test_every_stray_quote_is_named_by_its_line_and_can_be_left_out(table):
    """Two of them make an even number of quotes; a cell over two lines is none of them."""
    file = table(["dog", '"cat', "dog", '"a\nb"', "cat", 'x"y", z'])
    whole = re.escape('2 lines cannot be read as 2 cells, for a quote (") that is not closed or a ')
    with pytest.raises(DataError, match=whole) as caught:
        load(file)
    assert 'line 3: 1.png,"cat; line 8: 5.png,x"y", z. Put quotes' in str(caught.value)
    read = load(file, skip_broken=True, separator="|")
    assert list(read.ids) == ["0.png", "2.png", "3.png", "4.png"]
    assert read.space.names == ("a\nb", "cat", "dog")
    assert read.notes[0].startswith("left out: 2 lines cannot be read")
    whole = table(['"dog"', '12" disc', '"a ""b"" c"'])
    assert list(load(whole).space.names) == ['12" disc', 'a "b" c', "dog"]
    even = table(["dog", '"cat', "dog", 'cat"'])
    with pytest.raises(DataError, match=r'1 line .*: line 3: 1.png,"cat\. Put'):
        load(even)


def test_columns_with_usual_names_are_taken_and_named_or_may_be_others(table):
    for header, note in (
        (r"IMAGE\LABEL,labels", r"photos are in 'IMAGE\\LABEL'"),
        ("image_path,labels", "photos are in 'image_path'"),
        ("filename,Genre", "labels are named in 'Genre'"),
        ("Image Index,Finding Labels", "photos are in 'Image Index'"),
    ):
        read = load(table(["dog", "cat|dog"], header=header))
        assert read.space.names == ("cat", "dog")
        assert any(note in said for said in read.notes), read.notes
    read = load(table(["1,0", "0,1"], header="path,tags,dog"))
    assert (read.space.names, read.notes) == (("tags", "dog"), ())
    file = table(["7,dog", "8,cat"], header="id,Id,labels")
    with pytest.raises(QuestionError, match=r"(?s)photos in 'id'.*photos in 'Id'"):
        load(file)
    assert list(load(file, columns={"path": "id"}).ids) == ["0.png", "1.png"]


STRANGERS = {  # tables as people have them: the text, and what a row of each says
    "capitals": ("ImageID,Split,Dog,Score\n{0},train,1,.5\n{1},val,0,.7\n", ["Dog"], []),
    "findings": (
        "patientid,sex,finding,filename\n7,M,No Finding,{0}.png\n8,F,todo,{1}.png\n"
        "9,F,Viral,{2}.png\n",
        *([], []),
    ),
    "semicolons": ("IMAGE\\LABEL;sea;notes\n{0};1;fine, dry\n{1};0;ok\n", ["sea"], []),
    "numbers": ("Id,Target\n{0},1 2\n{1},0\n", ["1", "2"], ["0"]),
    "commas": ('shot,what\n{0}.png,"a,b"\n{1}.png,"b"\n{2}.png,"b"\n', ["a", "b"], ["b"]),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_table_takes_one_remedy_at_most(kind, tmp_path):
    text, first, second = STRANGERS[kind]
    names, folder = ["img0", "img1", "img2"], Folder(tmp_path)
    folder.pictures(*(f"pictures/{name}.png" for name in names))
    file = folder.text("t.csv", text.format(*names))
    try:
        read = load(file)
    except QuestionError as question:
        read = load(file, **told(r"1\. .*`(.*)`", question))
    rows = [[read.space.names[k] for k in read.present.row(row)] for row in range(len(read))]
    assert rows[:2] == [first, second]
    assert kind != "capitals" or read.split.tolist() == ["train", "val"]
    assert kind != "findings" or read.unlabelled().tolist() == [False, True, False]


def test_words_that_mean_none_or_unknown_are_asked_about(table):
    file = table(["dog", "No Finding", "todo", "Unknown", "-", "cat|todo"])
    with pytest.raises(QuestionError, match="'No Finding', '-' = none of the labels") as caught:
        load(file)
    read = load(file, **told(r"1\. .*`(.*)`", caught.value))
    assert read.space.names == ("cat", "dog")
    assert states(read) == ["01", "00", "??", "??", "00", "1?"]
    assert len(load(file, means_none=[]).space) == 6
    assert len(load(file, names=["dog", "cat", "No Finding", "todo", "Unknown", "-"]).space) == 6


def test_labels_can_be_paths_of_a_taxonomy(table):
    cells = ["Pneumonia/Viral/COVID-19", "Pneumonia/Bacterial|Pneumonia/Viral", "Edema/Viral"]
    read = load(table(cells), levels="/")
    names = "Bacterial COVID-19 Edema Edema/Viral Pneumonia Pneumonia/Viral"
    assert read.space.names == tuple(names.split())
    assert states(read) == ["010011", "100011", "001100"]


def test_a_label_of_several_words_stays_whole_where_a_bar_separates():
    table = load(Path(__file__).parents[2] / "open-photos" / "labels.csv")
    lines = (Path(__file__).parents[2] / "open-photos" / "README.md").read_text().split("\n")
    named = [line.split(" | ") for line in lines if line.count("|") == 5 and " / " in line][1:]
    expected = {cells[0].strip("| "): int(cells[2]) for cells in named}
    counts = table.targets()[0].sum(0).tolist()
    assert expected.pop("none") == 40
    assert dict(zip(table.space.names, counts, strict=True)) == expected

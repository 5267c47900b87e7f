"""Tables as newcomers bring them. Oracles: rows written by hand, ``ast.literal_eval`` for lists."""

import ast
import json
import warnings
from dataclasses import replace

import pytest
import typed
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import jpeg

from labelwise.data import find_unreadable, fingerprint, load, with_validation
from labelwise.data.checks import without_unreadable
from labelwise.data.columns import written_list
from labelwise.data.generated import scenes
from labelwise.errors import DataError, SettingsError
from labelwise.system.names import Names


def run(*words):
    return typed.run("data", *words)


def described(*words):
    result = run("describe", *words, "--json")
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(result.output)


def names(found):
    return [label["name"] for label in found["labels"]]


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
    ],
)
def test_tables_that_need_no_option(folder, name, text):
    folder.pictures("a.jpg", "b.jpg")
    table = load(folder.text(name, text))
    assert table.targets()[0].tolist() == [[1, 1], [0, 1]]


def test_the_marks_that_part_labels_and_columns(folder):
    folder.pictures("a.jpg", "b.jpg")
    for option, text in (
        ("'separator=,'", 'path,labels\na.jpg,"x,y"\nb.jpg,y\n'),
        ("'separator=;'", "path,labels\na.jpg,x;y\nb.jpg,y\n"),
        ("'delimiter=;'", "path;labels\na.jpg;x|y\nb.jpg;y\n"),
        ("delimiter=tab", "path\tlabels\na.jpg\tx|y\nb.jpg\ty\n"),
    ):
        table = folder.text("t.csv", text)
        assert f"`--set {option}`" in str(run("describe", table).exception)
        assert names(described(table, "--set", option.strip("'"))) == ["x", "y"]
    table = folder.text("x.txt", "path,a;b\na.jpg,1\n")
    assert "separated by ',' or ';'" in str(run("describe", table).exception)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=4))
def test_written_lists_are_those_of_python_and_json(words):
    assert written_list(repr(words)) == ast.literal_eval(repr(words)) == words
    assert written_list(json.dumps(words, ensure_ascii=False)) == words


@settings(max_examples=40, deadline=None)
@given(st.text("[]'\",\\ abx\n0", max_size=12))
def test_any_text_is_a_list_only_if_python_says_so(text):
    found = written_list(f"[{text}]")
    if found is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that mean themselves
            assert ast.literal_eval(f"[{text}]") == found


@pytest.mark.parametrize("cell", ["['a' 'b']", "['a', 1]", "[\"a', 'b']", "['a'"])
def test_a_broken_written_list_names_its_row(folder, cell):
    text = json.dumps({"path": "b.jpg", "labels": cell})
    file = folder.text("t.jsonl", f'{{"path": "a.jpg", "labels": "[\'x\']"}}\n{text}\n')
    with pytest.raises(DataError, match=r"t\.jsonl, row 2: .*quoted names"):
        load(file, check_files=False)


def test_extension_and_subfolders(folder):
    folder.pictures("photos/2024/a.jpg", "photos/2025/b.jpg")
    table = folder.text("t.csv", "path,labels\na,x\nb.jpg,y\n")
    problem = run("describe", table).exception
    assert "2 of 2 images are missing" in str(problem)
    bare = folder.text("bare.csv", "path,labels\na,x\n")
    assert "`--extension .jpg`" in str(run("describe", bare).exception)
    found = described(table, "--extension", ".jpg")
    assert found["images"] == 2
    assert found["notes"] == [f"2 images were found by name in folders below {folder.path}"]
    assert list(load(table, extension=".jpg").ids) == ["photos/2024/a.jpg", "photos/2025/b.jpg"]
    folder.pictures("other/a.jpg")
    assert "images are missing" in str(run("describe", table, "--extension", ".jpg").exception)


def test_the_one_folder_that_holds_all_photos_is_named(folder):
    folder.pictures("my photos/a.jpg", "my photos/b.jpg", "copies/a.jpg")
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n")
    problem = str(run("describe", table).exception)
    holder = folder.path / "my photos"
    assert f"{holder} holds them all: give `--set 'root={holder}'`" in problem
    assert described(table, "--set", f"root={holder}")["images"] == 2
    folder.pictures("copies/b.jpg")
    assert "`--set root=FOLDER`" in str(run("describe", table).exception)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a.jpg,x\nb.jpg,y\n", "the first line, which names the photo 'a.jpg', needs one with the"),
        ("path,x\na.jpg,1\nb.jpg,Yes\n", "got 'Yes'; write 1 for yes and 0 for no"),
        ("path,x\na.jpg,1\nb.jpg,dog\n", "got 'dog'; give `--set columns.labels=x` if it names"),
        ("path,x\na.jpg,1\nb.jpg,nein\n", "; write 1 and 0 if it means yes and no"),
        ("path,labels\ra.jpg,x\rb.jpg,y\r", "lines end with a carriage return alone"),
        ("path,labels\na.jpg,x\nb.jpg,y,x\n", "1 line cannot be read as 2 cells"),
        ("sep=;\npath;labels\na.jpg;x;\n", "too many: line 3: a.jpg;x;. Put"),
        ("path,x\na.jpg,0.5\n", "or give `--set soft=true` if it is a soft label"),
        ("shot,labels\na.jpg,x\n", "or one given as `--set columns.path=NAME`; got 'shot'"),
    ],
)
def test_tables_that_need_a_line_or_a_number_say_so(folder, text, sentence):
    folder.pictures("a.jpg", "b.jpg")
    assert sentence in str(run("describe", folder.text("t.csv", text)).exception)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_table_of_two_bytes_a_character_is_named(folder, encoding):
    table = folder.text("t.csv", "path,labels\na.jpg,x\n".encode(encoding))
    assert "the file must be UTF-8 text; save it as UTF-8" in str(run("describe", table).exception)


def test_a_spreadsheet_is_to_be_saved_as_csv(folder):
    sheet = folder.text("photos.XLSX", b"PK\x03\x04")
    assert "save the sheet as CSV" in str(run("describe", sheet).exception)


def test_names_alike_but_for_case_or_the_bytes_of_an_umlaut_are_found(folder):
    folder.pictures("Photos/a.jpg", "Photos/Mu\u0308ller.JPG", "b.jpg", "c.jpg", "C.JPG")
    rows = "photos/a.JPG,x\nphotos/M\u00fcller.jpg,y\nb.jpg,\n"
    table = folder.text("t.csv", "path,labels\n" + rows)
    assert described(table)["notes"] == [
        "2 paths found under a name of other case, or with accents that are stored otherwise"
    ]
    assert list(load(table).ids) == ["Photos/a.jpg", "Photos/Mu\u0308ller.JPG", "b.jpg"]
    for two in ("c.Jpg,x\n", "B.jpg,x\n"):  # two files could be meant, or one twice
        odd = folder.text("u.csv", "path,labels\nb.jpg,x\n" + two)
        assert "1 of 2 images is missing" in str(run("describe", odd).exception)


def test_duplicate_rows(folder):
    folder.pictures("a.jpg", "b.jpg")
    same = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n./a.jpg,x\n")
    assert "`--duplicates drop`" in str(run("describe", same).exception)
    dropped = described(same, "--duplicates", "drop")
    assert (dropped["images"], dropped["notes"]) == (2, ["repeated rows: 1, dropped"])
    assert described(same, "--duplicates", "keep")["images"] == 3
    other = folder.text("u.csv", "path,labels\na.jpg,x\na.jpg,y\n")
    for choice in ("stop", "drop", "keep"):
        problem = run("describe", other, "--duplicates", choice).exception
        assert "with different labels; all labels of an image belong in one row" in str(problem)


def test_broken_photos_are_named(folder):
    folder.pictures("a.jpg", "b.jpg", "c.jpg")
    folder.text("b.jpg", jpeg(1)[:-20])
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\nc.jpg,\n")
    result = run("describe", table, "--content")
    assert result.exit_code == 0
    assert "images that cannot be read: 1 of 3" in result.output
    assert "b.jpg: the image cannot be read (image file is truncated" in result.output
    assert isinstance(run("describe", table, "--content", "--strict").exception, DataError)
    whole = load(table)
    found = find_unreadable(whole)
    assert [(image.row, image.id) for image in found] == [(1, "b.jpg")]
    kept = without_unreadable(whole, found, on_error="skip")
    assert list(kept.ids) == ["a.jpg", "c.jpg"]
    assert kept.notes[-1].startswith("left out: 1 of 3 images cannot be read")
    with pytest.raises(DataError, match="`--on-error skip`"):
        without_unreadable(whole, found, on_error="stop")


def test_split_keeps_the_split_there_is(folder):
    rows = [f"{n}.jpg,{'x' if n % 2 else 'y'},{'test' if n < 10 else 'train'}" for n in range(50)]
    folder.pictures(*(f"{n}.jpg" for n in range(50)))
    table = folder.text("t.csv", "\n".join(["path,labels,split", *rows]))
    out = folder.path / "out.csv"
    problem = str(run("split", table, "-o", out).exception)
    assert "has a split already (train 40, test 10)" in problem
    assert not out.exists()
    assert run("split", table, "-o", out, "--val", "0.1").exit_code == 0
    made, given_split = load(out), load(table).split
    sizes = {name: len(part) for name, part in made.splits().items()}
    assert sizes == {"train": 36, "val": 4, "test": 10}
    assert set(given_split[made.split == "test"]) == {"test"}
    assert "val split already" in str(run("split", out, "-o", out, "--val", "0.1").exception)
    both = run("split", table, "-o", out, "--val", ".1", "--shares", "train=1")
    assert isinstance(both.exception, SettingsError)
    assert run("split", table, "-o", out, "--shares", "train=.5,test=.5").exit_code == 0
    assert len(load(out).splits()["train"]) == 25


def test_validation_for_a_table_that_has_none():
    table = scenes(200, 0, 40)
    given_val = with_validation(table, share=0.2)
    sizes = {name: len(part) for name, part in given_val.splits().items()}
    assert sizes == {"train": 160, "val": 40, "test": 40}
    assert given_val.notes == ("40 of 200 training images became validation, there was none",)
    assert with_validation(given_val) is given_val
    plain = replace(table, split=None)
    assert len(with_validation(plain, share=0.25).splits()["val"]) == 60
    with pytest.raises(SettingsError, match="between 0 and 1"):
        with_validation(table, share=1.0)


def test_a_group_is_never_divided_for_validation():
    names = Names([f"patient{n // 6}" for n in range(120)])
    grouped = replace(scenes(120, 0, 0), split=None, group=names)
    held = with_validation(grouped, share=0.2)
    sides = set(zip(grouped.group, held.split.tolist(), strict=True))
    assert len(sides) == 20
    assert set(held.split) == {"train", "val"}


def test_a_fingerprint_is_of_the_content(tmp_path):
    def printed(place, text, name="t.csv"):
        (place / name).write_text(text)
        return fingerprint(load(place / name))

    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
        for number, name in enumerate(("a.jpg", "b.jpg")):
            (place / name).write_bytes(jpeg(number))
    text = "path,labels\na.jpg,x\nb.jpg,y|x\n"
    first = printed(places[0], text)
    assert printed(places[1], text) == first
    rows = '{"path": "a.jpg", "labels": ["x"]}\n{"path": "b.jpg", "labels": ["x", "y"]}\n'
    assert printed(places[1], rows, "u.jsonl") == first
    changed = {
        "path,labels\na.jpg,x\nb.jpg,y\n",
        "path,labels\nb.jpg,y|x\na.jpg,x\n",
        "path,labels,split\na.jpg,x,train\nb.jpg,y|x,val\n",
        "path,labels,unknown\na.jpg,x,y\nb.jpg,y|x,\n",
    }
    found = {first} | {printed(places[1], other) for other in changed}
    (places[0] / "b.jpg").write_bytes(jpeg(1) + b"\0")
    assert len(found | {printed(places[0], text)}) == 6


def test_options_of_the_wrong_type_are_one_sentence(folder):
    file = folder.text("t.csv", "path,labels\na.jpg,x\n")
    for option in ("separator=3", "columns=3", "ignore.x=1", "root=1", "delimiter=ab", "names=1"):
        problem = run("describe", file, "--set", option).exception
        assert isinstance(problem, SettingsError | DataError), option

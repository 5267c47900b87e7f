"""Labels that would be misread are asked about. Oracle: files whose meaning is known."""

import re
import shlex

import pytest
from search_setup import picture

from labelwise.data import describe, load
from labelwise.errors import DataError
from labelwise.system.yaml_values import nested, parse_assignments


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table of photos that are there."""

    def write(lines, header="path,labels"):
        for number in range(len(lines)):
            picture(tmp_path / f"{number}.png", number)
        rows = [f"{number}.png,{cell}" for number, cell in enumerate(lines)]
        file = tmp_path / "photos.csv"
        file.write_text("\n".join([header, *rows]) + "\n")
        return file

    return write


def told(pattern, caught):
    """Return the options of the command that an error proposes."""
    (typed,) = re.findall(pattern, str(caught.value))
    return nested(parse_assignments(word for word in shlex.split(typed) if word != "--set"))


@pytest.mark.parametrize(
    ("cells", "row", "name"),
    [
        (["1 3", "13", "2", "1 2", "3"], 1, "1 3"),
        (["dog", "beach", "dog beach", ""], 3, "dog beach"),
        (["a b", "b c", "c a"], 1, "a b"),
        (["dog kite", "dog", "cat", "cat dog sofa", "cat oven"], 1, "dog kite"),  # a long tail
    ],
)
def test_blanks_between_labels_are_asked_about(table, cells, row, name):
    file = table(cells)
    with pytest.raises(DataError) as caught:
        load(file)
    sentence = str(caught.value)
    assert f"row {row}: 'labels' holds {name!r}" in sentence
    assert "`--set 'separator= '` if blanks part labels" in sentence
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


def test_a_name_that_holds_another_is_noted(table):
    """Of one such name nobody can say whether it is "hot dog" or dogs on a beach."""
    file = table(["dog beach", "cat", "dog"])
    read = load(file)
    assert list(read.space.names) == ["cat", "dog", "dog beach"]
    (note,) = read.notes
    assert note.startswith("'dog beach' is read as one label, and 'dog' as another; give `--set")
    assert list(load(file, separator=" ").space.names) == ["beach", "cat", "dog"]
    assert not load(file, separator="|").notes
    assert not load(table(["traffic light", "cat"])).notes


def test_numbers_are_not_two_spellings_of_one_label(table):
    notes = describe(load(table(["1 3", "13", "1-3"]), separator="|")).notes
    assert not [note for note in notes if "spelled" in note]
    letters = describe(load(table(["hot dog", "hot-dog"]), separator="|")).notes
    assert "perhaps one label, spelled in two ways: 'hot dog'" in letters[0]


def test_every_stray_quote_is_named_by_its_line_and_can_be_left_out(table):
    """Two of them make an even number of quotes; a cell over two lines is none of them."""
    file = table(["dog", '"cat', "dog", '"a\nb"', "cat", 'x"y", z'])
    whole = re.escape('2 lines cannot be read as 2 cells, for a quote (") that is not closed or a ')
    with pytest.raises(DataError, match=whole) as caught:
        load(file)
    assert 'line 3: 1.png,"cat; line 8: 5.png,x"y", z. Put quotes' in str(caught.value)
    read = load(file, skip_broken=True)
    assert list(read.ids) == ["0.png", "2.png", "3.png", "4.png"]
    assert read.space.names == ("a\nb", "cat", "dog")
    (note,) = read.notes
    assert note.startswith("left out: 2 lines cannot be read")
    even = table(["dog", '"cat', "dog", 'cat"'])
    with pytest.raises(DataError, match=r'1 line .*: line 3: 1.png,"cat\. Put'):
        load(even)


@pytest.mark.parametrize(
    ("header", "note"),
    [
        (r"IMAGE\LABEL,labels", r"'IMAGE\\LABEL' names the images"),
        ("ImageID,labels", "'ImageID' names the images"),
        ("Id,labels", "'Id' names the images"),
        ("image_path,labels", "'image_path' names the images"),
        ("filename,Genre", "'Genre' names the labels"),
        ("Image Index,Finding Labels", "'Image Index' names the images"),
        ("path,tags", "'tags' names the labels"),
    ],
)
def test_columns_with_usual_names_are_taken_and_named(table, header, note):
    read = load(table(["dog", "cat|dog"], header=header))
    assert read.space.names == ("cat", "dog")
    assert any(note in said for said in read.notes), read.notes


def test_a_label_that_is_called_tags_is_a_label(table):
    read = load(table(["1,0", "0,1"], header="path,tags,dog"))
    assert read.space.names == ("tags", "dog")
    assert not read.notes


@pytest.mark.parametrize(
    ("header", "rows", "command"),
    [
        ("shot,kind,place", ["a,u", "b,v", "a,w"], "columns.path=shot --set columns.labels=kind"),
        ("shot,what", ['"a,b"', '"b"', '"b"'], "path=shot --set columns.labels=what --set separa"),
        ("shot,dog,note", ["1,fine", "0,blurred", "1,fine"], "path=shot --set 'ignore=["),
    ],
)
def test_all_that_is_missing_is_one_command(table, header, rows, command):
    file = table(rows, header=header)
    with pytest.raises(DataError, match="All that this table seems to need") as caught:
        load(file)
    assert command in str(caught.value)
    assert len(load(file, **told(r"seems to need: `(.*)`", caught))) == 3


STRANGERS = {  # tables as people have them: the text, and what a row of each says
    "capitals": ("ImageID,Split,Dog,Score\n{0},train,1,.5\n{1},val,0,.7\n", ["Dog"], []),
    "findings": (
        "patientid,sex,finding,filename\n7,M,No Finding,{0}.png\n8,F,todo,{1}.png\n"
        "9,F,Viral,{2}.png\n",
        *([], []),
    ),
    "semicolons": ("IMAGE\\LABEL;sea;notes\n{0};1;fine, dry\n{1};0;ok\n", ["sea"], []),
    "numbers": ("Id,Target\n{0},1 2\n{1},0\n", ["1", "2"], ["0"]),
    "quotes": ('image_path,tags,by\n{0}.png,"sky,sea",me\n{1}.png,"sea,me\n', ["sea", "sky"], None),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_table_takes_two_commands(kind, tmp_path):
    text, first, second = STRANGERS[kind]
    names = [f"img{number}" for number in range(3)]
    for number, name in enumerate(names):
        picture(tmp_path / "pictures" / f"{name}.png", number)
    file = tmp_path / "t.csv"
    file.write_text(text.format(*names))
    with pytest.raises(DataError, match="All that this table seems to need") as caught:
        load(file)
    read = load(file, **told(r"seems to need: `(.*)`", caught))
    rows = [[read.space.names[k] for k in read.present.row(row)] for row in range(len(read))]
    assert rows[:2] == ([first] if second is None else [first, second])
    assert kind != "capitals" or read.split.tolist() == ["train", "val"]
    assert kind != "findings" or read.unlabelled().tolist() == [False, True, False]
    assert kind != "quotes" or any("left out: 1 line" in note for note in read.notes)


def test_words_that_mean_none_or_unknown_are_asked_about(table):
    file = table(["dog", "No Finding", "todo", "Unknown", "-", "cat|todo"])
    words = r"holds 'No Finding' \(1 row\), '-' \(1 row\), 'todo'"
    with pytest.raises(DataError, match=words) as caught:
        load(file)
    read = load(file, **told(r"give `(--set .*?)`; if", caught))
    assert read.space.names == ("cat", "dog")
    labels, observed = read.targets()
    assert labels.tolist() == [[0, 1], [0, 0], [0, 0], [0, 0], [0, 0], [1, 0]]
    assert observed.tolist() == [[True] * 2] * 2 + [[False] * 2] * 2 + [[True] * 2, [True, False]]
    assert len(load(file, means_none=[]).space) == 6
    assert len(load(file, names=["dog", "cat", "No Finding", "todo", "Unknown", "-"]).space) == 6


def test_labels_can_be_paths_of_a_taxonomy(table):
    cells = ["Pneumonia/Viral/COVID-19", "Pneumonia/Bacterial|Pneumonia/Viral", "Edema/Viral"]
    read = load(table(cells), levels="/")
    assert read.space.names == ("Bacterial", "COVID-19", "Edema", "Edema/Viral", "Pneumonia",
                                "Pneumonia/Viral")  # fmt: skip
    named = [{read.space.names[k] for k in read.present.row(row)} for row in range(3)]
    assert named == [
        {"Pneumonia", "Pneumonia/Viral", "COVID-19"},
        {"Pneumonia", "Bacterial", "Pneumonia/Viral"},
        {"Edema", "Edema/Viral"},
    ]


def test_quotes_that_are_closed_or_inside_are_cells(table):
    file = table(['"dog"', '12" disc', '"a ""b"" c"'])
    assert list(load(file).space.names) == ['12" disc', 'a "b" c', "dog"]


def test_folders_without_labels_say_what_is_missing(tmp_path):
    with pytest.raises(DataError, match="the folder is empty; give one with photos"):
        load(tmp_path)
    picture(tmp_path / "a.png", 0)
    picture(tmp_path / "b.png", 1)
    with pytest.raises(DataError, match="there are 2 photos and nothing says what they show"):
        load(tmp_path)


def test_id_beside_id_is_asked_about(table):
    file = table(["7,dog", "8,cat"], header="id,Id,labels")
    with pytest.raises(DataError, match="'Id' and 'id' could both name the image"):
        load(file)
    assert list(load(file, columns={"path": "id"}).ids) == ["0.png", "1.png"]


@pytest.fixture
def voc(tmp_path):
    """A VOC folder of three photos with XML, of which the image set lists two."""
    folder = tmp_path / "voc"
    (folder / "Annotations").mkdir(parents=True)
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    for number, name in enumerate(("dog", "cat", "dog")):
        picture(folder / "JPEGImages" / f"{number}.png", number)
        thing = f"<object><name>{name}</name></object>"
        (folder / "Annotations" / f"{number}.xml").write_text(f"<annotation>{thing}</annotation>")
    (folder / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n")
    return folder


def test_image_sets_without_states_take_the_labels_of_the_xml(voc):
    (voc / "ImageSets" / "Main" / "dog_train.txt").write_text("0\n")
    table = load(voc)
    assert [table.space.names[table.present.row(row)[0]] for row in range(2)] == ["dog", "cat"]
    assert "only list images, without 1, -1 or 0" in table.notes[0]
    assert table.notes[-1] == "left out: 1 photo of JPEGImages that no image set lists"


@pytest.mark.parametrize("xml", ["", "annotations"])
@pytest.mark.parametrize("part", ["", "train"])
def test_xml_beside_photos_says_what_they_show(tmp_path, part, xml):
    """As LabelImg, Roboflow and many collections write it."""
    photos = tmp_path / part / ("images" if xml else "")
    for number in range(3):
        picture(photos / f"{number}.png", number)
    for number, names in enumerate((("dog",), ("dog", "cat"))):
        file = tmp_path / part / xml / f"{number}.xml"
        file.parent.mkdir(exist_ok=True)
        things = "".join(f"<object><name>{name}</name></object>" for name in names)
        file.write_text(f"<annotation>{things}</annotation>")
    table = load(tmp_path)
    assert list(table.space.names) == ["cat", "dog"]
    assert table.targets()[0].tolist() == [[0, 1], [1, 1]]
    assert table.notes == ("left out: 1 photo without an XML file",)
    assert [str(table.images.read(row).size) for row in range(2)]
    assert table.split is None if not part else table.split.tolist() == ["train", "train"]


def test_a_folder_of_classes_may_hold_other_xml(tmp_path):
    for number, name in enumerate(("dog", "cat")):
        picture(tmp_path / name / "0.png", number)
    (tmp_path / "notes.xml").write_text("<notes/>")
    assert list(load(tmp_path).space.names) == ["cat", "dog"]


def test_image_sets_of_photos_of_which_nothing_is_said(voc):
    (voc / "Annotations" / "1.xml").unlink()
    with pytest.raises(DataError, match=r"1.xml: the file that says what 1 shows is missing; add"):
        load(voc)
    (voc / "ImageSets" / "Main" / "train.txt").write_text("0\n")
    assert len(load(voc)) == 1

"""Tables of every format. Oracles: one table written by hand, and the sentences of errors."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_pictures import jpeg, states

from labelwise.errors import DataError, LabelwiseError, QuestionError, SettingsError
from labelwise.tables import load
from labelwise.tables.columns import read_one_hot

ROWS = [
    {"path": "a.jpg", "labels": ["dog", "cat"], "unknown": [], "split": "train", "group": "g1"},
    {"path": "b.jpg", "labels": [], "unknown": [], "split": "valid", "group": "g2"},
    {"path": "c.jpg", "labels": ["cat"], "unknown": ["bird"], "split": "Test", "group": "g1"},
    {"path": "d.jpg", "labels": [], "unknown": ["*"], "split": "train", "group": "g3"},
    {"path": "e.jpg", "labels": ["dog"], "unknown": ["*"], "split": "train", "group": "g4"},
]


def write(folder, kind):
    if kind == "jsonl":
        return folder.text("t.jsonl", "\n".join(json.dumps(row) for row in ROWS))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder.path / "t.parquet", row_group_size=2)
        return folder.path / "t.parquet"
    lines = [[*ROWS[0]]]
    for row in ROWS:
        lines.append(["|".join(c) if isinstance(c, list) else c for c in row.values()])
    mark = {"csv": ",", "tsv": "\t"}[kind]
    return folder.text(f"t.{kind}", "\n".join(map(mark.join, lines)))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_same_table_in_every_format(folder, kind):
    folder.pictures(*(row["path"] for row in ROWS))
    table = load(write(folder, kind))
    assert table.space.names == ("bird", "cat", "dog")
    assert states(table) == ["011", "000", "?10", "???", "??1"]
    assert table.split.tolist() == ["train", "val", "test", "train", "train"]
    assert list(table.group) == [row["group"] for row in ROWS]
    assert list(table.ids) == [row["path"] for row in ROWS]
    assert table.images.read(3).size == (8, 6)


def parquet(folder, name, columns, **metadata):
    path = folder.path / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    if "features" in metadata:
        metadata = {"huggingface": {"info": metadata}}
    stated = {key: json.dumps(value) for key, value in metadata.items()}
    pq.write_table(pa.table(columns).replace_schema_metadata(stated), path)
    return path


def shown(*paths):
    return [{"bytes": jpeg(number), "path": path} for number, path in enumerate(paths)]


def test_one_column_per_label(folder):
    """Beside a path ``image`` is a label like others."""
    table = load(folder.text("t.csv", "path,image,text\na.jpg,1,0\n"), check_files=False)
    assert table.space.names == ("image", "text")
    alone = load(folder.text("u.jsonl", '{"image": "a.jpg", "labels": ["x"]}'), check_files=False)
    assert (list(alone.ids), alone.space.names) == (["a.jpg"], ("x",))
    text = "path,dog,big cat,split\na.jpg,1,,train\nb.jpg,0.0,True,test\nc.jpg,,NaN,test\n"
    table = load(folder.text("t.csv", text), check_files=False)
    assert (table.space.names, states(table)) == (("dog", "big cat"), ["1?", "01", "??"])
    columns = {"path": ["a.jpg", "b.jpg", "c.jpg"], "x": pa.array([1, 0, None], pa.int8())}
    columns |= {"y": [1.0, float("nan"), 0.0], "z": [True, None, False]}
    table = load(parquet(folder, "t", columns), check_files=False)
    assert states(table) == ["111", "0??", "?00"]


def test_image_bytes_class_numbers_and_several_files(folder):
    for name, start in (("train-a", 0), ("train-b", 2), ("held", 4)):
        columns = {"file": ["same.png"] * 2, "image": [jpeg(start), jpeg(start + 1)]}
        columns["fine"] = pa.array([start % 3, (start + 1) % 3], pa.uint8())
        columns["coarse"] = pa.array([0, 1], pa.uint8())
        parquet(folder, name, columns, fine_names=["apple", "bear", "clock", "never"])
    source = f"train={folder.path}/train-*.parquet;test={folder.path}/held.parquet"
    table = load(source, columns={"labels": "fine"}, ignore=["coarse"])
    assert table.space.names == ("apple", "bear", "clock", "never")
    assert table.split.tolist() == ["train"] * 4 + ["test"] * 2
    assert states(table) == ["1000", "0100", "0010"] * 2
    assert list(table.ids)[:3] == ["same.png", "same.png#2", "same.png#3"]
    assert "numbered" in table.notes[0]


ONE_OF = {"names": ["cat", "dog"], "_type": "ClassLabel"}
IMAGE = {"_type": "Image"}


@pytest.mark.parametrize("place", [".", "data"])
def test_hugging_face_shards_with_one_class_an_image(folder, place):
    label = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}
    features = {"img": IMAGE, "label": label, "size": {}}
    shards = ("pets-train-a", "train-00001-of-00002", "validation-00000-of-00001")
    for number, name in enumerate(shards):
        columns = {"img": shown(f"{number}.jpg"), "label": [number], "size": [9]}
        parquet(folder, f"pets/{place}/{name}", columns, features=features)
    table = load(folder.path / "pets")
    assert (table.name, table.space.names) == ("pets", ("cat", "dog", "owl"))
    assert (table.split.tolist(), states(table)) == (["train"] * 2 + ["val"], ["100", "010", "001"])
    assert list(table.ids) == ["0.jpg", "1.jpg", "2.jpg"]


@pytest.mark.parametrize("kind", [ONE_OF, [ONE_OF], {"feature": ONE_OF, "_type": "List"}])
def test_what_hugging_face_states_gives_way_to_what_is_said(folder, kind):
    features = {"image": IMAGE, "fine": kind, "coarse": ONE_OF}
    kinds = [0, 1] if kind is ONE_OF else [[0], [1]]
    columns = {"image": [jpeg(0), jpeg(1)], "fine": kinds, "coarse": [1, 0]}
    table = load(parquet(folder, "t", columns, features=features), columns={"labels": "fine"})
    assert states(table) == ["10", "01"]
    with pytest.raises(DataError, match=r"b\.parquet: the metadata of Hugging Face is broken"):
        load(parquet(folder, "b", columns, huggingface={}))
    columns = {"image": shown(None, "b.jpg", None), "labels": [0, -1, None]}
    table = load(parquet(folder, "pets", columns, classes=["cat", "dog"]))
    assert (list(table.ids), states(table)) == (["pets#1", "b.jpg", "pets#3"], ["10", "??", "??"])


def test_more_image_bytes_than_memory_should_hold_lie_in_a_file(folder, tmp_path, monkeypatch):
    for limit in ("table_builder.IN_MEMORY", "tabular.BATCH_BYTES"):
        monkeypatch.setattr(f"labelwise.tables.{limit}", 1 << 20)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    noise = np.random.default_rng(0).integers(0, 256, (64, 1 << 17), dtype=np.uint8)
    columns = {"image": [bytes(row) for row in noise], "labels": [["x"]] * 64}
    file = parquet(folder, "many", columns)
    del columns
    before = pa.total_allocated_bytes()
    table = load(file)
    assert pa.total_allocated_bytes() - before < noise.nbytes / 4
    part = table.subset(np.array([40, 3])).images
    assert [part.content(0), part.content(1)] == [bytes(noise[40]), bytes(noise[3])]
    assert part.blobs is table.images.blobs
    assert list(tmp_path.glob("*.parquet")) == list(tmp_path.iterdir())  # nothing else has a name
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere .*; set TMPDIR to a folder with room"):
        load(file)


def test_metadata_folder_with_splits(folder):
    folder.pictures("train/1.jpg", "train/2.jpg", "test/1.jpg")
    folder.text("train/metadata.csv", "file_name,labels\n1.jpg,a|b\n2.jpg,\n")
    folder.text("test/metadata.csv", "file_name,labels\n1.jpg,c\n")
    table = load(folder.path)
    assert list(table.ids) == ["test/1.jpg", "train/1.jpg", "train/2.jpg"]
    assert table.split.tolist() == ["test", "train", "train"]
    assert (table.space.names, states(table)) == (("a", "b", "c"), ["001", "110", "000"])


def test_given_names_keep_their_order_and_allow_commas(folder):
    file = folder.text("t.csv", 'path,labels\na.jpg,"cat, black|dog"\n')
    listed = folder.text("names.txt", "dog\ncat, black\nbird\n")
    for names in (["dog", "cat, black", "bird"], str(listed)):
        assert states(load(file, names=names, check_files=False)) == ["110"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the table is empty"),
        ("path,labels\n", r"\.csv: the table is empty"),
        ("path,labels\na.jpg,x\na.jpg,y\n", "named once, got 'a.jpg' in rows 1 and 2"),
        (
            "path,labels,split\na.jpg,x,train\na.jpg,x,test\n",
            "share .* 'a.jpg' in train and in test",
        ),
        ("path,labels,split\na.jpg,x,tran\n", "1. tran = train: a.jpg = x: `--set 'splits="),
        ("path,dog\na.jpg,1\nb.jpg,2\n", "1. '1' means present, '2' absent: .*`--set 'present="),
        ("path,sorts,kinds\na.jpg,dog,b\n", "named in 'sorts'.*: `--set columns.labels=sorts`"),
        ("path,labels\na.jpg,dog,cat\n", "cannot be read as 2 cells.*: line 2: a.jpg,dog,cat"),
        (
            'path,labels\na.jpg,"dog,cat"\n',
            "in 2 ways.*separated by ',': a.jpg = cat, dog: `--set separator=,`",
        ),
        ("path,labels,unknown\na.jpg,x|y,y\n", "row 1: 'y' cannot be both present and unknown"),
        ("path,labels\n,x\n", "row 1: the column 'path' is empty"),
        ("path,labels\na.jpg,*\n", "row 1: '\\*' is for 'unknown' only"),
        ("name,labels\n1,x\n1,y\n", "there must be a column 'path'"),
        ("path\na.jpg\n", "which labels a photo has; write a column 'labels'"),
        ("path,dog,dog\na.jpg,1,0\n", "the column 'dog' is there twice"),
        ("path,labels\na.jpg,\n", "no labels at all"),
        (b"path,labels\na.jpg,caf\x81\n", "\\(cp1252\\) either; save it as UTF-8, or"),
        ("path,labels\na.jpg,x\ngone.jpg,y\n", "1 of 2 images is missing under .*: 'gone.jpg'"),
        ("a.jpg,1,0\nb.jpg,0,1\n", "t.csv: the first line names a photo, and no line says what"),
        ("path,x\na.jpg,1\nb.jpg,dog\n", "'dog' means unknown: .*`--set 'means_unknown="),
        ("sep=;\npath;labels\na.jpg;x;y\n", "too many: line 3: a.jpg;x;y. Put"),
        ("path,x\na.jpg,0.5\n", "shares between 0 and 1.*`--set soft=true`"),
        ("{", "line 1: not JSON"),
        ("[1]", r"must hold an array of objects, one for each photo"),
        ('{"path": "a.jpg", "labels": ["x"]}\n{"path": "b.jpg", "labels": 1}', "one kind"),
        ('{"path": "a.jpg", "labels": [1.5]}', "names of labels, got double"),
        ('{"path": "a.jpg", "labels": {"x": 0.5}}', "must hold lists or text"),
        (
            '{"path": "a.jpg", "x": 1}\n' * 4000 + '{"path": "b.jpg", "y": 1}',
            "line 4001: the key 'y",
        ),
        ('{"path": "a.jpg", "labels": ["x", ["y"]]}', "plain values or lists of names"),
        (b'{"path": "\xff"}', "line 1: it is not UTF-8"),
        ('{"path": "a\\ud800.jpg", "labels": ["x"]}', "line 1: it holds text that is not Unicode"),
    ],
)
def test_bad_tables_get_one_clear_sentence(folder, text, sentence):
    folder.pictures("a.jpg", "b.jpg")
    file = folder.text("t.jsonl" if text[:1] in ("{", "[", b"{") else "t.csv", text)
    with pytest.raises(DataError, match=f"(?s){sentence}") as caught:
        load(file)
    assert "\n" not in str(caught.value) or isinstance(caught.value, QuestionError)
    assert str(caught.value).startswith("t")


def test_two_columns_of_one_name_are_named_in_parquet_too(tmp_path):
    columns = [pa.array(["a.jpg"]), pa.array(["train"]), pa.array(["test"])]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_arrays(columns, ["path", "split", "split"]), path)
    with pytest.raises(DataError, match=r"^t\.parquet: the column 'split' is there twice; rename"):
        load(path, check_files=False)


@pytest.mark.parametrize("changed", [b"a.png", b"dog", b"forest", b"train"])
def test_parquet_text_that_is_not_utf8_is_named(folder, tmp_path, changed):
    """Bytes that Arrow does not look at until a text is made of them, of each kind of column."""
    columns = {"path": ["b.png", "a.png"], "labels": [["cat"], ["dog"]]}
    columns |= {"group": ["sea", "forest"], "split": ["test", "train"]}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(changed, b"\xff" + changed[1:]))
    with pytest.raises(DataError, match=r"t\.parquet.*: the column '\w+' holds text that is not"):
        load(path, check_files=False)


def test_bad_parquet(folder):
    text = parquet(folder, "u", {"path": ["a"], "image": ["text"], "labels": [["x"]]})
    number = parquet(folder, "v", {"image": [b"1"], "labels": [7]}, classes=["x"])
    lines = parquet(folder, "w", {"path": ["a.jpg"], "do\ng": [["x"]], "b": [["y"]]})
    for file, sentence in (
        (folder.text("t.parquet", "hello"), "not a Parquet file"),
        (text, "must hold image bytes, got string; if it names files, "),
        (number, r"'labels' must be in 0\.\.0, got 7"),
        (lines, re.escape("""a.jpg = x: `--set 'columns.labels="do\\ng"'`""")),
    ):
        with pytest.raises(DataError, match=sentence):
            load(file)


def test_missing_images_are_counted_listed_and_skipped(folder):
    folder.pictures("a.jpg")
    file = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\nc.jpg,y\n")
    table = load(file, skip_missing=True)
    assert (list(table.ids), table.space.names) == (["a.jpg"], ("x", "y"))
    note, lost = table.notes
    assert lost == "no photo is left with 'y', so no model can learn it"
    assert re.search("2 of 3 images are missing.*'b.jpg', 'c.jpg'", note)
    assert len(load(file, check_files=False)) == 3


def test_unknown_labels_options_formats_and_places(folder):
    file = folder.text("t.csv", "path,labels\na.jpg,dgo\n")
    other = folder.text("u.csv", "path,x,y\nb.jpg,1,0\n")
    for source, options, kind, sentence in (
        (file, {"names": ["dog", "cat"]}, DataError, "row 1: unknown label 'dgo'; did you mean 'd"),
        (file, {"seperator": ","}, SettingsError, "no option 'seperator'; did you mean 'separat"),
        (file, {"format": "cocoo"}, SettingsError, "unknown data format 'cocoo'; did you mean 'c"),
        (file, {"columns": {"label": "labels"}}, SettingsError, "cannot mean 'label'"),
        ("nowhere.csv", {}, DataError, "no file or folder 'nowhere"),
        (folder.text("t.xyz", "?"), {}, DataError, "format is not recognised"),
        (f"{file};{other}", {}, DataError, "must have the same columns"),
    ):
        with pytest.raises(kind, match=sentence):
            load(source, **options)


def test_many_blocks_keep_row_numbers_and_one_vocabulary(folder, monkeypatch):
    monkeypatch.setattr("labelwise.tables.tabular.BLOCK_BYTES", 256)
    lines = [f"{row}.jpg,{'x' if row % 2 else 'w'}|l{row % 7}" for row in range(500)]
    file = folder.text("t.csv", "path,labels\n" + "\n".join(lines))
    table = load(file, check_files=False)
    names = [{table.space.names[c] for c in table.present.row(row)} for row in range(500)]
    assert names == [set(line.split(",")[1].split("|")) for line in lines]
    lines[400] += ",oops"
    with pytest.raises(DataError, match=r"line 402: 400\.jpg,w\|l1,oops\."):
        load(folder.text("t.csv", "path,labels\n" + "\n".join(lines)), check_files=False)


KINDS = (
    (pa.string(), ("1", "0", "", " True ", "-1", "0.25", None)),
    (pa.int64(), (1, 0, None, -1)),
    (pa.float64(), (1.0, 0.0, float("nan"), 0.5, None)),
    (pa.bool_(), (True, False, None)),
    (pa.null(), (None,)),
)


def told(columns):
    headers = [f"label {n}" for n in range(len(columns))]
    given = pa.record_batch(columns, headers), headers, "row {}".format
    try:
        *rows, shares, minus_ones = read_one_hot(*given, soft=True, minus_one="unknown")
    except DataError as error:
        return str(error)
    parts = [(part.sizes.tolist(), part.numbers.tolist()) for part in rows]
    return parts, shares.tolist(), minus_ones


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_columns_read_together_are_as_each_alone(monkeypatch, seed, bad):
    """Oracle: each column by itself; ``bad`` puts a word into one that is text."""
    random, columns = np.random.default_rng(seed), []
    for number in np.sort(random.integers(0, len(KINDS), 20)):
        kind, values = KINDS[number]
        columns.append(pa.array([values[n] for n in random.integers(0, len(values), 7)], kind))
    if bad:
        columns.insert(random.integers(0, 21), pa.array([*"101010", "maybe"]))
    together = told(columns)
    assert isinstance(together, str) == bad
    monkeypatch.setattr("labelwise.tables.columns.VALUES", 1)
    assert together == told(columns)


@pytest.mark.parametrize(
    "source", ["", "\0", "a" * 5000, "train=;test=", "coco:", "[*?;=", "é\ud800"]
)
def test_a_source_that_no_file_can_have(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabelwiseError):
        load(source, check_files=False)


def test_the_column_of_labels_may_be_named_and_the_photos_be_found(folder):
    """Oracle: the same table, read without a word. The named column was forgotten."""
    table = folder.text("t.csv", "Foto;Tags\na.jpg;\nb.jpg;dog, cat\nc.jpg;dog\nd.jpg;cat\n")
    plain = load(table, check_files=False)
    named = load(table, check_files=False, columns={"labels": "Tags"})
    assert (named.space.names, states(named)) == (("cat", "dog"), states(plain))

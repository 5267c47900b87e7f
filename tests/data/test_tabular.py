"""Tables of every format. Oracles: one table written by hand, and the sentences of errors."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_pictures import jpeg

from labelwise.data import load
from labelwise.data.columns import read_one_hot
from labelwise.errors import DataError, SettingsError

ROWS = [
    {"path": "a.jpg", "labels": ["dog", "cat"], "unknown": [], "split": "train", "group": "g1"},
    {"path": "b.jpg", "labels": [], "unknown": [], "split": "valid", "group": "g2"},
    {"path": "c.jpg", "labels": ["cat"], "unknown": ["bird"], "split": "Test", "group": "g1"},
    {"path": "d.jpg", "labels": [], "unknown": ["*"], "split": "train", "group": "g3"},
    {"path": "e.jpg", "labels": ["dog"], "unknown": ["*"], "split": "train", "group": "g4"},
]
LABELS = [[0, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]
KNOWN = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0], [0, 0, 1]]


def write(folder, kind):
    if kind == "jsonl":
        return folder.text("t.jsonl", "\n".join(json.dumps(row) for row in ROWS))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder.path / "t.parquet", row_group_size=2)
        return folder.path / "t.parquet"
    mark = {"csv": ",", "tsv": "\t"}[kind]
    lines = [mark.join(ROWS[0])]
    for row in ROWS:
        cells = ("|".join(cell) if isinstance(cell, list) else cell for cell in row.values())
        lines.append(mark.join(cells))
    return folder.text(f"t.{kind}", "\n".join(lines) + "\n")


def assert_states(table, labels, known):
    found, observed = table.targets()
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_array_equal(np.ones_like(found) if observed is None else observed, known)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_same_table_in_every_format(folder, kind):
    folder.pictures(*(row["path"] for row in ROWS))
    table = load(write(folder, kind))
    assert table.space.names == ("bird", "cat", "dog")
    assert_states(table, LABELS, KNOWN)
    assert table.split.tolist() == ["train", "val", "test", "train", "train"]
    assert list(table.group) == ["g1", "g2", "g1", "g3", "g4"]
    assert list(table.ids) == ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"]
    np.testing.assert_array_equal(table.unlabelled(), [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(table.zero_label(), [0, 1, 0, 0, 0])
    assert table.images.read(3).size == (8, 6)


def test_beside_a_path_image_is_a_label_like_others(folder):
    table = load(folder.text("t.csv", "path,image,text\na.jpg,1,0\n"), check_files=False)
    assert table.space.names == ("image", "text")
    alone = load(folder.text("u.jsonl", '{"image": "a.jpg", "labels": ["x"]}'), check_files=False)
    assert (list(alone.ids), alone.space.names) == (["a.jpg"], ("x",))


def test_one_hot_with_unknown(folder):
    folder.pictures("a.jpg", "b.jpg", "c.jpg")
    text = "path,dog,big cat,split\na.jpg,1,,train\nb.jpg,0.0,True,test\nc.jpg,,NaN,test\n"
    table = load(folder.text("t.csv", text))
    assert table.space.names == ("dog", "big cat")
    assert_states(table, [[1, 0], [0, 1], [0, 0]], [[1, 0], [1, 1], [0, 0]])


def test_one_hot_in_parquet_with_numbers_and_nothing(folder):
    folder.pictures("a.jpg", "b.jpg", "c.jpg")
    columns = {
        "path": ["a.jpg", "b.jpg", "c.jpg"],
        "x": pa.array([1, 0, None], pa.int8()),
        "y": pa.array([1.0, float("nan"), 0.0]),
        "z": pa.array([True, None, False]),
    }
    pq.write_table(pa.table(columns), folder.path / "t.parquet")
    table = load(folder.path / "t.parquet")
    assert_states(table, [[1, 1, 1], [0, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 0, 0], [0, 1, 1]])


def test_image_bytes_class_numbers_and_several_files(folder):
    for name, start in (("train-a", 0), ("train-b", 2), ("held", 4)):
        columns = {"file": ["same.png"] * 2, "image": [jpeg(start), jpeg(start + 1)]}
        columns["fine"] = pa.array([start % 3, (start + 1) % 3], pa.uint8())
        columns["coarse"] = pa.array([0, 1], pa.uint8())
        schema = {b"fine_names": b'["apple", "bear", "clock", "never"]'}
        made = pa.table(columns).replace_schema_metadata(schema)
        pq.write_table(made, folder.path / f"{name}.parquet")
    source = f"train={folder.path}/train-*.parquet;test={folder.path}/held.parquet"
    table = load(source, columns={"labels": "fine"}, ignore=["coarse"])
    assert table.space.names == ("apple", "bear", "clock", "never")
    assert table.split.tolist() == ["train"] * 4 + ["test"] * 2
    np.testing.assert_array_equal(table.targets()[0].argmax(1), [0, 1, 2, 0, 1, 2])
    assert list(table.ids)[:3] == ["same.png", "same.png#2", "same.png#3"]
    assert "numbered" in table.notes[0]
    assert table.images.read(5).size == (8, 6)


def test_hugging_face_features(folder):
    images = [{"bytes": jpeg(0), "path": "a.jpg"}, {"bytes": jpeg(1), "path": "b.jpg"}]
    feature = {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "List"}
    info = {"info": {"features": {"labels": feature, "image": {"_type": "Image"}}}}
    made = pa.table({"image": images, "labels": [[0, 1], []]})
    made = made.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
    pq.write_table(made, folder.path / "t.parquet")
    table = load(folder.path / "t.parquet")
    assert table.space.names == ("cat", "dog")
    assert_states(table, [[1, 1], [0, 0]], np.ones((2, 2)))
    assert list(table.ids) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("place", [".", "data"])
def test_hugging_face_shards_with_one_class_an_image(folder, place):
    label = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}
    info = {"info": {"features": {"img": {"_type": "Image"}, "label": label, "size": {}}}}
    shards = ("pets-train-a", "train-00001-of-00002", "validation-00000-of-00001")
    (folder.path / "pets" / place).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(shards):
        images = [{"bytes": jpeg(number), "path": f"{number}.jpg"}]
        made = pa.table({"img": images, "label": [number], "size": [9]})
        made = made.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
        pq.write_table(made, folder.path / "pets" / place / f"{name}.parquet")
    table = load(folder.path / "pets")
    assert table.name == "pets"
    assert table.space.names == ("cat", "dog", "owl")
    assert table.split.tolist() == ["train", "train", "val"]
    assert_states(table, np.eye(3), np.ones((3, 3)))
    assert list(table.ids) == ["0.jpg", "1.jpg", "2.jpg"]


def test_images_without_a_path_and_classes_not_known(folder):
    images = [{"bytes": jpeg(k), "path": path} for k, path in enumerate((None, "b.jpg", None))]
    made = pa.table({"image": images, "labels": [0, -1, None]})
    made = made.replace_schema_metadata({b"classes": b'["cat", "dog"]'})
    pq.write_table(made, folder.path / "pets.parquet")
    table = load(folder.path / "pets.parquet")
    assert list(table.ids) == ["pets#1", "b.jpg", "pets#3"]
    assert_states(table, [[1, 0], [0, 0], [0, 0]], [[1, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize("lists", [True, False])
def test_what_hugging_face_states_gives_way_to_what_is_said(folder, lists):
    one = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "fine": [one] if lists else one, "coarse": one}
    kinds = [[0], [1]] if lists else [0, 1]
    made = pa.table({"image": [jpeg(0), jpeg(1)], "fine": kinds, "coarse": [1, 0]})
    info = json.dumps({"info": {"features": features}}).encode()
    pq.write_table(made.replace_schema_metadata({b"huggingface": info}), folder.path / "t.parquet")
    table = load(folder.path / "t.parquet", columns={"labels": "fine"})
    assert_states(table, np.eye(2), np.ones((2, 2)))
    broken = made.replace_schema_metadata({b"huggingface": b"{}"})
    pq.write_table(broken, folder.path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: the metadata of Hugging Face is broken"):
        load(folder.path / "b.parquet")


def many_bytes(path, rows=64, size=1 << 17):
    noise = np.random.default_rng(0).integers(0, 256, (rows, size), dtype=np.uint8)
    columns = {"image": [bytes(row) for row in noise], "labels": [["x"]] * rows}
    pq.write_table(pa.table(columns), path)
    return noise


def test_more_image_bytes_than_memory_should_hold_lie_in_a_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.data.table_builder.IN_MEMORY", 1 << 20)
    monkeypatch.setattr("labelwise.data.tabular.BATCH_BYTES", 1 << 20)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    noise = many_bytes(folder.path / "many.parquet")
    before = pa.total_allocated_bytes()
    table = load(folder.path / "many.parquet")
    assert pa.total_allocated_bytes() - before < noise.nbytes / 4
    part = table.subset(np.array([40, 3]))
    assert part.images.content(0) == bytes(noise[40])
    assert part.images.content(1) == bytes(noise[3])
    assert part.images.blobs is table.images.blobs
    assert list(tmp_path.glob("*.parquet")) == list(tmp_path.iterdir())  # nothing else has a name
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere .*; set TMPDIR to a folder with room"):
        load(folder.path / "many.parquet")


def test_metadata_folder_with_splits(folder):
    folder.pictures("train/1.jpg", "train/2.jpg", "test/1.jpg")
    folder.text("train/metadata.csv", "file_name,labels\n1.jpg,a|b\n2.jpg,\n")
    folder.text("test/metadata.csv", "file_name,labels\n1.jpg,c\n")
    table = load(folder.path)
    pairs = list(zip(table.ids, table.split, strict=True))
    assert pairs == [("test/1.jpg", "test"), ("train/1.jpg", "train"), ("train/2.jpg", "train")]
    assert table.space.names == ("a", "b", "c")
    assert table.images.read(0).size == (8, 6)


def test_given_names_keep_their_order_and_allow_commas(folder):
    folder.pictures("a.jpg")
    file = folder.text("t.csv", 'path,labels\na.jpg,"cat, black|dog"\n')
    table = load(file, names=["dog", "cat, black", "bird"])
    assert_states(table, [[1, 1, 0]], np.ones((1, 3)))
    listed = folder.text("names.txt", "dog\ncat, black\nbird\n")
    assert load(file, names=str(listed)).space == table.space


def test_a_byte_order_mark_quotes_and_blank_lines(folder):
    folder.pictures("a b.jpg", "c.jpg")
    text = b'\xef\xbb\xbfpath,labels\r\n"a b.jpg","x|y "\r\n\r\nc.jpg,\r\n'
    table = load(folder.text("t.csv", text))
    assert list(table.ids) == ["a b.jpg", "c.jpg"]
    assert table.space.names == ("x", "y")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the table is empty"),
        ("path,labels\n", "the table is empty"),
        ("path,labels\na.jpg,x\na.jpg,y\n", "named once, got 'a.jpg' in rows 1 and 2"),
        ("path,labels\na.jpg,x\n./a.jpg,y\n", "named once, got 'a.jpg'"),
        (
            "path,labels,split\na.jpg,x,train\na.jpg,x,test\n",
            "splits must not share images, got 'a.jpg' in train and in test",
        ),
        ("path,labels,split\na.jpg,x,tran\n", "row 1: the split .*'tran'; did you mean 'train'"),
        ("path,dog\na.jpg,1\nb.jpg,2\n", "row 2: the label column 'dog' must hold 1, 0 or nothing"),
        ("path,dog\na.jpg,-2\n", "'dog' must hold 1, 0 or nothing .* got '-2'"),
        ("path,sorts\na.jpg,dog\n", "give `--set columns.labels=sorts` if it names labels"),
        ("path,labels\na.jpg,dog,cat\n", "cannot be read as 2 cells.*: line 2: a.jpg,dog,cat"),
        ('path,labels\na.jpg,"dog,cat"\n', "row 1: 'labels' is split on '|' but holds a comma"),
        ("path,labels,unknown\na.jpg,x|y,y\n", "row 1: 'y' cannot be both present and unknown"),
        ("path,labels\n,x\n", "row 1: the column 'path' is empty"),
        ("path,labels\na.jpg,*\n", "row 1: '\\*' is for 'unknown' only"),
        ("name,labels\na.jpg,x\n", "there must be a column 'path'"),
        ("path\na.jpg\n", "there must be a column 'labels'"),
        ("path,labels,labels\na.jpg,x,y\n", "the column 'labels' is there twice"),
        ("path,labels\na.jpg,\n", "no labels at all"),
        (b"path,labels\na.jpg,caf\xe9\n", "line 2 is not UTF-8 text; save the table as UTF-8"),
        (b"path,l\xff\n", "must be UTF-8"),
        ("path,labels\na.jpg,x\ngone.jpg,y\n", "1 of 2 images is missing under .*: 'gone.jpg'"),
    ],
)
def test_bad_tables_get_one_clear_sentence(folder, text, sentence):
    folder.pictures("a.jpg", "b.jpg")
    file = folder.text("t.csv", text)
    with pytest.raises(DataError, match=sentence) as caught:
        load(file)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("t")


def test_a_header_of_two_lines_is_named_on_one(tmp_path):
    pq.write_table(pa.table({"path": ["a.jpg"], "do\ng": [["x"]]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"columns\.labels=do g` if .*ignore=do g`"):
        load(tmp_path / "t.parquet", skip_missing=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", r"line 1: must be an object, got \[1\]"),
        ('{"path": "a.jpg", "labels": ["x"]}\n{"path": "b.jpg", "labels": "y"}', "one kind"),
        ('{"path": "a.jpg", "labels": [1.5]}', "names of labels, got double"),
        ('{"path": "a.jpg", "labels": {"x": 1}}', "must hold lists or text"),
        ('{"path": "a.jpg", "x": 1}\n{"path": "b.jpg", "y": 1}', "line 2: the key 'y'"),
        ('{"path": "a.jpg", "labels": ["x", ["y"]]}', "plain values or lists of names"),
        (b'{"path": "\xff"}', "line 1: it is not UTF-8"),
        ("", "the table is empty"),
    ],
)
def test_bad_json_lines(folder, text, sentence):
    with pytest.raises(DataError, match=sentence):
        load(folder.text("t.jsonl", text), check_files=False)


@pytest.mark.parametrize("changed", [b"a.png", b"dog", b"forest", b"train"])
def test_parquet_text_that_is_not_utf8_is_named(folder, tmp_path, changed):
    """Bytes that Arrow does not look at until a text is made of them, of each kind of column."""
    columns = {"path": ["b.png", "a.png"], "labels": [["cat"], ["dog"]]}
    columns |= {"group": ["sea", "forest"], "split": ["test", "train"]}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content.replace(changed, b"\xff" + changed[1:]))
    with pytest.raises(DataError, match=r"t\.parquet.*: the column '\w+' holds text that is not"):
        load(path, check_files=False)


def test_bad_parquet(folder):
    with pytest.raises(DataError, match="not a Parquet file"):
        load(folder.text("t.parquet", "hello"))
    pq.write_table(
        pa.table({"path": ["a"], "image": ["text"], "labels": [["x"]]}), folder.path / "u.parquet"
    )
    with pytest.raises(DataError, match="must hold image bytes, got string; if it names files, "):
        load(folder.path / "u.parquet")
    made = pa.table({"image": [b"1"], "labels": pa.array([7], pa.int64())})
    pq.write_table(made.replace_schema_metadata({b"classes": b'["x"]'}), folder.path / "v.parquet")
    with pytest.raises(DataError, match=r"'labels' must be in 0\.\.0, got 7"):
        load(folder.path / "v.parquet")


def test_missing_images_are_counted_listed_and_skipped(folder):
    folder.pictures("a.jpg")
    file = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\nc.jpg,y\n")
    table = load(file, skip_missing=True)
    assert list(table.ids) == ["a.jpg"]
    assert table.space.names == ("x", "y")
    assert "2 of 3 images are missing" in table.notes[0]
    assert "'b.jpg', 'c.jpg'" in table.notes[0]
    assert len(load(file, check_files=False)) == 3


def test_unknown_labels_options_formats_and_places(folder):
    file = folder.text("t.csv", "path,labels\na.jpg,dgo\n")
    with pytest.raises(DataError, match="row 1: unknown label 'dgo'; did you mean 'dog'"):
        load(file, names=["dog", "cat"])
    with pytest.raises(SettingsError, match="no option 'seperator'; did you mean 'separator'"):
        load(file, seperator=",")
    with pytest.raises(SettingsError, match="unknown data format 'cocoo'; did you mean 'coco"):
        load(file, format="cocoo")
    with pytest.raises(SettingsError, match="cannot mean 'label'"):
        load(file, columns={"label": "labels"})
    with pytest.raises(DataError, match="no file or folder 'nowhere"):
        load("nowhere.csv")
    with pytest.raises(DataError, match="format is not recognised"):
        load(folder.text("t.xyz", "?"))
    other = folder.text("u.csv", "path,x,y\nb.jpg,1,0\n")
    with pytest.raises(DataError, match="must have the same columns"):
        load(f"{file};{other}")


def test_many_blocks_keep_row_numbers_and_one_vocabulary(folder, monkeypatch):
    monkeypatch.setattr("labelwise.data.tabular.BLOCK_BYTES", 256)
    lines = [f"{row}.jpg,{'x' if row % 2 else 'w'}|l{row % 7}" for row in range(500)]
    file = folder.text("t.csv", "path,labels\n" + "\n".join(lines))
    table = load(file, check_files=False)
    names = [{table.space.names[c] for c in table.present.row(row)} for row in range(500)]
    assert names == [set(line.split(",")[1].split("|")) for line in lines]
    lines[400] += ",oops"
    file = folder.text("t.csv", "path,labels\n" + "\n".join(lines))
    with pytest.raises(DataError, match=r"line 402: 400\.jpg,w\|l1,oops\."):
        load(file, check_files=False)


def drawn_batch(seed, bad):
    """Return columns of every kind in some order; ``bad`` puts a word into one that is text."""
    random = np.random.default_rng(seed)

    def pick(*values):
        return [values[n] for n in random.integers(0, len(values), 7)]

    makers = (
        lambda: pa.array(pick("1", "0", "", " True ", "-1", "0.25", None)),
        lambda: pa.array(pick(1, 0, None, -1), pa.int64()),
        lambda: pa.array(pick(1.0, 0.0, float("nan"), 0.5, None), pa.float64()),
        lambda: pa.array(pick(True, False, None)),
        lambda: pa.nulls(7),
    )
    columns = [makers[n]() for n in np.sort(random.integers(0, len(makers), 20))]
    if bad:
        place = int(random.integers(0, len(columns) + 1))
        columns.insert(place, pa.array([*pick("1", "0")[:-1], "maybe"]))
    headers = [f"label {n}" for n in range(len(columns))]
    return pa.record_batch(columns, headers), headers


def told(batch, headers):
    try:
        found = read_one_hot(
            batch, headers, lambda row: f"row {row}", soft=True, minus_one="unknown"
        )
    except DataError as error:
        return str(error)
    *rows, shares, minus_ones = found
    parts = [[part.sizes.tolist(), part.numbers.tolist()] for part in rows]
    return [*parts, shares.tolist(), minus_ones]


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_columns_read_together_are_as_each_alone(monkeypatch, seed, bad):
    batch, headers = drawn_batch(seed, bad)
    together = told(batch, headers)
    assert isinstance(together, str) == bad
    monkeypatch.setattr("labelwise.data.columns.VALUES", 1)
    assert together == told(batch, headers)

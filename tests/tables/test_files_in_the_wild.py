"""Files and folders as tools really write them. Oracle: what the formats' documentation says."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sample_pictures import jpeg, states

from labelwise.errors import DataError, SettingsError
from labelwise.pictures import FeatureRows
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.tables import LabelTable, describe, export, load


def test_lvis_is_federated_so_what_nobody_looked_for_is_unknown(folder):
    names = ["train2017/000000000001.jpg", "val2017/000000000002.jpg"]
    place = "http://images.cocodataset.org/"
    content = {
        "images": [
            {"id": n, "coco_url": place + name, "neg_category_ids": [3] * (n == 1)}
            for n, name in enumerate(names, 1)
        ],
        "categories": [{"id": n, "name": name} for n, name in ((1, "x"), (3, "y"), (7, "z"))],
        "annotations": [{"image_id": 1, "category_id": 1}, {"image_id": 2, "category_id": 7}],
    }
    folder.pictures(*names)
    table = load(folder.text("lvis_v1_train.json", json.dumps(content)))
    assert (list(table.ids), states(table)) == (names, ["10?", "??1"])
    assert "neg_category_ids are unknown" in table.notes[0]
    content["images"][0]["neg_category_ids"] = [1]
    with pytest.raises(DataError, match=r"image 1: 'x' cannot be both .* and in neg_category_ids"):
        load(folder.text("broken.json", json.dumps(content)))


def test_a_voc_list_without_class_files_is_left_out(folder):
    """VOC 2012's test.txt names 10,991 images whose classes were never published."""
    main = "VOC2012/ImageSets/Main"
    for part in ("train", "val", "test"):
        folder.text(f"{main}/{part}.txt", f"of_{part}\n")
        folder.pictures(f"VOC2012/JPEGImages/of_{part}.jpg")
        if part != "test":
            folder.text(f"{main}/dog_{part}.txt", f"of_{part}  1\n")
            folder.text(f"{main}/cat_{part}.txt", f"of_{part} -1\n")
    table = load(folder.path)
    assert (table.split.tolist(), states(table)) == (["train", "val"], ["01", "01"])
    assert any("the 1 image of test.txt" in note for note in table.notes)
    with pytest.raises(DataError, match=r"_test\.txt: the file is missing"):
        load(folder.path, parts={"test": "test"})


def test_a_name_that_the_labelmap_does_not_list_is_told(folder):
    folder.pictures("JPEGImages/a.jpg", "JPEGImages/b.jpg")
    listed = "# label:color_rgb:parts:actions\r\nbackground:0,0,0::\r\ndog:::\r\n"
    folder.text("labelmap.txt", listed)
    for image, name in (("a", "dgo"), ("b", "dog")):
        xml = f"<annotation><object><name>{name}</name></object></annotation>"
        folder.text(f"Annotations/{image}.xml", xml)
    table = load(folder.path)
    assert table.space.names == ("dog", "dgo")
    assert "labelmap.txt does not list: 'dgo'" in table.notes[0]
    folder.text("labelmap.txt", "dog:::\ndgo:::\n")
    assert load(folder.path).notes == ()


def test_objects_of_cvat_and_label_studio_are_labels_as_in_coco(folder):
    folder.pictures("a.jpg", "b.jpg")
    text = (
        "<annotations><meta><task><labels><label><name>dog</name></label><label><name>cat</name>"
        '</label></labels></task></meta><image id="0" name="a.jpg" subset="Train"><box label="dog" '
        'xtl="1" ytl="1" xbr="3" ybr="3"/><polygon label="cat" points="1,1;2,2;3,1"/></image>'
        '<image id="1" name="b.jpg" subset="Validation"><tag label="cat" source="manual">'
        '<attribute name="p">0.83</attribute></tag></image></annotations>'
    )
    table = load(folder.text("annotations.xml", text))
    assert (table.space.names, states(table)) == (("dog", "cat"), ["11", "01"])
    assert table.split.tolist() == ["train", "val"]
    box = {"x": 1, "y": 1, "width": 2, "height": 2, "rectanglelabels": ["dog"]}
    drawn = [{"type": "rectanglelabels", "value": box}]
    results = {"a.jpg": [{"result": drawn}], "b.jpg": [{"result": []}]}
    tasks = [{"data": {"image": name}, "annotations": made} for name, made in results.items()]
    assert states(load(folder.text("tasks.json", json.dumps(tasks)))) == ["1", "0"]
    choices = {"a.jpg": "dog", "b.jpg": None}
    least = json.dumps([{"id": 1, "image": name, "choice": c} for name, c in choices.items()])
    assert states(load(folder.text("min.json", least))) == ["1", "?"]


def test_minus_one_may_mean_absent(folder):
    """CelebA codes its attributes as 1 and -1; elsewhere -1 is unknown, and nobody can tell."""
    folder.pictures("1.jpg", "2.jpg")
    table = folder.text("celeba.csv", "image_id,Bald,Hat\n1.jpg,-1,1\n2.jpg,-1,-1\n")
    path = {"path": "image_id"}
    unknown = load(table, columns=path, minus_one="unknown")
    assert states(unknown) == ["?1", "??"]
    assert "never 0" in unknown.notes[0]
    absent = load(table, columns=path, minus_one="absent")
    assert (states(absent), absent.notes) == (["01", "00"], ())
    mixed = folder.text("mixed.csv", "path,Bald,Hat\n1.jpg,-1,1\n2.jpg,0,-1.0\n")
    told = load(mixed, minus_one="unknown")
    assert (states(told), told.notes) == (["?1", "0?"], ())
    with pytest.raises(DataError, match=r"-1 means unknown.*`--set minus_one=unknown`"):
        load(mixed)
    with pytest.raises(SettingsError, match="minus_one is for one column per label"):
        load(folder.text("lists.csv", "path,labels\n1.jpg,Bald\n"), minus_one="absent")


def unchecked(table, **options):
    return load(table, check_files=False, **options)


def test_blanks_around_the_names_of_columns(folder):
    """Roboflow writes a blank after each comma of its _classes.csv."""
    table = unchecked(folder.text("_classes.csv", "filename, dog, cat\na.jpg, 1, 0\nb.jpg, 0, 0\n"))
    assert (table.space.names, states(table)) == (("dog", "cat"), ["10", "00"])
    lists = folder.text("lists.csv", "path, labels , unknown\na.jpg, dog, cat\n")
    assert states(unchecked(lists)) == ["?1"]
    other = folder.text("other.csv", "path, tags, note\na.jpg, dog, cat\n")
    assert unchecked(other, columns={"labels": "tags"}).space.names == ("dog",)


def test_row_numbers_that_pandas_wrote_are_no_label(folder):
    """``to_csv`` writes them without a name, ``to_parquet`` as __index_level_0__."""
    columns = {"path": ["a.jpg", "b.jpg"], "dog": [1, 0], "__index_level_0__": [0, 1]}
    pq.write_table(pa.table(columns), folder.path / "t.parquet")
    folder.text("t.csv", ",path,dog\n0,a.jpg,1\n1,b.jpg,0\n")
    for table in map(unchecked, (folder.path / "t.csv", folder.path / "t.parquet")):
        assert (table.space.names, states(table)) == (("dog",), ["1", "0"])


def test_paths_that_windows_wrote(folder):
    folder.pictures("photos/a.jpg", "photos/b.jpg")
    table = load(folder.text("t.csv", "path,labels\r\nphotos\\a.jpg,dog\r\nphotos/b.jpg,\r\n"))
    assert list(table.ids) == ["photos/a.jpg", "photos/b.jpg"]
    assert table.notes == ("1 path had \\ between folders, read as /",)
    coco = load(folder.text("annotations/instances.json", coco_json(["photos\\a.jpg"], [])))
    assert list(coco.ids) == ["photos/a.jpg"]
    folder.pictures("odd\\name.jpg")  # a name that really has one
    odd = load(folder.text("odd.csv", "path,labels\nodd\\name.jpg,dog\n"))
    assert (list(odd.ids), odd.notes) == (["odd\\name.jpg"], ())
    with pytest.raises(DataError, match=r"1 of 1 image is missing"):
        load(folder.text("gone.csv", "path,labels\nphotos\\gone.jpg,dog\n"))


def test_class_numbers_of_webdataset(folder):
    """ImageNet's shards: key.cls is a number, key.json holds facts of another kind."""
    files = {"a.jpg": jpeg(1), "a.cls": b"1", "a.json": b'{"filename": "a"}'}
    place = folder.tar("one.tar", files | {"b.jpg": jpeg(2), "b.cls": b"0\n"})
    assert load(place).space.names == ("0", "1")
    assert states(load(place, names=["tench", "goldfish", "shark"])) == ["010", "100"]
    assert states(load(place, names=["1", "0"])) == ["10", "01"]
    with pytest.raises(DataError, match=r"one.tar/a.jpg: the class must be in 0\.\.0, got 1"):
        load(place, names=["tench"])
    captions = {"a.jpg": jpeg(1), "a.txt": b"a dog on a beach", "a.json": b'{"url": "x"}'}
    with pytest.raises(DataError, match=r"a.json: there must be a key 'labels'"):
        load(folder.tar("two.tar", captions))


def test_labels_that_look_like_numbers_or_nothing_stay_what_they_are(folder):
    text = "id,labels\n007,007|7\n7,NaN\n0,None|NA|null\n"
    table = unchecked(folder.text("t.csv", text), extension=".jpg", means_none=[])
    assert table.space.names == ("007", "7", "NA", "NaN", "None", "null")
    assert list(table.ids) == ["007.jpg", "7.jpg", "0.jpg"]
    assert states(table) == ["110000", "000100", "001011"]


def test_an_image_with_very_many_labels_is_described():
    """11,000 labels of one image are 60 million pairs, which would take gigabytes."""
    names = [f"label {k}" for k in range(11_000)]
    images = FeatureRows(np.zeros((1, 2), np.float32))
    assert describe(LabelTable.from_arrays(names, images, np.ones((1, 11_000), bool))).pairs == []
    few = LabelTable.from_arrays(names[:3], images, np.ones((1, 3), bool))
    assert len(describe(few).pairs) == 3


def test_imagenet_as_kaggle_has_it(folder):
    """LOC_val_solution.csv lies beside the folder ILSVRC, the images below it."""
    names = ("train/n1/a.JPEG", "train/n2/b.JPEG", "val/v.JPEG")
    folder.pictures(*(f"kaggle/ILSVRC/Data/CLS-LOC/{name}" for name in names))
    folder.text("kaggle/LOC_val_solution.csv", "ImageId,PredictionString\nv,n2 1 2 3 4 \n")
    kaggle = folder.path / "kaggle"
    for table in (load(kaggle), load(kaggle / "ILSVRC", format="imagenet")):
        assert (table.space.names, states(table)) == (("n1", "n2"), ["10", "01", "01"])
        assert table.split.tolist() == ["train", "train", "test"]


def coco_json(names, present):
    content = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [{"image_id": n, "category_id": c} for n, c in present],
    }
    return json.dumps(content)


OWN = "annotations/instances_{}.json"


@pytest.mark.parametrize(
    ("file", "images"),
    [(OWN, "{}"), (OWN, "images/{}"), (OWN, "{}/images"), ("{}/_annotations.coco.json", "{}")],
)
def test_a_coco_root_is_recognised_and_its_parts_are_splits(folder, file, images):
    for part, count in (("train2017", 3), ("val2017", 2)):
        names = [f"{part}-{n}.jpg" for n in range(count)]
        folder.pictures(*(f"{images.format(part)}/{name}" for name in names))
        folder.text(file.format(part), coco_json(names, [(0, 7), (1, 3)]))
        folder.text(f"annotations/captions_{part}.json" if file == OWN else "notes.json", "{}")
    table = load(folder.path)
    assert table.split_sizes() == {"train": 3, "val": 2}
    assert (table.space.names, table.zero_label().sum()) == (("dog", "cat"), 1)
    assert table.notes[0].startswith(f"reads as COCO: 2 parts ({file.format('train2017')}, ")


def test_coco_files_that_are_no_splits_say_the_way_out(folder):
    for part in "ab":
        folder.text(OWN.format(part), coco_json([f"{part}.jpg"], [(0, 7)]))
    with pytest.raises(DataError, match=r"name them as 'train=coco:A\.json;test=coco:B\.json'"):
        load(folder.path)


def voc(folder, base, images):
    xml = "<annotation><object><name>{}</name><difficult>{}</difficult></object></annotation>"
    for image, (label, difficult) in images.items():
        folder.pictures(f"{base}/JPEGImages/{image}.jpg")
        folder.text(f"{base}/Annotations/{image}.xml", xml.format(label, difficult))


def test_voc_sets_of_two_years_below_their_root_are_joined(folder):
    base = "VOCdevkit/VOC20"
    voc(folder, f"{base}07", {"a": ("dog", 0), "b": ("cat", 0), "c": ("cat", 1)})
    folder.text(f"{base}07/ImageSets/Main/trainval.txt", "a\nb\n")
    folder.text(f"{base}07/ImageSets/Main/test.txt", "c\n")
    voc(folder, f"{base}12", {"d": ("dog", 0), "e": ("cat", 0)})
    folder.text(f"{base}12/ImageSets/Main/train.txt", "d\ne\n")
    table = load(folder.path)
    assert table.split_sizes() == {"train": 4, "test": 1}
    assert table.notes[0].endswith("VOC: 2 parts (VOCdevkit/VOC2007, VOCdevkit/VOC2012)")
    assert (table.space.names, states(table)) == (("cat", "dog"), ["?0", "01", "10", "01", "10"])


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("holiday", "holiday", "the one label 'holiday'.* name its format as FORMAT:"),
        ("train2017", "val2017", "'train2017', 'val2017' are splits, not classes"),
    ],
)
def test_folders_that_are_no_classes_are_refused(folder, first, second, sentence):
    folder.pictures(f"{first}/a.jpg", f"{second}/b.jpg")
    with pytest.raises(DataError, match=sentence):
        load(folder.path)


def test_pipes_devices_and_broken_links_are_passed_over(folder):
    folder.pictures("cat/a.jpg", "dog/b.jpg")
    os.mkfifo(folder.path / "cat/pipe.jpg")
    (folder.path / "dog/zero.jpg").symlink_to("/dev/zero")
    (folder.path / "dog/gone.jpg").symlink_to("nowhere")
    (folder.path / "dog/again").symlink_to(folder.path)
    assert len(load(folder.path)) == 2


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.tar", "t.parquet", "t.jsonl"])
def test_a_pipe_for_a_table_does_not_hang(folder, name):
    os.mkfifo(folder.path / name)
    with pytest.raises(DataError):
        load(folder.path / name)
    (folder.path / "d").mkdir()
    os.mkfifo(folder.path / "d" / name)
    with pytest.raises(DataError):
        load(folder.path / "d")


def test_names_that_are_not_utf_8(folder):
    folder.pictures(*map(os.fsdecode, (b"cat/caf\xe9.jpg", b"cat/b.jpg", b"d\xf6g/c.jpg")))
    table = load(folder.path)
    assert list(table.ids) == ["cat/b.jpg", "cat/caf\\xe9.jpg", "d\\xf6g/c.jpg"]
    assert table.space.names == ("cat", "d\\xf6g")
    assert table.subset([2, 1]).images.read(1).size == (8, 6)
    with pytest.raises(DataError, match="is not UTF-8; rename"):
        export(table, folder.path / "t.csv")
    assert not (folder.path / "t.csv").exists()


def test_heic_and_jpeg_2000_are_read_where_they_can_be(folder):
    pillow_heif = pytest.importorskip("pillow_heif")
    picture = Image.new("RGB", (32, 24), "teal")
    folder.pictures("cat/a.jpg", "dog/a.jpg")
    pillow_heif.from_pillow(picture).save(folder.path / "dog/b.heic")
    picture.save(folder.path / "cat/c.jp2")
    table = load(folder.path)
    assert list(table.ids) == ["cat/a.jpg", "cat/c.jp2", "dog/a.jpg", "dog/b.heic"]
    for row in (1, 3):
        pixels = np.asarray(table.images.read(row), np.int64)
        assert pixels.shape == (24, 32, 3)
        assert abs(pixels - (0, 128, 128)).max() < 8


def test_pictures_that_are_skipped_are_named(folder, monkeypatch):
    heic = frozenset({".heic", ".heif"})  # as if pillow-heif were not installed
    monkeypatch.setattr("labelwise.pictures.decode.UNREAD_SUFFIXES", heic)
    monkeypatch.setattr("labelwise.pictures.decode.IMAGE_SUFFIXES", IMAGE_SUFFIXES - heic)
    folder.pictures("cat/a.jpg", "dog/b.jpg")
    folder.pictures("dog/c.HEIC", "dog/d.heif")
    (note,) = load(folder.path).notes
    assert note.startswith("skipped 1 .heic, 1 .heif")
    assert "labelwise[photos]" in note


def test_image_sets_without_states_take_the_labels_of_the_xml(folder):
    voc(folder, ".", {"a": ("dog", 0), "b": ("cat", 0), "c": ("dog", 0)})
    folder.text("ImageSets/Main/train.txt", "a\nb\n")
    folder.text("ImageSets/Main/dog_train.txt", "a\n")
    table = load(folder.path)
    assert (table.space.names, states(table)) == (("cat", "dog"), ["01", "10"])
    assert "only list images, without 1, -1 or 0" in table.notes[0]
    assert table.notes[-1] == "left out: 1 photo of JPEGImages that no image set lists"
    (folder.path / "Annotations/b.xml").unlink()
    with pytest.raises(DataError, match=r"b.xml: the file that says what b shows is missing; add"):
        load(folder.path)
    folder.text("ImageSets/Main/train.txt", "a\n")
    assert len(load(folder.path)) == 1


@pytest.mark.parametrize("xml", [".", "annotations"])
@pytest.mark.parametrize("part", [".", "train"])
def test_xml_beside_photos_says_what_they_show(folder, part, xml):
    """As LabelImg, Roboflow and many collections write it."""
    photos = f"{part}/{'.' if xml == '.' else 'images'}"
    folder.pictures(*(f"{photos}/{number}.jpg" for number in range(3)))
    for number, names in enumerate((("dog",), ("dog", "cat"))):
        things = "".join(f"<object><name>{name}</name></object>" for name in names)
        folder.text(f"{part}/{xml}/{number}.xml", f"<annotation>{things}</annotation>")
    table = load(folder.path)
    assert (table.space.names, states(table)) == (("cat", "dog"), ["01", "11"])
    assert table.notes == ("left out: 1 photo without an XML file",)
    assert table.images.read(1).size == (8, 6)
    assert table.split_sizes() == ({} if part == "." else {"train": 2})


def test_a_folder_of_classes_may_hold_other_xml(folder):
    with pytest.raises(DataError, match="the folder is empty; give one with photos"):
        load(folder.path)
    folder.pictures("a.jpg")
    with pytest.raises(DataError, match="there are 1 photos and nothing says what they show"):
        load(folder.path)
    (folder.path / "a.jpg").unlink()
    folder.pictures("dog/0.jpg", "cat/0.jpg")
    folder.text("notes.xml", "<notes/>")
    assert load(folder.path).space.names == ("cat", "dog")

"""Files as tools really write them. Oracle: what the format's documentation says they mean."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_pictures import jpeg

from labelwise.data import LabelTable, describe, load
from labelwise.errors import DataError, SettingsError
from labelwise.pictures import FeatureRows


def states(table):
    """Return one text per row: 1 present, 0 absent, ? unknown."""
    marks = np.where(table.unknown.dense(), "?", np.where(table.present.dense(), "1", "0"))
    return ["".join(row) for row in marks]


PLACE = "http://images.cocodataset.org/"
LVIS = {
    "images": [
        {"id": 1, "coco_url": f"{PLACE}train2017/000000000001.jpg", "neg_category_ids": [3]},
        {"id": 2, "coco_url": f"{PLACE}val2017/000000000002.jpg", "neg_category_ids": []},
    ],
    "categories": [{"id": n, "name": name} for n, name in ((1, "can"), (3, "zebra"), (7, "cream"))],
    "annotations": [{"image_id": 1, "category_id": 1}, {"image_id": 2, "category_id": 7}],
}


def test_lvis_is_federated_so_what_nobody_looked_for_is_unknown(folder):
    folder.pictures("train2017/000000000001.jpg", "val2017/000000000002.jpg")
    table = load(folder.text("lvis_v1_train.json", json.dumps(LVIS)))
    assert states(table) == ["10?", "??1"]
    assert list(table.ids) == ["train2017/000000000001.jpg", "val2017/000000000002.jpg"]
    assert "neg_category_ids are unknown" in table.notes[0]
    broken = json.loads(json.dumps(LVIS))
    broken["images"][0]["neg_category_ids"] = [1]
    with pytest.raises(DataError, match=r"image 1 cannot be both .* and in 'neg_category_ids'"):
        load(folder.text("broken.json", json.dumps(broken)))


def test_a_voc_list_without_class_files_is_left_out(folder):
    """VOC 2012's test.txt names 10,991 images whose classes were never published."""
    main = "VOC2012/ImageSets/Main"
    for part, image in (("train", "2008_000002"), ("val", "2008_000003"), ("test", "2008_000001")):
        folder.text(f"{main}/{part}.txt", f"{image}\n")
        folder.pictures(f"VOC2012/JPEGImages/{image}.jpg")
    for part, image in (("train", "2008_000002"), ("val", "2008_000003")):
        folder.text(f"{main}/dog_{part}.txt", f"{image}  1\n")
        folder.text(f"{main}/cat_{part}.txt", f"{image} -1\n")
    table = load(folder.path)
    assert table.split.tolist() == ["train", "val"]
    assert states(table) == ["01", "01"]
    assert any("the 1 image of test.txt" in note for note in table.notes)
    with pytest.raises(DataError, match=r"_test\.txt: the file is missing"):
        load(folder.path, parts={"test": "test"})


def test_a_name_that_the_labelmap_does_not_list_is_told(folder):
    folder.pictures("JPEGImages/a.jpg", "JPEGImages/b.jpg")
    folder.text(
        "labelmap.txt", "# label:color_rgb:parts:actions\r\nbackground:0,0,0::\r\ndog:::\r\n"
    )
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
    cvat = folder.text(
        "annotations.xml",
        "<annotations><meta><task><labels><label><name>dog</name></label><label><name>cat</name>"
        '</label></labels></task></meta><image id="0" name="a.jpg" subset="Train"><box label="dog" '
        'xtl="1" ytl="1" xbr="3" ybr="3"/><polygon label="cat" points="1,1;2,2;3,1"/></image>'
        '<image id="1" name="b.jpg" subset="Validation"><tag label="cat" source="manual">'
        '<attribute name="p">0.83</attribute></tag></image></annotations>',
    )
    table = load(cvat)
    assert (table.space.names, states(table)) == (("dog", "cat"), ["11", "01"])
    assert table.split.tolist() == ["train", "val"]
    box = {"x": 1, "y": 1, "width": 2, "height": 2, "rectanglelabels": ["dog"]}
    results = {"a.jpg": [{"type": "rectanglelabels", "value": box}], "b.jpg": []}
    tasks = [
        {"data": {"image": image}, "annotations": [{"result": result}]}
        for image, result in results.items()
    ]
    assert states(load(folder.text("tasks.json", json.dumps(tasks)))) == ["1", "0"]
    smaller = [{"id": 1, "image": "a.jpg", "choice": "dog"}]
    with pytest.raises(DataError, match="as JSON, not as JSON-MIN"):
        load(folder.text("min.json", json.dumps(smaller)))


def test_minus_one_may_mean_absent(folder):
    """CelebA codes its attributes as 1 and -1; elsewhere -1 is unknown, and nobody can tell."""
    folder.pictures("1.jpg", "2.jpg")
    table = folder.text("celeba.csv", "image_id,Bald,Hat\n1.jpg,-1,1\n2.jpg,-1,-1\n")
    path = {"path": "image_id"}
    unknown = load(table, columns=path, minus_one="unknown")
    assert states(unknown) == ["?1", "??"]
    assert "never 0" in unknown.notes[0]
    assert "minus_one=absent" in unknown.notes[0]
    absent = load(table, columns=path, minus_one="absent")
    assert states(absent) == ["01", "00"]
    assert absent.notes == ()
    mixed = folder.text("mixed.csv", "path,Bald,Hat\n1.jpg,-1,1\n2.jpg,0,-1.0\n")
    told = load(mixed, minus_one="unknown")
    assert states(told) == ["?1", "0?"]
    assert told.notes == ()
    with pytest.raises(DataError, match=r"row 1: the label column 'Bald' .*minus_one=unknown"):
        load(mixed)
    lists = folder.text("lists.csv", "path,labels\n1.jpg,Bald\n")
    with pytest.raises(SettingsError, match="minus_one is for one column per label"):
        load(lists, minus_one="absent")


def test_blanks_around_the_names_of_columns(folder):
    """Roboflow writes a blank after each comma of its _classes.csv."""
    folder.pictures("a.jpg", "b.jpg")
    table = load(folder.text("_classes.csv", "filename, dog, cat\na.jpg, 1, 0\nb.jpg, 0, 0\n"))
    assert table.space.names == ("dog", "cat")
    assert states(table) == ["10", "00"]
    lists = folder.text("lists.csv", "path, labels , unknown\na.jpg, dog, cat\n")
    assert states(load(lists)) == ["?1"]
    other = folder.text("other.csv", "path, tags, note\na.jpg, dog, cat\n")
    assert load(other, columns={"labels": "tags"}).space.names == ("dog",)


def test_row_numbers_that_pandas_wrote_are_no_label(folder):
    """``to_csv`` writes them without a name, ``to_parquet`` as __index_level_0__."""
    folder.pictures("a.jpg", "b.jpg")
    table = load(folder.text("t.csv", ",path,dog\n0,a.jpg,1\n1,b.jpg,0\n"))
    assert (table.space.names, states(table)) == (("dog",), ["1", "0"])
    columns = {"path": ["a.jpg", "b.jpg"], "dog": [1, 0], "__index_level_0__": [0, 1]}
    pq.write_table(pa.table(columns), folder.path / "t.parquet")
    again = load(folder.path / "t.parquet")
    assert (again.space.names, states(again)) == (("dog",), ["1", "0"])


def test_paths_that_windows_wrote(folder):
    folder.pictures("photos/a.jpg", "photos/b.jpg")
    table = load(folder.text("t.csv", "path,labels\r\nphotos\\a.jpg,dog\r\nphotos/b.jpg,\r\n"))
    assert list(table.ids) == ["photos/a.jpg", "photos/b.jpg"]
    assert table.notes == ("1 path had \\ between folders, read as /",)
    image, category = {"id": 1, "file_name": "photos\\a.jpg"}, {"id": 1, "name": "x"}
    content = {"images": [image], "categories": [category], "annotations": []}
    coco = load(folder.text("annotations/instances.json", json.dumps(content)))
    assert list(coco.ids) == ["photos/a.jpg"]
    folder.pictures("odd\\name.jpg")  # a name that really has one
    odd = load(folder.text("odd.csv", "path,labels\nodd\\name.jpg,dog\n"))
    assert list(odd.ids) == ["odd\\name.jpg"]
    assert odd.notes == ()
    with pytest.raises(DataError, match=r"1 of 1 image is missing"):
        load(folder.text("gone.csv", "path,labels\nphotos\\gone.jpg,dog\n"))


def test_class_numbers_of_webdataset(folder):
    """ImageNet's shards: key.cls is a number, key.json holds facts of another kind."""
    files = {"a.jpg": jpeg(1), "a.cls": b"1", "a.json": b'{"filename": "a"}'}
    place = folder.tar("one.tar", files | {"b.jpg": jpeg(2), "b.cls": b"0\n"})
    assert load(place).space.names == ("0", "1")
    named = load(place, names=["tench", "goldfish", "shark"])
    assert states(named) == ["010", "100"]
    assert states(load(place, names=["1", "0"])) == ["10", "01"]
    with pytest.raises(DataError, match=r"one.tar/a.jpg: the class must be in 0\.\.0, got 1"):
        load(place, names=["tench"])
    captions = {"a.jpg": jpeg(1), "a.txt": b"a dog on a beach", "a.json": b'{"url": "x"}'}
    with pytest.raises(DataError, match=r"a.json: there must be a key 'labels'"):
        load(folder.tar("two.tar", captions))


def test_labels_that_look_like_numbers_or_nothing_stay_what_they_are(folder):
    folder.pictures("007.jpg", "7.jpg", "0.jpg")
    text = "id,labels\n007,007|7\n7,NaN\n0,None|NA|null\n"
    table = load(folder.text("t.csv", text), extension=".jpg", means_none=[])
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


@pytest.mark.parametrize("below", ["", "ILSVRC"])
def test_imagenet_as_kaggle_has_it(folder, below):
    """LOC_val_solution.csv lies beside the folder ILSVRC, the images below it."""
    inside = "kaggle/ILSVRC/Data/CLS-LOC"
    folder.pictures(
        f"{inside}/train/n1/a.JPEG", f"{inside}/train/n2/b.JPEG", f"{inside}/val/v.JPEG"
    )
    folder.text("kaggle/LOC_val_solution.csv", "ImageId,PredictionString\nv,n2 1 2 3 4 \n")
    table = load(folder.path / "kaggle" / below, format="imagenet")
    assert states(table) == ["10", "01", "01"]
    assert table.split.tolist() == ["train", "train", "test"]
    if not below:
        assert load(folder.path / "kaggle").space.names == ("n1", "n2")

"""What newcomers point at first, as they type it. Oracle: tiny data sets written by hand."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from sample_pictures import jpeg
from typed import must_run, run

from labelwise.data import load
from labelwise.errors import DataError
from labelwise.pictures.decode import IMAGE_SUFFIXES


def described(path, *options):
    result = must_run("data", "describe", path, "--json", *options)
    return json.loads(result.output)


def coco_json(names, present):
    return json.dumps(
        {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
            "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
            "annotations": [{"image_id": n, "category_id": c} for n, c in present],
        }
    )


@pytest.mark.parametrize("images", ["{}", "images/{}", "{}/images"])
def test_a_coco_root_is_recognised_and_its_parts_are_splits(folder, images):
    for part, count in (("train2017", 3), ("val2017", 2)):
        names = [f"{part}-{n}.jpg" for n in range(count)]
        folder.pictures(*(f"{images.format(part)}/{name}" for name in names))
        folder.text(f"annotations/instances_{part}.json", coco_json(names, [(0, 7), (1, 3)]))
        folder.text(f"annotations/captions_{part}.json", "{}")
    found = described(folder.path)
    assert found["splits"] == {"train": 3, "val": 2}
    assert [label["name"] for label in found["labels"]] == ["dog", "cat"]
    assert found["zero_label"] == 1
    assert found["notes"][0].startswith("reads as COCO: 2 parts (annotations/instances_train2017")


def test_a_roboflow_export_is_coco(folder):
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        names = [f"{part}-{n}.jpg" for n in range(count)]
        folder.pictures(*(f"{part}/{name}" for name in names))
        folder.text(f"{part}/_annotations.coco.json", coco_json(names, [(0, 7)]))
    found = described(folder.path)
    assert found["splits"] == {"train": 2, "val": 1, "test": 1}
    assert "reads as COCO: 3 parts" in found["notes"][0]


def test_coco_files_that_are_no_splits_say_the_way_out(folder):
    folder.pictures("a/x.jpg", "b/y.jpg")
    for part, name in (("a", "x.jpg"), ("b", "y.jpg")):
        folder.text(f"annotations/instances_{part}.json", coco_json([name], [(0, 7)]))
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
    found = described(folder.path)
    assert found["splits"] == {"train": 4, "test": 1}
    assert [label["name"] for label in found["labels"]] == ["cat", "dog"]
    listed = "(VOCdevkit/VOC2007, VOCdevkit/VOC2012)"
    assert found["notes"] == [f"reads as Pascal VOC: 2 parts {listed}"]
    counts = {"present": 2, "absent": 2, "unknown": 1, "share": 0.5}
    assert found["labels"][0] == {"name": "cat"} | counts


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ("holiday/a.jpg", "holiday/b.jpg"),
            "the one label 'holiday'.* name its format as FORMAT:",
        ),
        (("train2017/a.jpg", "val2017/b.jpg"), "'train2017', 'val2017' are splits, not classes"),
    ],
)
def test_folders_that_are_no_classes_are_refused(folder, names, sentence):
    folder.pictures(*names)
    with pytest.raises(DataError, match=sentence):
        load(folder.path)


def test_pipes_devices_and_broken_links_are_passed_over(folder):
    folder.pictures("cat/a.jpg", "dog/b.jpg")
    os.mkfifo(folder.path / "cat/pipe.jpg")
    (folder.path / "dog/zero.jpg").symlink_to("/dev/zero")
    (folder.path / "dog/gone.jpg").symlink_to("nowhere")
    (folder.path / "dog/again").symlink_to(folder.path)
    assert described(folder.path)["images"] == 2


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
    for name in (b"cat/caf\xe9.jpg", b"cat/b.jpg", b"d\xf6g/c.jpg"):
        place = os.path.join(os.fsencode(folder.path), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            stream.write(jpeg())
    table = load(folder.path)
    assert list(table.ids) == ["cat/b.jpg", "cat/caf\\xe9.jpg", "d\\xf6g/c.jpg"]
    assert table.space.names == ("cat", "d\\xf6g")
    part = table.subset([2, 1])
    assert [part.images.read(row).size for row in range(2)] == [(8, 6)] * 2
    assert described(folder.path, "--content")["images"] == 3
    result = run("data", "export", folder.path, "--out", folder.path / "t.csv")
    assert "rename" in str(result.exception)
    assert not (folder.path / "t.csv").exists()


def test_heic_and_jpeg_2000_are_read_where_they_can_be(folder):
    pillow_heif = pytest.importorskip("pillow_heif")
    picture = Image.new("RGB", (32, 24), "teal")
    folder.pictures("cat/a.jpg")
    (folder.path / "dog").mkdir()
    pillow_heif.from_pillow(picture).save(folder.path / "dog/b.heic")
    picture.save(folder.path / "dog/c.jp2")
    table = load(folder.path)
    assert list(table.ids) == ["cat/a.jpg", "dog/b.heic", "dog/c.jp2"]
    for row in (1, 2):
        pixels = np.asarray(table.images.read(row), np.int64)
        assert pixels.shape == (24, 32, 3)
        assert abs(pixels - (0, 128, 128)).max() < 8


def test_pictures_that_are_skipped_are_named(folder, monkeypatch):
    heic = frozenset({".heic", ".heif"})  # as if pillow-heif were not installed
    monkeypatch.setattr("labelwise.pictures.decode.UNREAD_SUFFIXES", heic)
    monkeypatch.setattr("labelwise.pictures.decode.IMAGE_SUFFIXES", IMAGE_SUFFIXES - heic)
    folder.pictures("cat/a.jpg", "dog/b.jpg")
    folder.text("dog/c.HEIC", b"x")
    folder.text("dog/d.heif", b"x")
    (note,) = described(folder.path)["notes"]
    assert note.startswith("skipped 1 .heic, 1 .heif")
    assert "labelwise[photos]" in note

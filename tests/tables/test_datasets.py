"""Each official layout, in miniature: same files, same traps, a few images."""

import json

import numpy as np
import pytest
from sample_pictures import jpeg, states
from scipy.io import savemat

from labelwise.errors import DataError, SettingsError
from labelwise.tables import load


def named(table):
    """Return {image: (present names, unknown names)}."""

    def words(sets, row):
        return {table.space.names[column] for column in sets.row(row)}

    rows = enumerate(table.ids)
    return {name: (words(table.present, row), words(table.unknown, row)) for row, name in rows}


def by_split(table):
    return {name: list(part.ids) for name, part in table.splits().items()}


def coco(folder, name="instances.json", **changes):
    shown = ((10, 1), (10, 1), (100, 90))
    content = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in (9, 10, 100)],
        "categories": [{"id": 90, "name": "zebra"}, {"id": 1, "name": "person"}],
        "annotations": [{"image_id": i, "category_id": c} for i, c in shown],
    }
    return folder.text(name, json.dumps(content | changes))


def test_coco_keeps_category_order_and_reviewed_empty_images(folder):
    folder.pictures("9.jpg", "10.jpg", "100.jpg")
    table = load(coco(folder))
    assert (table.space.names, states(table)) == (("zebra", "person"), ["00", "01", "10"])
    assert list(table.ids) == ["9.jpg", "10.jpg", "100.jpg"]
    assert list(load(coco(folder), string_order=True).ids) == ["10.jpg", "100.jpg", "9.jpg"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": None}, "'images': input should be a valid array"),
        (
            {"images": [{"id": "9", "file_name": "a"}]},
            "images.0.id': .* valid integer",
        ),
        (
            {"annotations": [{"image_id": 7, "category_id": 1}]},
            "file by their ids, got 7",
        ),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "category id .* once"),
        ({"categories": [{"id": 90, "name": "a"}, {"id": 1, "name": "a"}]}, "distinct, got 'a'"),
    ],
)
def test_broken_coco(folder, changes, sentence):
    with pytest.raises(DataError, match=sentence):
        load(coco(folder, **changes), check_files=False)


def test_coco_2014(folder):
    coco(folder, "annotations/instances_train2014.json")
    coco(folder, "annotations/instances_val2014.json")
    folder.pictures(*(f"{part}2014/{i}.jpg" for part in ("train", "val") for i in (9, 10, 100)))
    train, test = ([f"{part}2014/10.jpg", f"{part}2014/100.jpg"] for part in ("train", "val"))
    assert by_split(load(folder.path)) == {"train": train, "test": test}
    assert len(load(folder.path, drop_unlabelled=False)) == 6


def voc(folder):
    for name, lines in (
        *(("dog_train", "a  1\nb -1\nc  0\n"), ("cat_train", "a -1\nb -1\nc  1\n")),
        *(("dog_val", "d -1\n"), ("cat_val", "d  1\n"), ("train", "a\nb\nc\n"), ("val", "d\n")),
    ):
        folder.text(f"ImageSets/Main/{name}.txt", lines)
    part = "<object><name>{}</name><difficult>{}</difficult></object>".format
    objects = {"a": part("dog", 0) + part("dog", 1), "b": "", "d": part("cat", 0)}
    for image, body in (objects | {"c": part("dog", 1) + part("cat", 0)}).items():
        folder.text(f"Annotations/{image}.xml", f"<annotation>{body}</annotation>")
    folder.pictures(*(f"JPEGImages/{image}.jpg" for image in "abcd"))
    return folder.path


@pytest.mark.parametrize("annotations", ["main", "xml"])
def test_voc_difficult_is_unknown_or_absent(folder, annotations):
    table = load(voc(folder), annotations=annotations)
    assert (table.space.names, states(table)) == (("cat", "dog"), ["01", "00", "1?", "10"])
    assert table.split.tolist() == ["train", "train", "train", "val"]
    plain = load(folder.path, annotations=annotations, difficult="absent")
    assert states(plain) == ["01", "00", "10", "10"]
    assert load(f"voc2012:{folder.path}").split.tolist() == ["train"] * 3 + ["test"]


def test_broken_voc(folder):
    path = voc(folder)
    with pytest.raises(SettingsError, match="'unknown' or 'absent', got 'maybe'"):
        load(path, difficult="maybe")
    folder.text("Annotations/b.xml", "<annotation><object>")
    with pytest.raises(DataError, match=r"b\.xml: not XML"):
        load(path, annotations="xml")
    folder.text("ImageSets/Main/dog_train.txt", "a 5\n")
    with pytest.raises(DataError, match="line 1: must be an image and 1, -1 or 0, got 'a 5'"):
        load(path)


def test_image_folders_with_and_without_splits(folder):
    folder.pictures("x/a/1.jpg", "x/a/deep/2.PNG", "x/b/1.jpg", "x/.hidden/x.jpg", "x/b/notes.md")
    table = load(folder.path / "x")
    assert list(table.ids) == ["a/1.jpg", "a/deep/2.PNG", "b/1.jpg"]
    assert (states(table), table.split) == (["10", "10", "01"], None)
    folder.pictures("y/train/cat/1.jpg", "y/valid/dog/1.jpg", "y/test/cat/2.jpg")
    shown = {"train": ["train/cat/1.jpg"], "val": ["valid/dog/1.jpg"], "test": ["test/cat/2.jpg"]}
    assert by_split(load(folder.path / "y")) == shown
    folder.pictures("y/other/cat/1.jpg")
    with pytest.raises(DataError, match="there must be no 'other'"):
        load(folder.path / "y")
    folder.pictures("b/1.jpg")
    with pytest.raises(DataError, match=r"folder of its class, got '1\.jpg'"):
        load(folder.path / "b", format="folder")


def test_webdataset(folder):
    train = {"d/a.jpg": jpeg(1), "d/b.png": jpeg(2, "PNG")}
    train["d/a.json"] = b'{"labels": ["x", "y"], "unknown": ["z"], "group": 7}'
    train["d/b.json"] = b'{"labels": null, "group": 8}'
    folder.tar("train-000.tar", train)
    held = {"c.jpg": jpeg(3), "c.json": b'{"labels": [], "group": "q"}', "__meta": b"?"}
    folder.tar("test-000.tar", held)
    table = load(folder.path)
    assert list(table.ids) == [
        "test-000.tar/c.jpg",
        "train-000.tar/d/a.jpg",
        "train-000.tar/d/b.png",
    ]
    assert (table.space.names, states(table)) == (("x", "y", "z"), ["000", "11?", "???"])
    assert (table.split.tolist(), [*table.group]) == (["test", "train", "train"], ["q", "7", "8"])
    assert table.images.content(2) == jpeg(2, "PNG")
    assert table.subset([2]).images.content(0) == jpeg(2, "PNG")


def test_webdataset_text_classes_and_damage(folder):
    members = {"a.jpg": jpeg(1), "a.txt": b"x|y", "b.jpg": jpeg(2), "b.cls": b"z"}
    path = folder.tar("s.tar", members)
    assert named(load(path)) == {"s.tar/a.jpg": ({"x", "y"}, set()), "s.tar/b.jpg": ({"z"}, set())}
    for wrong, mode, sentence in (
        ({"a.jpg": b"1", "a.txt": b"x", "b.jpg": b"1"}, "w", "'b' must have one image"),
        ({"a.jpg": b"1", "a.json": b"{"}, "w", r"a\.json: not JSON"),
        ({"a.jpg": b"1", "a.json": b"5"}, "w", "must be a list of names, got 5"),
        (members, "w:gz", "not an uncompressed tar"),
    ):
        with pytest.raises(DataError, match=sentence):
            load(folder.tar("t.tar", wrong, mode))
    whole = folder.tar("s.tar", {"a.jpg": jpeg(1), "a.txt": b"x".ljust(512)}).read_bytes()
    end = whole.index(b"x ") + 512
    path.write_bytes(whole[:end])  # without the zeros after the last sample
    assert named(load(path)) == {"s.tar/a.jpg": ({"x"}, set())}
    path.write_bytes(whole[: end - 1])
    with pytest.raises(DataError, match=r"s\.tar: the shard is cut off in 'a\.txt'"):
        load(path)


def cifar_rows(count, seed):
    return np.random.default_rng(seed).integers(0, 255, (count, 3072), np.uint8)


def test_cifar10(folder):
    for number, file in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        rows = np.c_[np.arange(number, number + 4, dtype=np.uint8), cifar_rows(4, number)]
        folder.text(f"bin/{file}.bin", rows.tobytes())
    folder.text("bin/batches.meta.txt", "".join(f"class{n}\n" for n in range(10)) + "\n")
    table = load(folder.path / "bin")
    assert table.split.tolist() == ["train"] * 20 + ["test"] * 4
    assert table.targets()[0][20:].argmax(1).tolist() == [5, 6, 7, 8]
    expected = cifar_rows(4, 5)[0].reshape(3, 32, 32)[:, 3, 7]
    np.testing.assert_array_equal(table.images.pixels[20, 3, 7], expected)
    folder.text("bin/data_batch_1.bin", b"short")
    with pytest.raises(DataError, match="must be records of 3073 bytes"):
        load(folder.path / "bin")
    for name, archive in (("batches.meta", "cifar-10-binary"), ("meta", "cifar-100-binary")):
        folder.text(f"{name}-py/{name}", b"cos\nsystem\n(S'true'\ntR.")
        with pytest.raises(DataError, match=rf"opens no pickles\. .*{archive}\.tar\.gz"):
            load(f"{archive[:-7].replace('-', '')}:{folder.path}/{name}-py")


def test_cifar100_and_cifar60_40(folder):
    for part, count in (("train", 100), ("test", 20)):
        codes = np.array([[n % 20, n] for n in range(count)], np.uint8)
        folder.text(f"bin/{part}.bin", np.c_[codes, cifar_rows(count, count)].tobytes())
    fine, coarse = [f"fine{n:02d}" for n in range(100)], [f"coarse{n}" for n in range(20)]
    for kind, names in (("fine", fine), ("coarse", coarse)):
        folder.text(f"bin/{kind}_label_names.txt", "\n".join(names))
    path = folder.path / "bin"
    for labels, column in (("fine", [*range(100), *range(20)]), ("coarse", [*range(20)] * 6)):
        assert load(path, labels=labels).targets()[0].argmax(1).tolist() == column
    both = load(path, labels="both")
    assert both.space.names == (*fine, *coarse)
    expected = [[n, 100 + n % 20] for n in (*range(100), *range(20))]
    assert [both.present.row(row).tolist() for row in range(120)] == expected
    open_set = load(f"cifar60+40:{path}")
    assert len(open_set.space) == 60
    assert open_set.splits()["train"].zero_label().sum() == 40
    kept = np.flatnonzero(~open_set.splits()["train"].zero_label())
    assert [f"fine{n:02d}" for n in kept] == list(open_set.space.names)


def test_tiny_imagenet(folder):
    folder.text("wnids.txt", "n2\nn1\n")
    folder.pictures("train/n1/images/n1_0.JPEG", "train/n2/images/n2_0.JPEG", "val/images/v.JPEG")
    folder.text("train/n1/n1_boxes.txt", "n1_0.JPEG 0 0 1 1")
    folder.text("val/val_annotations.txt", "v.JPEG\tn2\t0\t0\t62\t62\n")
    table = load(folder.path)
    assert (table.space.names, states(table)) == (("n1", "n2"), ["10", "01", "01"])
    assert by_split(table)["test"] == ["val/images/v.JPEG"]


@pytest.mark.parametrize("truth", ["folders", "kit"])
def test_imagenet(folder, truth):
    folder.pictures("train/n1/a.JPEG", "train/n2/b.JPEG")
    inside = "n2/" if truth == "folders" else ""
    folder.pictures(f"val/{inside}ILSVRC2012_val_00000001.JPEG")
    if truth == "kit":
        with pytest.raises(DataError, match="flat validation images need"):
            load(folder.path, format="imagenet")
        base = "ILSVRC2012_devkit_t12/data/"
        folder.text(base + "ILSVRC2012_validation_ground_truth.txt", "1\n")
        kinds = [("ILSVRC2012_ID", int), ("WNID", object), ("num_children", int)]
        synsets = np.array([(1, "n2", 0), (2, "n1", 0)], dtype=kinds)
        savemat(folder.path / base / "meta.mat", {"synsets": synsets})
    table = load(folder.path, format="imagenet")
    assert (table.space.names, states(table)) == (("n1", "n2"), ["10", "01", "01"])
    assert table.split.tolist() == ["train", "train", "test"]


def test_nuswide_flavours(folder):
    everyone = {"actor\\1.jpg": "10", "actor\\2.jpg": "00", "sky\\3.jpg": "11", "sky\\4.jpg": "01"}
    parts = {"Train": list(everyone)[:2], "Test": list(everyone)[2:], "": list(everyone)}
    for part, files in parts.items():
        folder.text(f"ImageList/{part}Imagelist.txt", "\n".join(files))
        for column, name in enumerate(("bear", "sky")):
            marks = "\n".join(everyone[file][column] for file in files)
            place = f"TrainTestLabels/Labels_{name}_{part}" if part else f"AllLabels/Labels_{name}"
            folder.text(f"Groundtruth/{place}.txt", marks + "\n")
    folder.pictures(*(f"Flickr/{file}".replace("\\", "/") for file in everyone))
    path = folder.path
    official = load(path)
    assert list(official.ids) == ["Flickr/actor/1.jpg", "Flickr/sky/3.jpg", "Flickr/sky/4.jpg"]
    assert states(official) == ["10", "11", "01"]
    assert official.split.tolist() == ["train", "test", "test"]
    assert len(load(path, drop_unlabelled=False)) == 4
    gong = load(f"nuswide-gong:{path}")
    assert (gong.split == "train").sum() == round(3 * 150_000 / 209_347)
    assert gong.split.tolist() == load(f"nuswide-gong:{path}").split.tolist()
    folder.text("Groundtruth/AllLabels/Labels_sky.txt", "1\n")
    with pytest.raises(DataError, match="must have 4 lines of 0 or 1, got 1"):
        load(f"nuswide-gong:{path}")


def test_wider_attribute(folder):
    marks = (([1, 0, -1], [1, 2, 4, 3]), ([-1, 1, 1], [0, 0, 2, 2]))
    people = [{"attribute": mark, "bbox": box} for mark, box in marks]
    for part, place in (("trainval", "train"), ("test", "test")):
        content = {
            "attribute_id_map": {"0": "Male", "1": "Hat", "2": "Logo"},
            "images": [{"file_name": f"{place}/0--Parade/1.jpg", "targets": people, "scene_id": 0}],
        }
        folder.text(f"Anno/wider_attribute_{part}.json", json.dumps(content))
        folder.pictures(f"Image/{place}/0--Parade/1.jpg")
    table = load(folder.path)
    assert (table.space.names, table.ids[0]) == (("Male", "Hat", "Logo"), "train/0--Parade/1.jpg#0")
    assert states(table) == ["1?0", "011"] * 2
    assert table.split.tolist() == ["train", "train", "test", "test"]
    assert table.group.codes().tolist() == [0, 0, 1, 1]  # the people of a photo stay together
    assert table.images.read(0).size == (4, 3)
    endless = json.dumps(content).replace("[1, 0, -1]", "[1e999, 0, -1]")
    for damaged in ('{"images": 3}', endless):
        folder.text("Anno/wider_attribute_test.json", damaged)
        with pytest.raises(DataError, match="not a WIDER-Attribute file"):
            load(folder.path)


def test_vispr(folder):
    for part, labels in (("train2017", ["a0_safe"]), ("val2017", ["a4_gender"]), ("test2017", [])):
        note = {"image_path": f"images/{part}/1.jpg", "labels": labels}
        folder.text(f"annotations/{part}/1.json", json.dumps(note))
        folder.pictures(f"images/{part}/1.jpg")
    table = load(folder.path)
    assert (table.space.names, states(table)) == (("a0_safe", "a4_gender"), ["00", "10", "01"])
    assert table.split.tolist() == ["test", "train", "train"]


def test_cub(folder):
    folder.text("images.txt", "1 001.A/a.jpg\n2 002.B/b.jpg\n")
    folder.text("train_test_split.txt", "1 0\n2 1\n")
    folder.text("attributes/attributes.txt", "1 has_bill::dagger\n2 has_wing::blue\n")
    notes = "1 1 1 3 9.1\n1 2 0 1 2.0\n2 1 0 4 1.0\n2 2 1 2 1.0 0\n"
    folder.text("attributes/image_attribute_labels.txt", notes)
    folder.pictures("images/001.A/a.jpg", "images/002.B/b.jpg")
    table = load(folder.path)
    assert table.space.names == ("has_bill::dagger", "has_wing::blue")
    assert (table.ids[0], states(table)) == ("images/001.A/a.jpg", ["10", "01"])
    assert table.split.tolist() == ["test", "train"]
    assert states(load(folder.path, not_visible="unknown")) == ["1?", "01"]


def test_parts_of_any_format_are_joined(folder):
    coco(folder, "a.json")
    coco(folder, "b/b.json")
    source = f"train={folder.path}/a.json;test={folder.path}/b/b.json"
    names = ["9.jpg", "10.jpg", "100.jpg"]
    shown = {"train": names, "test": [f"b/{name}" for name in names]}
    assert by_split(load(source, check_files=False)) == shown
    coco(folder, "c.json", categories=[{"id": 1, "name": "person"}], annotations=[])
    with pytest.raises(DataError, match="must have the same labels, they differ in 'zebra'"):
        load(f"{folder.path}/a.json;{folder.path}/c.json", check_files=False)


def test_a_format_that_left_says_where_its_recipe_is(folder):
    for source, options in (("chexpert:x", {}), (folder.path, {"format": "bigearthnet"})):
        with pytest.raises(SettingsError, match=r"is no longer a format: .* docs/special\.md"):
            load(source, **options)

"""Exports of other programs that a stranger forged: read as what they are, or refused.

The oracle is what an attacker wants and must not get: a file outside the new folder that changes,
a request that leaves http, a picture that fills the memory, a class at another detection; and for
the rest that the answer is one sentence.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from labelwise.contrib.camtrap import is_inside
from labelwise.data import load
from labelwise.data.camera_results import cut_crops, read_camera_results, with_classes
from labelwise.data.rows import parse_xml
from labelwise.errors import DataError
from labelwise.scores.detections import read_detections
from labelwise.scores.unlabelled_pool import holds_answers


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "deployments.csv").write_text("deploymentID\nd\n")
    (folder / "media.csv").write_text(
        "mediaID,deploymentID,timestamp,filePath,fileMediatype\n"
        "m,d,2024-05-01T06:30:00Z,a.jpg,image/jpeg\n"
    )
    (folder / "observations.csv").write_text(
        "observationID,deploymentID,mediaID,eventStart,eventEnd,observationLevel,observationType,"
        "scientificName\no,d,m,2024-05-01T06:30:00Z,2024-05-01T06:30:00Z,media,animal,Sus scrofa\n"
    )
    return folder


def state(folder, *more, **places):
    names = ("deployments", "media", "observations")
    resources = [{"name": name, "path": places.get(name, f"{name}.csv")} for name in names]
    (folder / "datapackage.json").write_text(json.dumps({"resources": [*more, *resources]}))


def test_a_package_cannot_name_tables_outside_it(package, tmp_path):
    outside = tmp_path / "outside.csv"
    outside.write_text((package / "observations.csv").read_text())
    for path in ("../outside.csv", str(outside)):
        state(package, {"name": "observations", "path": path})
        with pytest.raises(DataError, match="once, with a path within the package"):
            load(package)
        state(package, observations=path)
        with pytest.raises(DataError, match="within the package"):
            load(package)
    state(package, {"name": ["media"]})
    assert len(load(package, check_files=False)) == 1


@pytest.mark.parametrize("place", ["a.csv", "tables/a.csv"])
def test_paths_within(place):
    assert is_inside(place)


@pytest.mark.parametrize(
    "place",
    ["", "/a", "../a", "a/../../b", "C:\\a", "..\\a", "\\\\host\\a", "a\nb", "a\0", "s3://a"],
)
def test_paths_that_lead_elsewhere(place):
    assert not is_inside(place)


def results(folder, file, **more):
    box = {"category": "1", "conf": 0.9, "bbox": [0, 0, 1, 1]}
    facts = {"images": [{"file": file, "detections": [box]}], "detection_categories": {"1": "x"}}
    path = folder / "md.json"
    path.write_text(json.dumps(facts | more))
    return path


def test_crops_are_not_cut_of_a_picture_too_large(tmp_path, monkeypatch):
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "199")
    with pytest.raises(DataError, match=r"more than .* pixels"):
        cut_crops(read_camera_results(results(tmp_path, "a.png")), tmp_path, tmp_path / "out")


@pytest.mark.parametrize("file", ["../secret.png", "{}/secret.png", "a/../../secret.png"])
def test_crops_are_cut_below_the_folder_alone(tmp_path, file):
    root = tmp_path / "photos"
    (root / "a").mkdir(parents=True)
    Image.new("L", (20, 10)).save(tmp_path / "secret.png")
    found = read_camera_results(results(tmp_path, file.format(tmp_path)))
    with pytest.raises(DataError, match=r"secret\.png is not below .*--root"):
        cut_crops(found, root, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.png"))
    if "{" in file:
        assert cut_crops(found, tmp_path, tmp_path / "out") == 1


def test_boxes_without_an_area_are_not_cut(tmp_path):
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    boxes = [[0.2, 0.2, 0, 0.5], [0.2, 0.2, 0.5, 0], [1, 0, 0.1, 0.1], [0, 1, 0.1, 0.1]]
    listed = [{"category": "1", "conf": 0.9, "bbox": box} for box in [*boxes, [0, 0, 0.01, 1]]]
    images = [{"file": "a.png", "detections": listed}]
    found = read_camera_results(results(tmp_path, "a.png", images=images))
    assert cut_crops(found, tmp_path, tmp_path / "out") == 1
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["000000-4.png"]


@pytest.mark.parametrize("number", ["-1", "", "x", "1", "٣"])
def test_classes_are_put_at_the_detection_that_was_cut(tmp_path, number):
    content = json.loads(results(tmp_path, "a.png").read_text())
    row = {"path": "c.png", "image": "a.png", "detection": number}
    with pytest.raises(DataError, match="cut the crops again"):
        with_classes(content, [row], {"c.png": {"fox": 0.5}})
    _, given = with_classes(content, [row | {"detection": "0"}], {"c.png": {"fox": 0.5}})
    assert given == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"filepath": "a", "classifications": {"classes": [], "scores": []}, "detections": 7},
        {"filepath": "a", "classifications": {"classes": [], "scores": []}, "detections": {"a": 1}},
    ],
)
def test_detections_that_are_not_a_list(tmp_path, facts):
    (tmp_path / "s.json").write_text(json.dumps({"predictions": [facts]}))
    with pytest.raises(DataError, match="'detections' must be a list"):
        read_camera_results(tmp_path / "s.json")


PATCH = {"patch_id": ["T_1_2"], "labels": [["Pastures"]], "split": ["train"]}


@pytest.mark.parametrize(
    "change",
    [
        {"patch_id": [None]},
        {"patch_id": [1.5]},
        {"split": [["train"]]},
        {"labels": ["Pastures"]},
        {"labels": [[None]]},
        {"labels": [None]},
    ],
)
def test_columns_of_bigearthnet_that_hold_something_else(tmp_path, change):
    pq.write_table(pa.table(PATCH), tmp_path / "metadata.parquet")
    assert len(load(f"bigearthnet:{tmp_path}", check_files=False)) == 1
    pq.write_table(pa.table(PATCH | change), tmp_path / "metadata.parquet")
    with pytest.raises(DataError, match=r"must hold|there is no") as caught:
        load(f"bigearthnet:{tmp_path}", check_files=False)
    assert "\n" not in str(caught.value)


CALL = {
    "Start (s)": [0.0],
    "Scientific name": ["Parus"],
    "Common name": ["Tit"],
    "Confidence": [0.5],
    "File": ["a.wav"],
}


@pytest.mark.parametrize("name", list(CALL))
def test_columns_of_detections_that_hold_something_else(tmp_path, name):
    pq.write_table(pa.table(CALL), tmp_path / "d.parquet")
    assert read_detections(tmp_path / "d.parquet").names == ("Parus",)
    pq.write_table(pa.table(CALL | {name: [{"a": 1}]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"the column .* must hold"):
        read_detections(tmp_path / "d.parquet")


def test_text_of_a_table_that_is_not_text(tmp_path):
    """A byte changed in the file, which Arrow does not look at until a text is made of it."""
    for old, new in ((b"Parus", b"P\xecrus"), (b"Scientific name", b"Scientific\xecname")):
        pq.write_table(pa.table(CALL), tmp_path / "d.parquet", compression="none")
        content = (tmp_path / "d.parquet").read_bytes()
        (tmp_path / "d.parquet").write_bytes(content.replace(old, new))
        with pytest.raises(DataError):
            read_detections(tmp_path / "d.parquet")
    pq.write_table(pa.table(PATCH), tmp_path / "metadata.parquet", compression="none")
    content = (tmp_path / "metadata.parquet").read_bytes()
    (tmp_path / "metadata.parquet").write_bytes(content.replace(b"Pastures", b"P\xecstures"))
    with pytest.raises(DataError):
        load(f"bigearthnet:{tmp_path}", check_files=False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_entities_are_not_allowed_in_any_encoding(encoding):
    """Expat knows four encodings, and in UTF-16 every other byte is zero."""
    told = encoding[:6].rstrip("-")
    head = f'<?xml version="1.0" encoding="{told}"?>'
    mark = "" if encoding in ("utf-8", "utf-16") else "\ufeff"
    plain = f"{mark}{head}<a>b</a>".encode(encoding)
    assert parse_xml(plain, "a.xml").text == "b"
    forged = f'{mark}{head}<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'.encode(encoding)
    with pytest.raises(DataError, match="entities are not allowed"):
        parse_xml(forged, "a.xml")


def test_a_line_of_brackets_is_not_an_answer(tmp_path):
    (tmp_path / "a.jsonl").write_text("[" * 100_000)
    assert not holds_answers(tmp_path / "a.jsonl")

"""Exports of other programs that a stranger forged: read as what they are, or refused.

The oracle is what an attacker wants and must not get: a file outside the new folder that changes,
a request that leaves http, a picture that fills the memory, a class at another detection; and for
the rest that the answer is one sentence.
"""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lying_server import answering
from PIL import Image

from labelwise.data import load
from labelwise.data.camera_results import cut_crops, read_camera_results, with_classes
from labelwise.data.camtrap_answers import write_camtrap
from labelwise.data.camtrap_package import is_inside
from labelwise.data.iiif import fetch_pictures, services_of
from labelwise.data.rows import parse_xml
from labelwise.errors import DataError
from labelwise.scores.detections import read_detections
from labelwise.scores.pools import holds_answers


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


def written(folder, out):
    return write_camtrap(folder, out, {"a.jpg": {"Sus": 0.9}}, {}, model="m", moment="now")


def test_a_package_cannot_write_outside_the_new_folder(package, tmp_path):
    """Told twice where observations are, one was read and the other one written."""
    victim = tmp_path / "victim.csv"
    victim.write_text("mine")
    for place in (str(victim), "../victim.csv"):
        state(package, {"name": "observations", "path": place})
        with pytest.raises(DataError, match="once, with a path within the package"):
            written(package, tmp_path / "out")
    outside = tmp_path / "outside.csv"
    outside.write_text((package / "observations.csv").read_text())
    for place in ("../outside.csv", str(outside)):
        state(package, observations=place)
        with pytest.raises(DataError, match="within the package"):
            written(package, tmp_path / "out")
    assert (victim.read_text(), outside.read_text()[:3]) == ("mine", "obs")
    state(package, {"name": ["media"]})
    assert written(package, tmp_path / "out") == 1


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


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.0 302 Found\r\nLocation: ftp://127.0.0.1:1/a\r\n\r\n", "unknown url type: ftp"),
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "not allowed"),
        (b"nonsense\r\n\r\n", "cannot be fetched"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{", "cannot be fetched|not JSON"),
        (b"HTTP/1.0 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "cannot be fetched"),
    ],
)
def test_an_image_service_cannot_lead_astray(tmp_path, answer, sentence):
    with answering(answer) as service:
        (tmp_path / "list.txt").write_text(service)
        with pytest.raises(DataError, match=sentence):
            fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "out", 10)


def test_a_redirect_to_http_is_followed(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "JPEG")
    whole = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s"
    info = b'{"width": 4, "height": 4}'
    moved = b"HTTP/1.0 302 Found\r\nLocation: /b\r\n\r\n"
    jpeg = picture.getvalue()
    with answering(moved, whole % (len(info), info), whole % (len(jpeg), jpeg)) as service:
        (tmp_path / "list.txt").write_text(service)
        assert fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "out", 10).fetched == 1


@pytest.mark.parametrize("address", ["http://[::1", "http:///a", "http://a b/", "http://a\u202e/"])
def test_addresses_that_are_none(tmp_path, address):
    facts = {"service": {"id": address, "type": "ImageService3"}}
    (tmp_path / "m.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="must be an http address"):
        services_of(str(tmp_path / "m.json"))


@pytest.mark.parametrize("depth", [300, 960, 5000])
def test_a_manifest_of_any_depth_is_one_sentence(tmp_path, depth):
    (tmp_path / "m.json").write_text('{"items": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(DataError, match=r"names no image|too deeply|not JSON"):
        services_of(str(tmp_path / "m.json"))


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


def test_observations_cut_short_or_told_twice(tmp_path):
    head = "id,quality_grade,image_url,scientific_name\n"
    table = tmp_path / "observations.csv"
    Image.new("RGB", (8, 8)).save(tmp_path / "1.jpg")
    table.write_text(head + "1\n2,research,u,Sus\n")
    found = load(f"inaturalist:{table}", names="id")
    assert list(found.unknown.row(0)) == [0]
    for text in (head.encode() + b"1,research,u,\xff\n", (head + "1,a,u,x\n1,a,u,y\n").encode()):
        table.write_bytes(text)
        with pytest.raises(DataError, match=r"cannot be read|stands there twice"):
            load(f"inaturalist:{table}")


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

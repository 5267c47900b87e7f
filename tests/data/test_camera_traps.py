"""Files of MegaDetector 1.4, SpeciesNet and iNaturalist: what was put in is read."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typed import must_run, run

from labelwise.data.camera_results import bursts, read_camera_results, with_classes
from labelwise.errors import DataError
from labelwise.scores import read_scores
from labelwise.scores.read import read_detections


def megadetector():
    return {
        "info": {"format_version": "1.4", "detector": "MDV5A"},
        "detection_categories": {"1": "animal", "2": "person", "3": "vehicle"},
        "classification_categories": {"0": "fox", "1": "elk"},
        "images": [
            {
                "file": "a/1.png",
                "detections": [
                    {"category": "1", "conf": 0.9, "bbox": [0.25, 0.5, 0.5, 0.25]}
                    | {"classifications": [["0", 0.8], ["1", 0.1]]},
                    {"category": "1", "conf": 0.05, "bbox": [0.0, 0.0, 0.1, 0.1]},
                    {"category": "2", "conf": 0.4, "bbox": [0.0, 0.0, 0.2, 1.0]},
                ],
            },
            {"file": "b/2.png", "detections": []},
            {"file": "b/3.png", "failure": "Failure image access", "detections": None},
        ],
    }


@pytest.fixture
def photos(tmp_path):
    """Photos whose left quarter is red, and MegaDetector's results beside them."""
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pixels = np.zeros((40, 80, 3), np.uint8)
        pixels[:, :20, 0] = 255
        pixels[20:30, 20:60, 1] = 200
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "md.json").write_text(json.dumps(megadetector()))
    return tmp_path


def test_megadetector_results_are_scores_of_photos(photos):
    results = read_camera_results(photos / "md.json")
    assert results.program == "MegaDetector"
    assert results.failed == ("b/3.png",)
    first, second = results.photos
    assert first.scores == pytest.approx({"animal": 0.9, "person": 0.4, "fox": 0.72, "elk": 0.09})
    assert second.scores == {}
    found = read_detections(photos / "md.json")
    assert found.names == ("animal", "elk", "fox", "person")
    assert found.files == ("a/1.png", "b/2.png")


def test_labels_of_photos_check_what_was_reported(photos):
    (photos / "truth.csv").write_text("path,labels\na/1.png,animal|fox\nb/2.png,elk\n")
    own = read_scores(photos / "md.json", None, labels=photos / "truth.csv").predictions
    known = {
        name: (bool(own.labels[0, k]), bool(own.observed[0, k])) for k, name in enumerate(own.names)
    }
    there, lacking = (True, True), (False, True)
    assert known == {"animal": there, "elk": lacking, "fox": there, "person": lacking}
    assert own.ids == ["a/1.png@0"]  # of the other photo nothing was reported


def test_photos_that_figures_of_detections_leave_out_are_told(photos):
    """Of three photos with an animal one has no detection, one no result, one is not in the file.

    Without the sentences a detector that misses every second animal would have a sensitivity of 1.
    """
    content = megadetector()
    for number in range(10):
        one = {"category": "1", "conf": 0.1 + 0.08 * number, "bbox": [0.1, 0.1, 0.2, 0.2]}
        content["images"].append({"file": f"c/{number}.png", "detections": [one]})
    (photos / "md.json").write_text(json.dumps(content))
    rows = [f"c/{number}.png,{'animal' * (number > 4)}" for number in range(10)]
    rows += ["b/2.png,animal", "b/3.png,animal", "d/9.png,animal"]
    (photos / "truth.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    own = read_scores(photos / "md.json", None, labels=photos / "truth.csv")
    checked, failed, elsewhere, missed = own.notes
    assert "checked 10 of 14 detections, in 10 photos; the others" in checked
    assert failed == "MegaDetector has no result of 1 photo, first b/3.png."
    assert "2 photos of truth, first b/3.png." in elsewhere
    assert "reported none of it: animal in 1 of 6. Sensitivity" in missed
    words = ("estimate", photos / "md.json", "--labels", photos / "truth.csv")
    told = run(*words)
    assert "photos with none reported are not among them" in told.stdout
    assert "animal in 1 of 6" in told.stdout
    content["images"][0]["detections"][0]["conf"] = 1.7  # with a fault they are still results
    (photos / "md.json").write_text(json.dumps(content))
    assert "(a/1.png): 'conf' must lie in [0, 1], got 1.7" in str(run(*words).exception)


def test_crops_go_out_and_their_classes_come_back(photos):
    must_run("data", "crops", photos / "md.json", "-o", photos / "crops", "--least", "0.2")
    with (photos / "crops" / "crops.csv").open() as file:
        rows = list(csv.DictReader(file))
    shown = [(row["image"], row["detection"], row["category"]) for row in rows]
    assert shown == [("a/1.png", "0", "animal"), ("a/1.png", "2", "person")]
    with Image.open(photos / "crops" / rows[0]["path"]) as crop:
        assert crop.size == (40, 10)
        assert np.asarray(crop)[..., 1].min() == 200  # the green field and nothing else
    with Image.open(photos / "crops" / rows[1]["path"]) as crop:
        assert crop.size == (16, 40)
    (photos / "answers.csv").write_text(
        f"path,labels,error,badger,fox\ncrops/{rows[0]['path']},fox,,0.25,0.75\n"
    )
    out = photos / "back.json"
    crops = ("--crops", photos / "crops" / "crops.csv")
    must_run("data", "answers", photos / "md.json", photos / "answers.csv", *crops, "-o", out)
    again = read_camera_results(out)
    assert again.photos[0].scores == pytest.approx(
        {"animal": 0.9, "person": 0.4, "badger": 0.225, "fox": 0.675}
    )
    listed = json.loads(out.read_text())["images"][0]["detections"]
    assert listed[0]["classifications"] == [["0", 0.75], ["2", 0.25]]  # in falling order
    assert "classifications" not in listed[2]


def test_results_of_windows_with_videos_and_boxes_over_the_edge(photos):
    content = megadetector()
    content["images"][0]["file"] = "a\\1.png"
    content["images"][0]["detections"][0]["bbox"] = [-0.004, 0.755, 0.5, 0.25]
    frame = {"category": "2", "conf": 0.8, "bbox": [0.1, 0.2, 0.3, 0.4], "frame_number": 20}
    content["images"].append({"file": "b/4.mp4", "frame_rate": 20, "detections": [frame]})
    (photos / "md.json").write_text(json.dumps(content))
    assert read_detections(photos / "md.json").files == ("a/1.png", "b/2.png", "b/4.mp4")
    result = must_run("data", "crops", photos / "md.json", "-o", photos / "crops")
    assert "no crops of 1 video, first b/4.mp4" in result.output
    with (photos / "crops" / "crops.csv").open() as file:
        row = next(csv.DictReader(file))
    with Image.open(photos / "crops" / row["path"]) as crop:
        assert crop.size == (40, 10)  # within the photo, whose lower edge is the box's
        assert np.asarray(crop)[:, :20, 0].min() == 255
    again, count = with_classes(content, [row], {row["path"]: {"badger": 1.0}})
    assert count == 1
    assert again["images"][0]["detections"][0]["classifications"] == [["2", 1.0]]


def test_classes_of_other_detections_keep_their_names():
    content = megadetector()
    content["images"][0]["detections"][2]["classifications"] = [["1", 0.6]]
    row = {"path": "0-0.png", "image": "a/1.png", "detection": "0"}
    again, _ = with_classes(content, [row], {"0-0.png": {"badger": 0.75, "elk": 0.25}})
    assert again["classification_categories"] == {"0": "fox", "1": "elk", "2": "badger"}
    assert again["images"][0]["detections"][2]["classifications"] == [["1", 0.6]]
    assert again["images"][0]["detections"][0]["classifications"] == [["2", 0.75], ["1", 0.25]]


def test_speciesnet_results_are_scores_of_photos(tmp_path):
    fox = "1;mammalia;carnivora;canidae;vulpes;vulpes;red fox"
    classes = [fox, "2;;;;;;blank", "3;mammalia;;;;;mammal"]
    first = {
        "filepath": "a.jpg",
        "classifications": {"classes": classes, "scores": [0.7, 0.2, 0.1]},
    }
    first["detections"] = [{"category": "1", "conf": 0.9, "bbox": [0, 0, 1, 1]}]
    predictions = [first, {"filepath": "b.jpg", "failures": ["CLASSIFIER"]}]
    (tmp_path / "sn.json").write_text(json.dumps({"predictions": predictions}))
    results = read_camera_results(tmp_path / "sn.json")
    assert (results.program, results.failed) == ("SpeciesNet", ("b.jpg",))
    assert results.photos[0].scores == {"red fox": 0.7, "blank": 0.2, "mammal": 0.1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("detection_categories"), "must name 'detection_categories'"),
        (lambda c: c["images"][0]["detections"][0].update(conf=1.5), "'conf' must lie in"),
        (lambda c: c["images"][0]["detections"][0].update(bbox=[1]), "'bbox' of four shares"),
        (lambda c: c["images"][0]["detections"][0].update(category="9"), "which has no name"),
        (lambda c: c["images"][1].update(detections=None), "'detections' must be a list"),
        (lambda c: c["images"][1].update(file="a/1.png"), "is there twice"),
        (lambda c: c["detection_categories"].update(x="elk"), "must give each number a name"),
    ],
)
def test_results_that_cannot_be_meant_are_named(tmp_path, change, sentence):
    content = megadetector()
    change(content)
    (tmp_path / "md.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=sentence):
        read_camera_results(tmp_path / "md.json")


def test_bursts_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    seconds, cameras = rng.integers(0, 2000, 60), rng.integers(0, 3, 60)
    times = np.datetime64("2024-05-01T06:00:00", "us") + seconds.astype("timedelta64[s]")
    found = bursts(times, [f"cam-{n}" for n in cameras], 30.0)
    burst, last = -1, None
    for row in sorted(range(60), key=lambda row: (cameras[row], seconds[row])):
        if last is None or cameras[last] != cameras[row] or seconds[row] - seconds[last] > 30:
            burst += 1
        assert found[row] == burst
        last = row


def test_bursts_are_written_as_groups(tmp_path):
    (tmp_path / "photos.csv").write_text(
        "path,labels,time,camera\n1.jpg,fox,2024:05:01 06:30:00,north\n"
        "2.jpg,,2024:05:01 06:30:40,north\n3.jpg,,2024:05:01 06:30:50,south\n"
        "4.jpg,,2024:05:01 07:30:00,north\n"
    )
    out = tmp_path / "grouped.csv"
    options = ("--camera", "camera", "-o", out)
    result = must_run("data", "bursts", tmp_path / "photos.csv", *options)
    with out.open() as file:
        groups = [row["group"] for row in csv.DictReader(file)]
    assert groups == ["north-0", "north-0", "south-2", "north-1"]
    assert "4 photos in 3 bursts of up to 2" in result.stdout
    refused = run("data", "bursts", out, *options)
    assert "has a column 'group' already" in str(refused.exception)

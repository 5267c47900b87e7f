"""MegaDetector, SpeciesNet, Camtrap DP: what was put in is read, events as a loop finds them."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typed import must_run, refused

from labelwise import load
from labelwise.contrib.camtrap import NEEDED, read_package
from labelwise.errors import DataError
from labelwise.scores import read_scores
from labelwise.scores.read import read_detections
from labelwise.tables.camera_results import bursts, read_camera_results, with_classes
from labelwise.tables.load import load_for_labels


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


def test_megadetector_results_are_scores_of_photos_whose_labels_check_them(photos):
    results = read_camera_results(photos / "md.json")
    assert (results.program, results.failed) == ("MegaDetector", ("b/3.png",))
    first, second = results.photos
    assert first.scores == pytest.approx({"animal": 0.9, "person": 0.4, "fox": 0.72, "elk": 0.09})
    assert second.scores == {}
    (photos / "truth.csv").write_text("path,labels\na/1.png,animal|fox\nb/2.png,elk\n")
    own = read_scores(photos / "md.json", None, labels=photos / "truth.csv").predictions
    assert own.names == ("animal", "elk", "fox", "person")
    assert (own.labels.tolist(), own.observed.all()) == ([[1, 0, 1, 0]], True)
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
    words = ("count", photos / "md.json", "--labels", photos / "truth.csv")
    told = must_run(*words).stdout
    assert "photos with none reported are not among them" in told
    assert "animal in 1 of 6" in told
    content["images"][0]["detections"][0]["conf"] = 1.7  # with a fault they are still results
    (photos / "md.json").write_text(json.dumps(content))
    assert "'images.0.detections.0.conf': input should be less than or equal to 1" in refused(
        *words
    )


def test_crops_go_out_and_their_classes_come_back(photos):
    must_run("data", "import", photos / "md.json", "-o", photos / "crops", "--at-least", "0.2")
    rows = read(photos / "crops", "crops")
    shown = [(row["image"], row["detection"], row["category"]) for row in rows]
    assert shown == [("a/1.png", "0", "animal"), ("a/1.png", "2", "person")]
    with Image.open(photos / "crops" / rows[0]["path"]) as crop:
        assert crop.size == (40, 10)
        assert np.asarray(crop)[..., 1].min() == 200  # the green field and nothing else
    with Image.open(photos / "crops" / rows[1]["path"]) as crop:
        assert crop.size == (16, 40)
    answer = f"path,labels,error,badger,fox\ncrops/{rows[0]['path']},fox,,0.25,0.75\n"
    (photos / "answers.csv").write_text(answer)
    out = photos / "back.json"
    crops = ("--crops", photos / "crops" / "crops.csv")
    must_run(
        "data",
        "convert",
        photos / "md.json",
        "--predictions",
        photos / "answers.csv",
        *crops,
        "-o",
        out,
    )
    scores = {"animal": 0.9, "person": 0.4, "badger": 0.225, "fox": 0.675}
    assert read_camera_results(out).photos[0].scores == pytest.approx(scores)
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
    result = must_run("data", "import", photos / "md.json", "-o", photos / "crops")
    assert "no crops of 1 video, first b/4.mp4" in result.output
    row = read(photos / "crops", "crops")[0]
    with Image.open(photos / "crops" / row["path"]) as crop:
        assert crop.size == (40, 10)  # within the photo, whose lower edge is the box's
        assert np.asarray(crop)[:, :20, 0].min() == 255
    content["images"][0]["detections"][2]["classifications"] = [["1", 0.6]]
    again, count = with_classes(content, [row], {row["path"]: {"badger": 0.75, "elk": 0.25}})
    assert (count, again["classification_categories"]["2"]) == (1, "badger")
    listed = [one.get("classifications") for one in again["images"][0]["detections"]]
    assert listed == [[["2", 0.75], ["1", 0.25]], None, [["1", 0.6]]]


def test_speciesnet_results_are_scores_of_photos(tmp_path):
    fox = "1;mammalia;carnivora;canidae;vulpes;vulpes;red fox"
    classes = [fox, "2;;;;;;blank", "3;mammalia;;;;;mammal"]
    first = {"classifications": {"classes": classes, "scores": [0.7, 0.2, 0.1]}}
    first["detections"] = [{"category": "1", "conf": 0.9, "bbox": [0, 0, 1, 1]}]
    predictions = [{"filepath": "a.jpg"} | first, {"filepath": "b.jpg", "failures": ["CLASSIFIER"]}]
    (tmp_path / "sn.json").write_text(json.dumps({"predictions": predictions}))
    results = read_camera_results(tmp_path / "sn.json")
    assert (results.program, results.failed) == ("SpeciesNet", ("b.jpg",))
    assert results.photos[0].scores == {"red fox": 0.7, "blank": 0.2, "mammal": 0.1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("detection_categories"), "must name 'detection_categories'"),
        (
            lambda c: c["images"][0]["detections"][0].update(conf=1.5),
            r"detections\.0\.conf': .* less than or equal to 1",
        ),
        (
            lambda c: c["images"][0]["detections"][0].update(bbox=[1]),
            r"detections\.0\.bbox\.1' is missing",
        ),
        (
            lambda c: c["images"][0]["detections"][0].update(category="9"),
            r"photo 1 \(a/1.png\): the category or class '9' has no name",
        ),
        (lambda c: c["images"][1].update(detections=None), "'detections' must be a list"),
        (lambda c: c["images"][1].update(file="a/1.png"), "is there twice"),
        (lambda c: c["detection_categories"].update(x="elk"), r"'detection_categories\.x"),
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
    burst, last = -1, (-1, 0)
    for camera, second, row in sorted(zip(cameras, seconds, range(60), strict=True)):
        burst += camera != last[0] or second - last[1] > 30
        assert found[row] == burst
        last = camera, second


def test_bursts_are_written_as_groups(tmp_path):
    taken = ("06:30:00,north", "06:30:40,north", "06:30:50,south", "07:30:00,north")
    rows = [f"{number}.jpg,,2024:05:01 {when}" for number, when in enumerate(taken)]
    (tmp_path / "photos.csv").write_text("\n".join(["path,labels,time,camera", *rows]))
    options = ("--camera-column", "camera", "-o", tmp_path / "grouped.csv")
    result = must_run("data", "group", "--gap", "60", tmp_path / "photos.csv", *options)
    groups = [row["group"] for row in read(tmp_path, "grouped")]
    assert groups == ["north-0", "north-0", "south-2", "north-1"]
    assert "4 photos in 3 bursts of up to 2" in result.stdout
    told = refused("data", "group", "--gap", "60", tmp_path / "grouped.csv", *options)
    assert "has a column 'group' already" in told


# Camtrap DP packages

EVERY = ["Meles meles", "Vulpes vulpes", "human"]


def write(folder, table, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / f"{table}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def read(folder, table):
    with (folder / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def observed(number, media="", event="", kind="animal", name="", method="human", **more):
    """Return an observation; one of an event lasts from its first to its last photo."""
    first, last = (int(media[1:]), int(media[1:])) if media else (4, 6)
    return {
        "observationID": f"o{number}",
        "deploymentID": "d2" if first > 3 else "d1",
        "mediaID": media,
        "eventID": event,
        "eventStart": f"2024-05-0{first}T06:30:00Z",
        "eventEnd": f"2024-05-0{last}T08:30:00+02:00",
        "observationLevel": "media" if media else "event",
        "observationType": kind,
        "scientificName": name,
        "classificationMethod": method,
    } | more


@pytest.fixture
def package(tmp_path):
    """A package of six photos and a video: d1 with three photos, d2 with an event over three."""
    folder = tmp_path / "package"
    (folder / "media").mkdir(parents=True)
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    profile = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0/camtrap-dp-profile.json"
    resources = [{"name": name, "path": f"{name}.csv"} for name in (*NEEDED, "notes")]
    stated = {"profile": profile, "resources": resources}
    (folder / "datapackage.json").write_text(json.dumps(stated))
    places = [{"deploymentID": "d1", "locationID": "forest"}, {"deploymentID": "d2"}]
    write(folder, "deployments", places)
    lines = ["mediaID,deploymentID,timestamp,filePath,filePublic,fileMediatype"]
    for number in range(1, 8):
        kind, place = "image/png" if number < 7 else "video/mp4", "d1" if number < 4 else "d2"
        name = f"media/{number}.{kind[-3:]}"
        Image.new("RGB", (8, 8)).save(folder / name, "PNG")
        lines.append(f"m{number},{place},2024-05-0{number}T06:30:00Z,{name},true,{kind}")
    (folder / "media.csv").write_text("\n".join([*lines, ""]))
    rows = [
        observed(1, "m1", "e1", name="Vulpes vulpes", individualPositionAngle="-8.56"),
        observed(2, "m1", "e1", "human"),
        observed(3, "m2", "e1", "blank", observationComments="-"),
        observed(4, "m3", "e2", name="Meles meles", method="machine", classifiedBy="other 2"),
        observed(5, event="e3", name="Meles meles"),
        observed(6, "m5", "", "unclassified", method=""),
        observed(7, "m6", "", "unknown"),
    ]
    write(folder, "observations", rows)
    return folder


def states(table):
    rows = [
        [[table.space.names[k] for k in sets.row(row)] for row in range(len(table))]
        for sets in (table.present, table.unknown)
    ]
    return dict(zip((name[-5] for name in table.ids), zip(*rows, strict=True), strict=True))


def test_a_package_is_read_with_all_three_states(package):
    table = load(package)
    assert states(table) == {
        "1": (["Vulpes vulpes", "human"], []),
        "2": ([], []),  # looked at, and blank
        "3": ([], EVERY),  # a machine's word is not a label
        "4": ([], ["Meles meles"]),  # somewhere in the event; nothing else is
        "5": ([], ["Meles meles"]),  # not classified by itself, and within the event
        "6": ([], EVERY),  # within the event, but nobody can say what it shows
    }
    assert list(table.group) == ["forest", "forest", "forest", "d2", "d2", "d2"]
    assert "left out: 1 file of media.csv whose type is not an image" in table.notes
    assert states(load(f"camtrap-dp:{package}", machine=True))["3"] == (["Meles meles"], [])


def test_events_cover_the_photos_that_a_loop_finds(package):
    rng = np.random.default_rng(0)
    stamps = [f"2024-05-01T06:{n // 60:02}:{n % 60:02}Z" for n in range(3600)]
    photos = rng.integers(0, 3600, 200)
    spans = np.sort(rng.integers(0, 3600, (40, 2)), axis=1)
    spans[::4, 1] = spans[::4, 0]  # events of one moment
    photos[:10] = spans[:10, 0]
    where = rng.choice(["d1", "d2"], 240)
    media, events = read(package, "media")[0], observed(1, name="Vulpes vulpes")
    rows, told = [], []
    for n, at in enumerate(photos):
        own = {"mediaID": f"m{n}", "deploymentID": where[n], "timestamp": stamps[at]}
        rows.append(media | own)
    for n, (first, last) in enumerate(spans):
        own = {"observationID": f"e{n}", "deploymentID": where[200 + n]}
        told.append(events | own | {"eventStart": stamps[first], "eventEnd": stamps[last]})
    write(package, "media", rows)
    write(package, "observations", told)
    found = read_package(package).event_rows
    for n, at in enumerate(photos):
        within = (spans[:, 0] <= at) & (at <= spans[:, 1]) & (where[200:] == where[n])
        expected = [f"e{k}" for k in np.flatnonzero(within)]
        assert [row["observationID"] for row in found[f"m{n}"]] == expected
    assert any(len(rows) > 1 for rows in found.values())


@pytest.mark.parametrize("named", [False, True])
def test_events_that_lie_over_each_other_without_end_are_refused(package, named):
    """2,000 photos within 2,000 events of one deployment took more than 12 s of processor time."""
    own = observed(0, media="m4", event="e" if named else "")
    around = observed(1, event="e", name="Vulpes vulpes")
    if named:  # at another time, but the photo's own row names it
        around |= {"eventStart": "2001-01-01T00:00:00Z", "eventEnd": "2001-01-01T00:00:00Z"}
    rows = [around | {"observationID": f"e{n}"} for n in range(301)]
    write(package, "observations", [own, *rows[:300]])
    assert len(read_package(package).event_rows[own["mediaID"]]) == 300
    write(package, "observations", [own, *rows])
    with pytest.raises(DataError, match="one photo lies in the events of more than 300"):
        _ = read_package(package).event_rows


def test_an_event_that_a_photo_names_is_its_event(package):
    rows = read(package, "observations")
    rows[0]["scientificName"] = "NA"  # is missing, by the later patch
    write(package, "observations", rows)
    assert load(package).space.names == ("Meles meles", "animal", "human")
    rows[5] |= {"eventID": "late"}
    rows.append(observed(8, event="late", kind="blank", eventStart=rows[5]["eventEnd"]))
    rows[-1] |= {"deploymentID": "d1", "eventStart": "2024-05-09T00:00:00Z"}
    write(package, "observations", rows)
    found = read_package(package).event_rows["m5"]
    assert [row["observationID"] for row in found] == ["o5", "o8"]


def test_photos_on_the_web_are_found_by_their_file_names(package, tmp_path):
    photos = (package / "media").rename(tmp_path / "photos")
    rows = read(package, "media")
    for row in rows:
        address = f"https://x.org/{row['mediaID']}/file"
        row |= {"fileName": row["filePath"].removeprefix("media/"), "filePath": address}
    write(package, "media", rows)
    with pytest.raises(DataError, match=r"is an address; download the photos .* root="):
        load(package)
    table = load(f"camtrap-dp:{package}", root=photos)
    assert table.images.read(0).size == (8, 8)
    labels = load_for_labels(package, tuple(EVERY))  # which need no photo
    assert states(labels) == states(table)
    assert list(labels.ids) == list(table.ids) == [f"{number}.png" for number in range(1, 7)]
    rows[1]["fileName"] = "1.png"
    write(package, "media", rows)
    with pytest.raises(DataError, match=r"mediaID m2: .* also the name of mediaID m1"):
        load(f"camtrap-dp:{package}", root=photos)


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("observations.csv", "media,blank", "media,nothing", "observationType must be one of"),
        ("observations.csv", "event,animal", "burst,animal", "observationLevel must be one of"),
        ("observations.csv", "scientificName", "name", "there is no column 'scientificName'"),
        ("observations.csv", "o1,d1,m1", "o1,d1,m9", "has the mediaID 'm9'; add it there"),
        ("observations.csv", "o1,d1", "o1,d9", "has the deploymentID 'd9'; add it there"),
        ("observations.csv", "o2,d1", "o1,d1", "'o1' is there twice"),
        ("observations.csv", "2024-05-04T06:30:00Z", "soon", "row 5: 'eventStart' must be a time"),
        ("media.csv", "media/1.png", "https://x.org/1.png", "is an address; download"),
        ("media.csv", "media/1.png", "/1.png", "must stay within the package"),
        ("media.csv", "m2,", "m1,", "'m1' is there twice"),
        ("media.csv", "m2,d1", "m2,d7", "has the deploymentID 'd7'; add it there"),
        ("deployments.csv", "d2,", "d1,", "'d1' is there twice"),
        ("datapackage.json", '"media.csv"', '"https://x.org/m.csv"', "a path within the package"),
        ("datapackage.json", '"media.csv"', '"../m.csv"', "with a path within the package"),
        ("datapackage.json", '"media.csv"', '"/m.csv"', "with a path within the package"),
        ("datapackage.json", "1.0/camtrap", "0.1.6/camtrap", "it is Camtrap DP 0.1.6"),
    ],
)
def test_packages_that_cannot_be_meant_are_named(package, file, old, new, sentence):
    path = package / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=sentence):
        load(package)

"""Camtrap DP packages. A loop over all events is the oracle of which photos an event covers."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from labelwise import load
from labelwise.contrib.camtrap import NEEDED, read_package
from labelwise.data.load import load_for_labels
from labelwise.errors import DataError

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
    resources = [{"name": name, "path": f"{name}.csv"} for name in NEEDED]
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    profile = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0/camtrap-dp-profile.json"
    stated = {"profile": profile, "resources": [*resources, {"name": "notes", "path": "notes.csv"}]}
    (folder / "datapackage.json").write_text(json.dumps(stated))
    places = [{"deploymentID": "d1", "locationID": "forest"}, {"deploymentID": "d2"}]
    write(folder, "deployments", places)
    lines = ["mediaID,deploymentID,timestamp,filePath,filePublic,fileMediatype"]
    for number in range(1, 8):
        kind = "image/png" if number < 7 else "video/mp4"
        name = f"media/{number}.{kind[-3:]}"
        if number < 7:
            Image.new("RGB", (8, 8)).save(folder / name)
        place = "d1" if number < 4 else "d2"
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
    found = {}
    for row, name in enumerate(table.ids):
        words = [table.space.names[k] for k in table.present.row(row)]
        found[name[-5]] = words, [table.space.names[k] for k in table.unknown.row(row)]
    return found


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
    machine = load(f"camtrap-dp:{package}", machine=True)
    assert states(machine)["3"] == (["Meles meles"], [])


def test_events_cover_the_photos_that_a_loop_finds(package):
    rng = np.random.default_rng(0)
    stamps = [f"2024-05-01T06:{n // 60:02}:{n % 60:02}Z" for n in range(3600)]
    photos = rng.integers(0, 3600, 200)
    spans = np.sort(rng.integers(0, 3600, (40, 2)), axis=1)
    spans[::4, 1] = spans[::4, 0]  # events of one moment
    photos[:10] = spans[:10, 0]
    where = rng.choice(["d1", "d2"], 240)
    media, events = read(package, "media")[0], observed(1, name="Vulpes vulpes")
    rows = [
        media | {"mediaID": f"m{n}", "deploymentID": where[n], "timestamp": stamps[at]}
        for n, at in enumerate(photos)
    ]
    write(package, "media", rows)
    told = [
        events
        | {"observationID": f"e{n}", "deploymentID": where[200 + n]}
        | {"eventStart": stamps[first], "eventEnd": stamps[last]}
        for n, (first, last) in enumerate(spans)
    ]
    write(package, "observations", told)
    found = read_package(package).event_rows
    for n, at in enumerate(photos):
        expected = [
            f"e{k}"
            for k, (first, last) in enumerate(spans)
            if first <= at <= last and where[n] == where[200 + k]
        ]
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
        ("datapackage.json", "1.0/camtrap", "0.1.6/camtrap", "it is Camtrap DP 0.1.6"),
    ],
)
def test_packages_that_cannot_be_meant_are_named(package, file, old, new, sentence):
    path = package / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=sentence):
        load(package)

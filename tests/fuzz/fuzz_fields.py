"""FIELDS: tables of single fields of work: camera traps, birds, X-rays, satellites, museums.

CSV files are read a second time with ``csv``, JSON with ``json``, Parquet with Arrow, row by row.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_by_hand import Rows, agrees
from fuzz_inputs import Files, as_json
from fuzz_official import lines_of, read_as
from fuzz_readers import Target, of_file, parquet, same

from labelwise.data.camera_results import CameraResults, read_camera_results
from labelwise.scores.aggregating import UnitTable, aggregate_table
from labelwise.scores.detections import Detections, read_detections
from labelwise.scores.unlabelled_pool import holds_answers
from labelwise.taxonomy import AttributeGroups


def rows_of(path: Path) -> list[dict[str, str]]:
    text = path.read_bytes().decode("utf-8-sig", "replace")  # of columns that nobody reads
    return [row for row in csv.DictReader(io.StringIO(text, newline="")) if any(row.values())]


GROUPS = b"group,kind,labels\ncolour,exactly-one,red|green\nlight,at-most-one,day|night|dusk\n"


def same_groups(read: AttributeGroups, folder: Path) -> bool:
    stated = rows_of(folder / "g.csv")
    assert [group.name for group in read.groups] == [row["group"].strip() for row in stated]
    for group, row in zip(read.groups, stated, strict=True):
        assert group.kind == row["kind"].strip()
        assert list(group.labels) == [label.strip() for label in row["labels"].split("|")]
    return True


MEGADETECTOR = {
    "images": [
        {
            "file": "a.jpg",
            "detections": [
                {
                    "category": "1",
                    "conf": 0.5,
                    "bbox": [0.1, 0.2, 0.3, 0.4],
                    "classifications": [["0", 0.5], ["1", 0.25]],
                }
            ],
        },
        {"file": "b.jpg", "failure": "no such file"},
        {"file": "c.jpg", "detections": []},
    ],
    "detection_categories": {"1": "animal", "2": "person"},
    "classification_categories": {"0": "deer", "1": "fox"},
}
SPECIESNET = {
    "predictions": [
        {
            "filepath": "a.jpg",
            "classifications": {"classes": ["i;mammalia;;;;;deer", "x;fox"], "scores": [0.5, 0.25]},
            "detections": [{"category": "1", "conf": 0.5, "bbox": [0, 0, 1, 0.5]}],
        },
        {"filepath": "b.jpg"},
    ]
}


def same_results(read: CameraResults, folder: Path) -> bool:
    """Each photo is there once, with no more than the surest number that the file has for it."""
    (place,) = folder.iterdir()
    stated = json.loads(place.read_bytes().decode("utf-8-sig"))
    mega = isinstance(stated.get("images"), list)
    listed = stated["images" if mega else "predictions"]
    names = [photo["file" if mega else "filepath"] for photo in listed]
    assert sorted([photo.file for photo in read.photos] + list(read.failed)) == sorted(names)
    for photo in read.photos:
        found = listed[names.index(photo.file)]
        boxes = found.get("detections") or []
        same([list(box.place) for box in photo.boxes], [box["bbox"] for box in boxes])
        for name, score in photo.scores.items():
            assert 0 <= score <= 1, "a probability is not one"
            if mega and name not in (stated.get("classification_categories") or {}).values():
                kinds = stated["detection_categories"]
                own = [box["conf"] for box in boxes if kinds[str(box["category"])] == name]
                assert score == max(own)
    return True


PACKAGE = {
    "resources": [
        {"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")
    ]
}


def camtrap() -> Files:
    return {
        "datapackage.json": json.dumps(PACKAGE).encode(),
        "deployments.csv": b"deploymentID,locationID\nd,hill\n",
        "media.csv": (
            b"mediaID,deploymentID,timestamp,filePath,fileMediatype\n"
            b"m1,d,2024-05-01T06:30:00Z,a.jpg,image/jpeg\n"
            b"m2,d,2024-05-01T06:31:00Z,b.jpg,image/jpeg\n"
        ),
        "observations.csv": (
            b"observationID,deploymentID,mediaID,eventStart,eventEnd,observationLevel,"
            b"observationType,scientificName,classificationMethod\n"
            b"o1,d,m1,2024-05-01T06:30:00Z,2024-05-01T06:30:00Z,media,animal,Vulpes vulpes,human\n"
            b"o2,d,m2,2024-05-01T06:31:00Z,2024-05-01T06:31:00Z,media,blank,,human\n"
            b"o3,d,m2,2024-05-01T06:31:00Z,2024-05-01T06:31:00Z,media,animal,Sus,machine\n"
        ),
    }


def camtrap_by_hand(folder: Path) -> Rows | None:
    stated = json.loads((folder / "datapackage.json").read_bytes().decode("utf-8-sig"))
    if stated != PACKAGE:
        return None
    media, seen = (rows_of(folder / f"{name}.csv") for name in ("media", "observations"))
    if any(None in row for row in (*media, *seen)):
        return None  # a row that is longer than its header
    cells = [cell for row in (*media, *seen) for cell in row.values()]
    if any(row["observationLevel"] != "media" for row in seen) or {"NA", "NaN", "nan"} & set(cells):
        return None  # what is said of an event, or a word for a missing value
    if any((row["fileMediatype"] or "")[:6] != "image/" for row in media):
        return None  # videos are left out
    people = [row for row in seen if row.get("classificationMethod") != "machine"]
    rows: Rows = {}
    for row in media:
        own = [one for one in people if one["mediaID"] == row["mediaID"]]
        sure = [one for one in own if one["observationType"] not in ("unknown", "unclassified")]
        found = {
            "animal": [one["scientificName"] for one in sure if one["observationType"] == "animal"],
            "named": [k for one in sure if (k := one["observationType"]) in ("human", "vehicle")],
        }
        present = [(name or "").strip() or "animal" for name in found["animal"]] + found["named"]
        rows[row["filePath"] or ""] = frozenset(present), frozenset() if sure else frozenset("*")
    return rows


FINDINGS = (
    b"No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,Edema,"
    b"Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,"
    b"Support Devices"
)
STATED = b",".join((b"1.0", b"0.0", b"-1.0", *[b""] * 11))


def chexpert() -> Files:
    table = b"Path,Frontal/Lateral," + FINDINGS + b"\n"
    row = b"CheXpert/%s/patient1/a.jpg,Frontal," + STATED + b"\n"
    return {"train.csv": table + row % b"train", "valid.csv": table + row % b"valid"}


def chexpert_by_hand(folder: Path) -> Rows | None:
    rows: Rows = {}
    for name in ("train.csv", "valid.csv"):
        for row in rows_of(folder / name):
            states = {key: row[key] for key in FINDINGS.decode().split(",")}
            present = frozenset(key for key, state in states.items() if float(state or 0) == 1)
            known = frozenset(key for key, state in states.items() if state in ("0", "0.0"))
            path = row["Path"].partition("/")[2]
            rows[path] = present, frozenset(states) - present - known
    return rows


def mimic() -> Files:
    return {
        "mimic-cxr-2.0.0-chexpert.csv": b"study_id," + FINDINGS + b"\n7," + STATED + b"\n",
        "mimic-cxr-2.0.0-split.csv": (
            b"dicom_id,study_id,subject_id,split\nx,7,1001,train\ny,8,1002,validate\n"
        ),
    }


def chestxray14() -> Files:
    return {
        "Data_Entry_2017.csv": (
            b"Image Index,Finding Labels,Patient ID\na.png,Mass|Edema,1\nb.png,No Finding,2\n"
        ),
        "train_val_list.txt": b"a.png\n",
        "test_list.txt": b"b.png\n",
    }


def chestxray14_by_hand(folder: Path) -> Rows | None:
    return {
        f"images/{row['Image Index']}": (
            frozenset(row["Finding Labels"].split("|")) - {"No Finding"},
            frozenset(),
        )
        for row in rows_of(folder / "Data_Entry_2017.csv")
    }


PATCHES = {
    "patch_id": ["S2_TILE_1_2", "S2_TILE_1_3"],
    "labels": [["Pastures", "Arable land"], ["Marine waters"]],
    "split": ["train", "test"],
}


def ucmerced_by_hand(folder: Path) -> Rows | None:
    header, *lines = [line.split("\t") for line in lines_of(folder / "LandUse_Multilabeled.txt")]
    rows: Rows = {}
    for image, *states in lines:
        marked = zip(header[1:], states, strict=True)
        kind = image.strip().rstrip("0123456789")
        present = frozenset(name.strip() for name, state in marked if state.strip() == "1")
        rows[f"Images/{kind}/{image.strip()}.tif"] = present, frozenset()
    return rows


BIRDNET = (
    b"Start (s),End (s),Scientific name,Common name,Confidence,File,correct\n"
    b"0.0,3.0,Parus major,Great Tit,0.9,a.wav,1\n3.0,6.0,Parus major,Great Tit,0.25,a.wav,\n"
    b"0.0,3.0,,Noise,0.5,b.wav,no\n"
)
CALLS = {
    "Start (s)": [0.0, 3.0],
    "End (s)": [3.0, 6.0],
    "Scientific name": ["Parus major", "Sylvia"],
    "Common name": ["Great Tit", "Warbler"],
    "Confidence": [0.5, 0.25],
    "File": ["a.wav", "b.wav"],
}


def same_calls(read: Detections, folder: Path) -> bool:
    rows = rows_of(folder / "d.csv")
    if not {"Scientific name", "Start (s)", "Common name", "Confidence"} <= set(rows[0]):
        return False  # a name in odd quotes, or another form
    assert len(rows) == len(read.scores)
    for at, row in enumerate(rows):
        assert read.scores[at] == float(row["Confidence"])
        assert read.start[at] == float(row["Start (s)"])
        name = row["Scientific name"] or row["Common name"]
        assert read.names[read.label[at]] == name
    return True


BURSTS = b"id,burst,time,score:x,score:y\na,1,2026-01-01,0.5,0.1\nb,1,2026-01-02,0.2,0.7\n"


def same_units(read: UnitTable, folder: Path) -> bool:
    rows = rows_of(folder / "s.csv")
    bursts = [row["burst"] for row in rows]
    assert sorted(read.names) == sorted(set(bursts))
    assert [int(count) for count in read.photos] == [bursts.count(name) for name in read.names]
    assert not np.isnan(read.odds).any(), "log-odds are not numbers"
    return True


ANSWERED = b'{"path": "a.jpg", "labels": ["x"], "probs": {"x": 0.5, "y": 0.25}}\n'


def by_hand(read: Any) -> Any:
    return lambda table, folder: agrees(table, read(folder))


LANDUSE = b"IMAGE\tsea\ttrees\nbeach00\t1\t0\nforest01\t0\t1\n"
SETS = {  # by format: its files, and how they are read by hand
    "camtrap-dp": (camtrap(), camtrap_by_hand),
    "chexpert": (chexpert(), chexpert_by_hand),
    "mimic-cxr": (mimic(), lambda folder: None),
    "chestxray14": (chestxray14(), chestxray14_by_hand),
    "bigearthnet": ({"metadata.parquet": parquet(PATCHES)}, lambda folder: None),
    "ucmerced": ({"LandUse_Multilabeled.txt": LANDUSE}, ucmerced_by_hand),
}
RESULTS = {"megadetector": MEGADETECTOR, "speciesnet": SPECIESNET}
FIELDS = (
    of_file("attribute groups", "g.csv", GROUPS, AttributeGroups.read, check=same_groups),
    *(
        of_file(name, "m.json", as_json(content), read_camera_results, check=same_results)
        for name, content in RESULTS.items()
    ),
    *(Target(name, files, read_as(name), by_hand(read)) for name, (files, read) in SETS.items()),
    of_file("detections", "d.csv", BIRDNET, read_detections, check=same_calls),
    of_file("detections parquet", "d.parquet", parquet(CALLS), read_detections),
    of_file("units", "s.csv", BURSTS, aggregate_table, "probs", ["burst"], "any", check=same_units),
    of_file("is it predict's file", "a.jsonl", ANSWERED, holds_answers),
)

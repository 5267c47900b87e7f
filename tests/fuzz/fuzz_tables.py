"""TABLES: every reader of label tables; what was read must survive being written."""

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import official
import torch
from fuzz_inputs import Target, UnreadError, of_file, parquet, saved
from sample_pictures import Folder, jpeg

from labelwise.base.yaml_values import parse_assignments
from labelwise.models.run_folder import RunFolder
from labelwise.papers.protocols import DATASETS
from labelwise.scores.aggregating import aggregate_table
from labelwise.scores.embeddings import read_prompts
from labelwise.scores.read import read_detections
from labelwise.scores.unlabelled_pool import holds_answers
from labelwise.tables import export, load
from labelwise.tables.camera_results import read_camera_results
from labelwise.taxonomy import AttributeGroups
from labelwise.training.checkpoint import load_latest, save


def reads_back(table, folder):
    """What was read must be the same after it was written and read again."""
    if not all(name.strip() == name and name != "*" for name in table.space.names):
        return
    if table.images.__class__.__name__ != "FileImages" or any("\\" in i for i in table.ids):
        return
    place = folder / "again.parquet"
    export(table, place)
    again = load(place, check_files=False, duplicates="keep")
    assert again.space.names == table.space.names
    for sets, other in ((table.present, again.present), (table.unknown, again.unknown)):
        assert np.array_equal(sets.dense(), other.dense()), "labels changed by writing them"
    if table.split is not None:
        assert table.split.tolist() == again.split.tolist()


def loads(name):
    return lambda folder: load(folder / name, check_files=False)


def shard():
    facts = b'{"labels": ["x"], "unknown": ["y"], "split": "train", "group": 3}'
    members = {"a.jpg": jpeg(), "a.json": facts, "b.jpg": jpeg(1)}
    members["b.json"] = b'{"labels": ["y", "x"], "split": "val"}'
    with tempfile.TemporaryDirectory() as folder:
        return Folder(Path(folder)).tar("t.tar", members).read_bytes()


COCO = b"""{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
  "categories": [{"id": 3, "name": "x"}, {"id": 9, "name": "y"}],
  "annotations": [{"image_id": 1, "category_id": 3}, {"image_id": 2, "category_id": 9}]}"""
LABEL_STUDIO = b"""[
  {"id": 1, "data": {"image": "a.jpg", "split": "val"}, "annotations": [{"result": [
    {"from_name": "labels", "type": "choices", "value": {"choices": ["x"]}},
    {"from_name": "unknown", "type": "choices", "value": {"choices": ["y"]}}]}]},
  {"id": 2, "data": {"image": "b.jpg", "split": "test"}, "annotations": []}]"""
CVAT = (
    b'<annotations><image id="0" name="a.jpg" subset="train"><tag label="x"/><tag label="y">'
    b'<attribute name="state">unknown</attribute></tag></image>'
    b'<image id="1" name="b.jpg" subset="val"/></annotations>'
)
LINES = (
    b'{"path": "a.jpg", "labels": ["x"], "unknown": ["y"], "split": "train", "group": "g"}\n'
    b'{"path": "b.jpg", "labels": [], "unknown": ["*"], "split": "val", "group": "h"}\n'
)
TABLE = {"path": ["a.jpg", "b.jpg"], "labels": [["x", "y"], []], "split": ["val", "test"]}
FIFTYONE = b"""{"classes": ["x", "y"], "samples": [
  {"filepath": "a.jpg", "tags": ["train"],
   "ground_truth": {"_cls": "Classifications", "classifications": [{"label": "x"}]},
   "unknown": {"_cls": "Classifications", "classifications": [{"label": "y"}]}},
  {"filepath": "b.jpg", "tags": ["val"], "ground_truth": {"classifications": []}},
  {"filepath": "c.jpg", "tags": ["val"], "ground_truth": null}]}"""


CSV = b'path,labels,unknown,split\na.jpg,x|y,z,train\n"b.jpg",,*,val\n'
STATES = b"path,x,y,group\na.jpg,1,,g\nb.jpg,0,1,h\n"
IMAGES = parquet({"image": [jpeg(), jpeg(1)], "labels": [0, 1]})
ONE_FILE = {  # by name: the file and its content
    "csv": ("t.csv", CSV),
    "csv, one column per label": ("t.csv", STATES),
    "written lists": ("t.txt", b"path\tlabels\na.jpg\t['x', 'y']\nb.jpg\t[]\n"),
    "json lines": ("t.jsonl", LINES),
    "parquet": ("t.parquet", parquet(TABLE, {"classes": '["x", "y", "z"]'})),
    "parquet with images": ("t.parquet", IMAGES),
    "coco": ("t.json", COCO),
    "label studio": ("t.json", LABEL_STUDIO),
    "cvat": ("t.xml", CVAT),
    "fiftyone": ("samples.json", FIFTYONE),
    "tar shard": ("t.tar", shard()),
}
METADATA = {"train/metadata.jsonl": LINES.replace(b"path", b"file_name")}
CUB = {
    "images.txt": b"1 a.jpg\n2 b.jpg\n",
    "train_test_split.txt": b"1 1\n2 0\n",
    "attributes/attributes.txt": b"1 has_bill::long\n2 has_wing::red\n",
    "attributes/image_attribute_labels.txt": b"1 1 1 3 2.0\n1 2 0 1 1.0\n2 2 1 4 3.0\n",
}
TABLES = (
    *(Target(name, {one: text}, loads(one), reads_back) for name, (one, text) in ONE_FILE.items()),
    Target("hugging face metadata", METADATA, loads(""), reads_back),
)


def published(data):
    """Return the target of a paper's data set in its official layout; pictures are empty files."""
    dataset = DATASETS[data]

    @cache
    def files():
        with tempfile.TemporaryDirectory() as root:
            official.write(data, Path(root))
            folder = Path(root) / dataset.folder
            files = [file for file in folder.rglob("*") if file.is_file()]
            pictures = {file for file in files if file.suffix.lower() in (".jpg", ".jpeg")}
            return {
                file.relative_to(folder).as_posix(): b"" if file in pictures else file.read_bytes()
                for file in files
            }

    options = {"at_least": 1} if data == "vqa" else {}

    def read(folder):
        return load(f"{dataset.format}:{folder}", check_files=False, **options)

    return Target(data, files, read, reads_back)


def read_as(format):
    return lambda folder: load(f"{format}:{folder}", check_files=False)


def checkpoint(folder):
    for step in (1, 2):
        save(folder, {"model.w": torch.full((3,), float(step))}, {"step": step, "best_step": None})


def same_checkpoint(read, folder):
    """Tensors and facts are those of one checkpoint, as they were saved."""
    if any(b'"sha256"' not in one.read_bytes() for one in (folder / "c").glob("*/state.json")):
        raise UnreadError  # as in version 0.1
    step = read.facts["step"]
    assert read.tensors["model.w"].tolist() == [float(step)] * 3
    assert step in (1, 2)


def read_assignments(path):
    return parse_assignments(path.read_bytes().decode("utf-8", "replace").split("\n"))


def run_settings(folder):
    RunFolder(folder).journal.read()
    return RunFolder(folder).settings


RUN = {"settings.yaml": b"data: scenes\nseed: 1\n", "metrics.jsonl": b'{"step": 1}\n{"step": 2}\n'}
PROMPTS = b"label,prompt\ndog,a photo of a dog\ncat,a cat\n"
OFFICIAL = (
    *map(
        published, ("cifar10", "coco", "nus-wide", "tiny-imagenet", "vispr", "voc", "vqa", "wider")
    ),
    Target("cub", CUB, read_as("cub"), reads_back),
    Target("checkpoint", saved(checkpoint, "c"), lambda f: load_latest(f / "c"), same_checkpoint),
    of_file("settings by hand", "set.txt", b"a.b=1\nc=[1, 2]\nd=x", read_assignments),
    Target("run folder", RUN, run_settings),
    of_file("prompts", "p.csv", PROMPTS, read_prompts),
)
GROUPS = b"group,kind,labels\ncolour,exactly-one,red|green\nlight,at-most-one,day|night|dusk\n"
MEGADETECTOR = b"""{
  "images": [{"file": "a.jpg", "detections": [{"category": "1", "conf": 0.5,
    "bbox": [0.1, 0.2, 0.3, 0.4], "classifications": [["0", 0.5], ["1", 0.25]]}]},
    {"file": "b.jpg", "failure": "no such file"}, {"file": "c.jpg", "detections": []}],
  "detection_categories": {"1": "animal", "2": "person"},
  "classification_categories": {"0": "deer", "1": "fox"}}"""
SPECIESNET = b"""{"predictions": [{"filepath": "a.jpg",
  "classifications": {"classes": ["i;mammalia;;;;;deer", "x;fox"], "scores": [0.5, 0.25]},
  "detections": [{"category": "1", "conf": 0.5, "bbox": [0, 0, 1, 0.5]}]},
  {"filepath": "b.jpg"}]}"""
CAMTRAP = {
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
NAMED = {"resources": [{"name": name.removesuffix(".csv"), "path": name} for name in CAMTRAP]}
CAMTRAP["datapackage.json"] = json.dumps(NAMED).encode()
BIRDNET = (
    b"Start (s),End (s),Scientific name,Common name,Confidence,File,correct\n"
    b"0.0,3.0,Parus major,Great Tit,0.9,a.wav,1\n3.0,6.0,Parus major,Great Tit,0.25,a.wav,\n"
    b"0.0,3.0,,Noise,0.5,b.wav,no\n"
)
CALLS = {"Start (s)": [0.0, 3.0], "End (s)": [3.0, 6.0], "Confidence": [0.5, 0.25]}
CALLS |= {"Scientific name": ["Parus major", "Sylvia"], "Common name": ["Great Tit", "Warbler"]}
CALLS |= {"File": ["a.wav", "b.wav"]}
BURSTS = b"id,burst,time,score:x,score:y\na,1,2026-01-01,0.5,0.1\nb,1,2026-01-02,0.2,0.7\n"
ANSWERED = b'{"path": "a.jpg", "labels": ["x"], "probs": {"x": 0.5, "y": 0.25}}\n'
SETS = {  # by format
    "camtrap-dp": CAMTRAP,
}
FIELDS = (
    of_file("attribute groups", "g.csv", GROUPS, AttributeGroups.read),
    *(
        of_file(name, "m.json", content, read_camera_results)
        for name, content in (("megadetector", MEGADETECTOR), ("speciesnet", SPECIESNET))
    ),
    *(Target(name, files, read_as(name), reads_back) for name, files in SETS.items()),
    of_file("detections", "d.csv", BIRDNET, read_detections),
    of_file("detections parquet", "d.parquet", parquet(CALLS), read_detections),
    of_file("units", "s.csv", BURSTS, aggregate_table, "probs", ["burst"], "any"),
    of_file("is it predict's file", "a.jsonl", ANSWERED, holds_answers),
)

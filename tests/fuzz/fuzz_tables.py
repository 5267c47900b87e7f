"""TABLES: every reader of label tables, with good files, and how each is read by hand.

The second reading takes the same file apart with the standard library (csv, json, minidom, pickle)
and without any of the project's code; it knows only the plainest form of each format, and says
nothing of a file whose form (header, keys) was damaged.
"""

import csv
import io
import json
import tarfile
from xml.dom import minidom

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fuzz_inputs import (
    Target,
    UnreadError,
    as_json,
    drawn,
    of_file,
    parquet,
    same,
    saved,
    strange_json,
)
from sample_pictures import jpeg

from labelwise.data import export, load
from labelwise.data.camera_results import read_camera_results
from labelwise.errors import DataError
from labelwise.models.run_folder import RunFolder
from labelwise.scores.aggregating import aggregate_table
from labelwise.scores.detections import read_detections
from labelwise.scores.embeddings import read_prompts
from labelwise.scores.unlabelled_pool import holds_answers
from labelwise.system.text import as_cell
from labelwise.system.yaml_values import parse_assignments
from labelwise.taxonomy import AttributeGroups
from labelwise.training.checkpoint import load_latest, save

ALL = frozenset("*")


def lines_of(path):
    return [one for one in path.read_text("utf-8-sig", "replace").split("\n") if one.strip()]


def agrees(table, rows):
    """Compare a table with a second reading; return whether there was one."""
    if rows is None:
        raise UnreadError
    names = table.space.names
    assert list(table.ids) == list(rows), f"{list(table.ids)!r:.200} for {list(rows)!r:.200}"
    for number, (image, (present, unknown)) in enumerate(rows.items()):
        found = {names[k] for k in table.present.row(number)}
        hidden = {names[k] for k in table.unknown.row(number)}
        wanted = set(names) - found if unknown >= ALL else set(unknown)
        assert found == set(present), f"{image!r:.60}: present {found!r:.80}, not {present!r:.80}"
        assert hidden == wanted, f"{image!r:.60}: unknown {hidden!r:.80}, not {wanted!r:.80}"


def parted(text, mark="|"):
    return frozenset(word.strip() for word in text.split(mark)) - {""}


def csv_by_hand(content, header):
    try:
        cells = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error):
        return None
    rows = [dict(zip(header, row, strict=False)) for row in cells[1:] if row]
    if not cells or cells[0] != header or any(len(row) != len(header) for row in rows):
        return None
    if "labels" not in header:
        labels = [name for name in header if name not in ("path", "group")]
        words = {"1": 1, "0": 0, "": -1}
        if any(row[name].strip() not in words for row in rows for name in labels):
            return None
        states = [(row["path"], {n: words[row[n].strip()] for n in labels}) for row in rows]
        return {
            path: (
                frozenset(n for n, state in given.items() if state == 1),
                frozenset(n for n, state in given.items() if state == -1),
            )
            for path, given in states
        }
    if any(mark in row["labels"] for row in rows for mark in ",;[") or not any(
        "|" in row["labels"] for row in rows
    ):
        return None  # other marks, or none: which one parts labels is another question
    return {row["path"]: (parted(row["labels"]), parted(row["unknown"])) for row in rows}


def lines_by_hand(content):
    rows = {}
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        one = json.loads(line.decode("utf-8-sig"))
        lists = one.get("labels"), one.get("unknown")
        if not all(isinstance(each, list) and set(map(type, each)) <= {str} for each in lists):
            return None
        present, unknown = (frozenset(word.strip() for word in each) - {""} for each in lists)
        rows[one["path"]] = present, unknown
    return rows


def parquet_by_hand(content):
    table = pq.read_table(io.BytesIO(content))
    if set(table.column_names) - {"path", "labels", "split", "group"}:
        return None
    lists = table.schema.field("labels").type == pa.list_(pa.string())
    if not lists or table.schema.field("path").type != pa.string():
        return None
    return {
        row["path"]: (frozenset(row["labels"]) - {"", None}, frozenset())
        if row["labels"] is not None
        else (frozenset(), ALL)
        for row in table.to_pylist()
    }


def coco_by_hand(content):
    facts = json.loads(content.decode("utf-8-sig"))
    if any("neg_category_ids" in image for image in facts["images"]):
        return None
    named = {one["id"]: one["name"].strip() for one in facts["categories"]}
    rows = {}
    for image in facts["images"]:
        found = [n["category_id"] for n in facts["annotations"] if n["image_id"] == image["id"]]
        hidden = image.get("unknown_category_ids", [])
        name = image.get("file_name", "/".join(image.get("coco_url", "").split("/")[-2:]))
        rows[name] = frozenset(map(named.get, found)), frozenset(map(named.get, hidden))  # type: ignore[arg-type]
    return rows


def label_studio_by_hand(content):
    rows = {}
    for task in json.loads(content.decode("utf-8-sig")):
        image = task["data"].get("image", task["data"].get("img"))
        if any(mark in image for mark in ":?%"):
            return None  # an address, whose path is the name
        done = task.get("annotations", task.get("completions", []))
        done = [one for one in done if not one.get("was_cancelled")]
        chosen = {True: set(), False: set()}
        for result in done[-1].get("result", []) if done else ():
            kind = result.get("type") if isinstance(result, dict) else None
            if isinstance(kind, str) and (kind == "choices" or kind.endswith("labels")):
                chosen[result.get("from_name") == "unknown"].update(result["value"][kind])
        rows[image] = frozenset(chosen[False]), frozenset(chosen[True]) if done else ALL
    return rows


def cvat_by_hand(content):
    if b"<!" in content or b"<?" in content:
        return None
    rows = {}
    for image in minidom.parseString(content).documentElement.childNodes:
        if image.nodeName != "image":
            continue
        present, unknown = set(), set()
        for tag in image.childNodes:
            if tag.nodeName != "tag":
                if tag.nodeType == tag.ELEMENT_NODE:
                    return None  # perhaps a shape
                continue
            inner = [one for one in tag.childNodes if one.nodeName == "attribute"]
            states = [one.firstChild.data for one in inner if one.getAttribute("name") == "state"]
            label = tag.getAttribute("label").strip()
            if states in (["unknown"], ["predicted"]):
                unknown.add(label)
            elif states != ["absent"]:
                present.add(label)
        rows[image.getAttribute("name")] = frozenset(present), frozenset(unknown)
    return rows


def fiftyone_by_hand(content):
    rows = {}
    samples = json.loads(content.decode("utf-8-sig"))["samples"]
    if not any("ground_truth" in sample for sample in samples):
        return None
    for sample in samples:
        truth = sample.get("ground_truth")
        hidden = None if truth is None else sample.get("unknown")
        found, unseen = (
            [] if one is None else [each["label"] for each in one.get("classifications", [one])]
            for one in (truth, hidden)
        )
        rows[sample["filepath"]] = frozenset(found), ALL if truth is None else frozenset(unseen)
    return rows


def voc_by_hand(folder):
    """Read the class files of ImageSets/Main, one for each part."""
    sets = folder / "ImageSets" / "Main"
    rows = {}
    for part in ("train", "val"):
        images = [line.split()[0] for line in lines_of(sets / f"{part}.txt")]
        said = [line.split() for line in lines_of(sets / f"dog_{part}.txt")]
        if any(len(one) != 2 for one in said):
            return None  # then the XML speaks
        states = {image: state for image, state in said}
        if len(states) != len(said):
            return None
        for image in images:
            state = states.get(image, "-1")
            present = frozenset({"dog"} if state == "1" else ())
            rows[f"JPEGImages/{image}.jpg"] = present, frozenset({"dog"} if state == "0" else ())
    return rows


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


def by_hand(read):
    """Return the check that a second reading agrees, and that a table survives being written."""

    def check(table, folder):
        reads_back(table, folder)
        return agrees(table, read(folder))

    return check


def made_table(rng):
    """Return a table of drawn states in a drawn format, and its truth: 1, 0 or -1 for unknown."""
    kind = rng.choice(("lists.csv", "columns.csv", "lists.jsonl", "lists.parquet", "columns.tsv"))
    letters = "ab cé'\"\\ß0.-_日" + (",;|[]" if "csv" not in kind else "")
    names = sorted({"".join(rng.choices(letters, k=rng.randint(1, 6))).strip() for _ in range(4)})
    names = [n for n in names if n and not n.startswith("[")] or ["x"]
    ids = [f"{row}{''.join(rng.choices('ab é,', k=3)).strip()}.jpg" for row in range(6)]
    states = [[rng.choice((1, 0, 0, -1)) for _ in names] for _ in ids]
    states[0] = [1] * len(names)  # a label that never occurs is not in a list
    present = [[n for n, s in zip(names, row, strict=True) if s == 1] for row in states]
    unknown = [[n for n, s in zip(names, row, strict=True) if s == -1] for row in states]
    truth = json.dumps({"names": names, "ids": ids, "states": states, "file": kind}).encode()
    if kind == "lists.parquet":
        lists = pa.list_(pa.string())
        columns = {
            "path": ids,
            "labels": pa.array(present, lists),
            "unknown": pa.array(unknown, lists),
        }
        return {kind: parquet(columns), "truth.json": truth}
    if kind == "lists.jsonl":
        rows = zip(ids, present, unknown, strict=True)
        lines = [json.dumps({"path": i, "labels": p, "unknown": u}) for i, p, u in rows]
        return {kind: "\n".join(lines).encode(), "truth.json": truth}
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if kind.endswith("tsv") else ",")
    if kind == "lists.csv":
        writer.writerow(("path", "labels", "unknown"))
        for i, p, u in zip(ids, present, unknown, strict=True):
            writer.writerow(map(as_cell, (i, "|".join(p), "|".join(u))))
    else:
        writer.writerow(("path", *map(as_cell, names)))
        for i, row in zip(ids, states, strict=True):
            writer.writerow((as_cell(i), *({1: "1", 0: "0", -1: ""}[s] for s in row)))
    return {kind: text.getvalue().encode(), "truth.json": truth}


def read_made(folder):
    return load(folder / json.loads((folder / "truth.json").read_text())["file"], check_files=False)


def is_the_truth(table, folder):
    """Every cell that was read must be the one that was written."""
    truth = json.loads((folder / "truth.json").read_text())
    assert list(table.space.names) == truth["names"]
    assert list(table.ids) == truth["ids"]
    states = table.present.dense().astype(int) - table.unknown.dense().astype(int)
    assert states.tolist() == truth["states"], "a label was read as another state"


def loads(name):
    return lambda folder: load(folder / name, check_files=False)


def nothing(content):
    """A file that is not read a second time by hand."""


def shard():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in (
            ("a.jpg", jpeg()),
            ("a.json", b'{"labels": ["x"], "unknown": ["y"], "split": "train", "group": 3}'),
            ("b.jpg", jpeg(1)),
            ("b.json", b'{"labels": ["y", "x"], "split": "val"}'),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


COCO = b"""{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
  "categories": [{"id": 3, "name": "x"}, {"id": 9, "name": "y"}],
  "annotations": [{"image_id": 1, "category_id": 3}, {"image_id": 2, "category_id": 9}]}"""
LABEL_STUDIO = b"""[
  {"id": 1, "data": {"image": "a.jpg", "split": "val"}, "annotations": [{"result": [
    {"from_name": "labels", "type": "choices", "value": {"choices": ["x"]}},
    {"from_name": "unknown", "type": "choices", "value": {"choices": ["y"]}}]}]},
  {"id": 2, "data": {"image": "b.jpg", "split": "test"}, "annotations": []}]"""


def voc():
    xml = b"<annotation><object><name>%s</name><difficult>%d</difficult></object></annotation>"
    return {
        "ImageSets/Main/train.txt": b"a\nb\n",
        "ImageSets/Main/val.txt": b"c\n",
        "ImageSets/Main/dog_train.txt": b"a 1\nb -1\n",
        "ImageSets/Main/dog_val.txt": b"c 0\n",
        "Annotations/a.xml": xml % (b"dog", 0),
        "Annotations/b.xml": xml % (b"cat", 1),
        "Annotations/c.xml": xml % (b"dog", 1),
    }


def cifar():
    content = (b"\0" + bytes(3072)) + (b"\1" + bytes(3072))
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    lines = "\n".join(f"c{n}" for n in range(10))
    return dict.fromkeys(names, content) | {"batches.meta.txt": lines.encode()}


def wider():
    person = {"attribute": [1, 0], "bbox": [0, 0, 5, 5]}
    content = {
        "attribute_id_map": {"0": "male", "1": "hat"},
        "images": [{"file_name": "a.jpg", "targets": [person, person]}],
    }
    return {f"wider_attribute_{p}.json": json.dumps(content).encode() for p in ("trainval", "test")}


def vispr():
    note = {"image_path": "a.jpg", "labels": ["a1_age", "a2_weight"]}
    return {f"{part}2017/a.json": json.dumps(note).encode() for part in ("train", "val", "test")}


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
HEADER = ["path", "labels", "unknown", "split"]
ONE_HOT = ["path", "x", "y", "group"]


def is_the_batch(table, folder):
    """The labels of CIFAR are the numbers in its batches."""
    batches = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    numbers = [n for name in batches for n in (folder / name).read_bytes()[::3073]]
    lines = (folder / "batches.meta.txt").read_bytes().decode("utf-8-sig").splitlines()
    names = [line for line in lines if line.strip()]
    found = [table.space.names[int(table.present.row(row)[0])] for row in range(len(table))]
    assert found == [names[n] for n in numbers], "a picture got another picture's class"


def read_voc_parts(folder):
    try:
        parts = json.loads((folder / "parts.json").read_bytes())
    except RecursionError:
        raise DataError("no option can be so deep") from None
    return load(f"voc:{folder}", check_files=False, parts=parts)


def named_parts(table, folder):
    """Every image set has as many rows as lines, in the split that was asked for."""
    parts = json.loads((folder / "parts.json").read_bytes())
    if not parts:
        raise UnreadError
    words = {"training": "train", "validation": "val", "valid": "val", "dev": "val"}
    lines = {p: (folder / f"ImageSets/Main/{p}.txt").read_text().split("\n") for p in parts}
    wanted = [words.get(s, s) for p, s in parts.items() for line in lines[p] if line.strip()]
    assert [str(s).removeprefix("trainval") or "train" for s in wanted] == table.split.tolist()


PARTS_DAMAGE = {
    ".json": lambda rng, content: as_json(strange_json(rng, json.loads(content))),
    "": lambda rng, content: content,
}


CSV = b'path,labels,unknown,split\na.jpg,x|y,z,train\n"b.jpg",,*,val\n'
STATES = b"path,x,y,group\na.jpg,1,,g\nb.jpg,0,1,h\n"
IMAGES = parquet({"image": [jpeg(), jpeg(1)], "labels": [0, 1]})
ONE_FILE = {  # by name: the file, its content, and how it is read by hand
    "csv": ("t.csv", CSV, lambda content: csv_by_hand(content, HEADER)),
    "csv, one column per label": ("t.csv", STATES, lambda content: csv_by_hand(content, ONE_HOT)),
    "written lists": ("t.txt", b"path\tlabels\na.jpg\t['x', 'y']\nb.jpg\t[]\n", nothing),
    "json lines": ("t.jsonl", LINES, lines_by_hand),
    "parquet": ("t.parquet", parquet(TABLE, {"classes": '["x", "y", "z"]'}), parquet_by_hand),
    "parquet with images": ("t.parquet", IMAGES, nothing),
    "coco": ("t.json", COCO, coco_by_hand),
    "label studio": ("t.json", LABEL_STUDIO, label_studio_by_hand),
    "cvat": ("t.xml", CVAT, cvat_by_hand),
    "fiftyone": ("samples.json", FIFTYONE, fiftyone_by_hand),
    "tar shard": ("t.tar", shard(), nothing),
}
FOLDERS = {
    "coco root": {f"annotations/instances_{p}2017.json": COCO for p in ("train", "val")},
    "wider": wider(),
    "vispr": vispr(),
    "hugging face metadata": {"train/metadata.jsonl": LINES.replace(b"path", b"file_name")},
}


def of_one_file(name, file, content, read):
    check = by_hand(lambda folder: read((folder / file).read_bytes()))
    return Target(name, {file: content}, loads(file), check)


TABLES = (
    drawn("made tables", made_table, read_made, is_the_truth),
    *(of_one_file(name, *facts) for name, facts in ONE_FILE.items()),
    *(Target(name, files, loads(""), by_hand(nothing)) for name, files in FOLDERS.items()),
    Target("voc", voc(), loads(""), by_hand(voc_by_hand)),
    Target(
        "voc parts",
        voc() | {"parts.json": b'{"train": "train", "val": "test"}'},
        read_voc_parts,
        named_parts,
        PARTS_DAMAGE,
    ),
    Target("cifar", cifar(), loads(""), is_the_batch),
)


def read_as(format):
    return lambda folder: load(f"{format}:{folder}", check_files=False)


def cub():
    return {
        "images.txt": b"1 a.jpg\n2 b.jpg\n",
        "train_test_split.txt": b"1 1\n2 0\n",
        "attributes/attributes.txt": b"1 has_bill::long\n2 has_wing::red\n",
        "attributes/image_attribute_labels.txt": b"1 1 1 3 2.0\n1 2 0 1 1.0\n2 2 1 4 3.0\n",
    }


def cub_by_hand(folder):
    images = [line.split(None, 1) for line in lines_of(folder / "images.txt")]
    names = dict(line.split(None, 1) for line in lines_of(folder / "attributes/attributes.txt"))
    said = lines_of(folder / "attributes/image_attribute_labels.txt")
    if len(dict(images)) < len(images) or len(names) < 2:
        return None
    marks = [line.split() for line in said]
    return {
        f"images/{file.strip()}": (
            frozenset(names[m[1]].strip() for m in marks if m[0] == number and m[2] == "1"),
            frozenset(),
        )
        for number, file in images
    }


def nuswide():
    files = {"ImageList/Imagelist.txt": b"x\\a.jpg\nx\\b.jpg\nx\\c.jpg\n"}
    for part, rows in (("Train", b"x\\a.jpg\nx\\b.jpg\n"), ("Test", b"x\\c.jpg\n")):
        files[f"ImageList/{part}Imagelist.txt"] = rows
    for name, marks in (("sky", "101"), ("bear", "011")):
        text = "".join(f"{mark}\n" for mark in marks).encode()
        files[f"Groundtruth/AllLabels/Labels_{name}.txt"] = text
        files[f"Groundtruth/TrainTestLabels/Labels_{name}_Train.txt"] = text[:4]
        files[f"Groundtruth/TrainTestLabels/Labels_{name}_Test.txt"] = text[4:]
    return files


def tiny_imagenet():
    return {
        "wnids.txt": b"n0\nn1\n",
        "train/n0/images/a.JPEG": b"",
        "train/n1/images/b.JPEG": b"",
        "val/images/c.JPEG": b"",
        "val/val_annotations.txt": b"c.JPEG\tn1\t0\t0\t8\t6\n",
    }


def vqa():
    files = {}
    for part in ("train2014", "val2014"):
        asked = [{"image_id": n, "question_id": n, "question": "what?"} for n in range(2)]
        ten = [{"answer": ("yes", "no")[k % 2]} for k in range(10)]
        notes = [
            {"image_id": n, "question_id": n, "answers": ten, "multiple_choice_answer": "yes"}
            for n in range(2)
        ]
        files[f"v2_OpenEnded_mscoco_{part}_questions.json"] = json.dumps(
            {"questions": asked}
        ).encode()
        files[f"v2_mscoco_{part}_annotations.json"] = json.dumps({"annotations": notes}).encode()
        arrays = io.BytesIO()
        np.savez(arrays, question_id=np.arange(2), features=np.ones((2, 3), np.float32))
        files[f"{part}_features.npz"] = arrays.getvalue()
    return files


def checkpoint(folder):
    for step in (1, 2):
        save(folder, {"model.w": torch.full((3,), float(step))}, {"step": step, "best_step": None})


def same_checkpoint(read, folder):
    """Tensors and facts are those of one checkpoint, as they were saved."""
    files = [one.read_bytes() for one in (folder / "c").glob("*/state.json")]
    if any(b'"sha256"' not in one for one in files):
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


def same_prompts(read, folder):
    lines = (folder / "p.csv").read_text("utf-8-sig").splitlines()
    if any('"' in line for line in lines):
        raise UnreadError
    cells = [line.split(",") for line in lines if line.replace(",", "").strip()]
    same([[label, text] for _, label, text in read], [[c.strip() for c in r] for r in cells[1:]])


OFFICIAL = (
    Target("cub", cub(), read_as("cub"), by_hand(cub_by_hand)),
    Target("nuswide", nuswide(), read_as("nuswide")),
    Target("tiny-imagenet", tiny_imagenet(), read_as("tiny-imagenet")),
    Target("vqa", vqa(), lambda folder: load(f"vqa:{folder}", check_files=False, at_least=1)),
    Target("checkpoint", saved(checkpoint, "c"), lambda f: load_latest(f / "c"), same_checkpoint),
    of_file("settings by hand", "set.txt", b"a.b=1\nc=[1, 2]\nd=x", read_assignments),
    Target("run folder", RUN, run_settings),
    of_file("prompts", "p.csv", PROMPTS, read_prompts, check=same_prompts),
)


def rows_of(path):
    text = path.read_bytes().decode("utf-8-sig", "replace")  # of columns that nobody reads
    return [row for row in csv.DictReader(io.StringIO(text, newline="")) if any(row.values())]


GROUPS = b"group,kind,labels\ncolour,exactly-one,red|green\nlight,at-most-one,day|night|dusk\n"


def same_groups(read, folder):
    stated = rows_of(folder / "g.csv")
    assert [group.name for group in read.groups] == [row["group"].strip() for row in stated]
    for group, row in zip(read.groups, stated, strict=True):
        assert group.kind == row["kind"].strip()
        assert list(group.labels) == [label.strip() for label in row["labels"].split("|")]


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


def same_results(read, folder):
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


PACKAGE = {
    "resources": [
        {"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")
    ]
}


def camtrap():
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


def camtrap_by_hand(folder):
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
    rows = {}
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


def chexpert():
    table = b"Path,Frontal/Lateral," + FINDINGS + b"\n"
    row = b"CheXpert/%s/patient1/a.jpg,Frontal," + STATED + b"\n"
    return {"train.csv": table + row % b"train", "valid.csv": table + row % b"valid"}


def chexpert_by_hand(folder):
    rows = {}
    for name in ("train.csv", "valid.csv"):
        for row in rows_of(folder / name):
            states = {key: row[key] for key in FINDINGS.decode().split(",")}
            present = frozenset(key for key, state in states.items() if float(state or 0) == 1)
            known = frozenset(key for key, state in states.items() if state in ("0", "0.0"))
            path = row["Path"].partition("/")[2]
            rows[path] = present, frozenset(states) - present - known
    return rows


def mimic():
    return {
        "mimic-cxr-2.0.0-chexpert.csv": b"study_id," + FINDINGS + b"\n7," + STATED + b"\n",
        "mimic-cxr-2.0.0-split.csv": (
            b"dicom_id,study_id,subject_id,split\nx,7,1001,train\ny,8,1002,validate\n"
        ),
    }


def chestxray14():
    return {
        "Data_Entry_2017.csv": (
            b"Image Index,Finding Labels,Patient ID\na.png,Mass|Edema,1\nb.png,No Finding,2\n"
        ),
        "train_val_list.txt": b"a.png\n",
        "test_list.txt": b"b.png\n",
    }


def chestxray14_by_hand(folder):
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


def ucmerced_by_hand(folder):
    header, *lines = [line.split("\t") for line in lines_of(folder / "LandUse_Multilabeled.txt")]
    rows = {}
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


def same_calls(read, folder):
    rows = rows_of(folder / "d.csv")
    if not {"Scientific name", "Start (s)", "Common name", "Confidence"} <= set(rows[0]):
        raise UnreadError  # a name in odd quotes, or another form
    assert len(rows) == len(read.scores)
    for at, row in enumerate(rows):
        assert read.scores[at] == float(row["Confidence"])
        assert read.start[at] == float(row["Start (s)"])
        name = row["Scientific name"] or row["Common name"]
        assert read.names[read.label[at]] == name


BURSTS = b"id,burst,time,score:x,score:y\na,1,2026-01-01,0.5,0.1\nb,1,2026-01-02,0.2,0.7\n"


def same_units(read, folder):
    rows = rows_of(folder / "s.csv")
    bursts = [row["burst"] for row in rows]
    assert sorted(read.names) == sorted(set(bursts))
    assert [int(count) for count in read.photos] == [bursts.count(name) for name in read.names]
    assert not np.isnan(read.odds).any(), "log-odds are not numbers"


ANSWERED = b'{"path": "a.jpg", "labels": ["x"], "probs": {"x": 0.5, "y": 0.25}}\n'


LANDUSE = b"IMAGE\tsea\ttrees\nbeach00\t1\t0\nforest01\t0\t1\n"
SETS = {  # by format: its files, and how they are read by hand
    "camtrap-dp": (camtrap(), camtrap_by_hand),
    "chexpert": (chexpert(), chexpert_by_hand),
    "mimic-cxr": (mimic(), lambda folder: None),
    "chestxray14": (chestxray14(), chestxray14_by_hand),
    "bigearthnet": ({"metadata.parquet": parquet(PATCHES)}, lambda folder: None),
    "ucmerced": ({"LandUse_Multilabeled.txt": LANDUSE}, ucmerced_by_hand),
}
FIELDS = (
    of_file("attribute groups", "g.csv", GROUPS, AttributeGroups.read, check=same_groups),
    *(
        of_file(name, "m.json", content, read_camera_results, check=same_results)
        for name, content in (("megadetector", MEGADETECTOR), ("speciesnet", SPECIESNET))
    ),
    *(Target(name, files, read_as(name), by_hand(read)) for name, (files, read) in SETS.items()),
    of_file("detections", "d.csv", BIRDNET, read_detections, check=same_calls),
    of_file("detections parquet", "d.parquet", parquet(CALLS), read_detections),
    of_file("units", "s.csv", BURSTS, aggregate_table, "probs", ["burst"], "any", check=same_units),
    of_file("is it predict's file", "a.jsonl", ANSWERED, holds_answers),
)

"""TABLES: every reader of label tables, with good files, and how each is read by hand.

The second reading takes the same file apart with the standard library (csv, json, minidom, pickle)
and without any of the project's code; it knows only the plainest form of each format, and says
nothing of a file whose form (header, keys) was damaged.
"""

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from fuzz_by_hand import (
    Rows,
    agrees,
    coco_by_hand,
    csv_by_hand,
    cvat_by_hand,
    fiftyone_by_hand,
    label_studio_by_hand,
    lines_by_hand,
    parquet_by_hand,
    voc_by_hand,
)
from fuzz_inputs import Files, as_json, strange_json
from fuzz_readers import Check, Target, drawn, parquet
from sample_pictures import jpeg

from labelwise.data import LabelTable, export, load
from labelwise.errors import DataError
from labelwise.system.text import as_cell


def reads_back(table: LabelTable, folder: Path) -> None:
    """What was read must be the same after it was written and read again."""
    if not all(name.strip() == name and name != "*" for name in table.space.names):
        return
    if table.images.__class__.__name__ != "FileImages" or any("\\" in i for i in table.ids):
        return
    place = folder / "again.parquet"
    export(table, place)
    again = load(place, check_files=False, duplicates="keep")
    assert again.space.names == table.space.names
    for sets, same in ((table.present, again.present), (table.unknown, again.unknown)):
        assert np.array_equal(sets.dense(), same.dense()), "labels changed by writing them"
    if table.split is not None:
        assert table.split.tolist() == again.split.tolist()


def by_hand(read: Callable[[Path], Rows | None]) -> Check:
    """Return the check that a second reading agrees, and that a table survives being written."""

    def check(table: LabelTable, folder: Path) -> bool:
        reads_back(table, folder)
        return agrees(table, read(folder))

    return check


def made_table(rng: Random) -> Files:
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


def read_made(folder: Path) -> LabelTable:
    return load(folder / json.loads((folder / "truth.json").read_text())["file"], check_files=False)


def is_the_truth(table: LabelTable, folder: Path) -> bool:
    """Every cell that was read must be the one that was written."""
    truth = json.loads((folder / "truth.json").read_text())
    assert list(table.space.names) == truth["names"]
    assert list(table.ids) == truth["ids"]
    states = table.present.dense().astype(int) - table.unknown.dense().astype(int)
    assert states.tolist() == truth["states"], "a label was read as another state"
    return True


def loads(name: str) -> Callable[[Path], object]:
    return lambda folder: load(folder / name, check_files=False)


def nothing(content: object) -> None:
    """A file that is not read a second time by hand."""


def shard() -> bytes:
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


def coco() -> bytes:
    return json.dumps(
        {
            "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
            "categories": [{"id": 3, "name": "x"}, {"id": 9, "name": "y"}],
            "annotations": [{"image_id": 1, "category_id": 3}, {"image_id": 2, "category_id": 9}],
        }
    ).encode()


def label_studio() -> bytes:
    choices = [
        {"from_name": name, "type": "choices", "value": {"choices": words}}
        for name, words in (("labels", ["x"]), ("unknown", ["y"]))
    ]
    tasks = [
        {"id": 1, "data": {"image": "a.jpg", "split": "val"}, "annotations": [{"result": choices}]},
        {"id": 2, "data": {"image": "b.jpg", "split": "test"}, "annotations": []},
    ]
    return json.dumps(tasks).encode()


def voc() -> Files:
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


def cifar() -> Files:
    content = (b"\0" + bytes(3072)) + (b"\1" + bytes(3072))
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    lines = "\n".join(f"c{n}" for n in range(10))
    return dict.fromkeys(names, content) | {"batches.meta.txt": lines.encode()}


def wider() -> Files:
    person = {"attribute": [1, 0], "bbox": [0, 0, 5, 5]}
    content = {
        "attribute_id_map": {"0": "male", "1": "hat"},
        "images": [{"file_name": "a.jpg", "targets": [person, person]}],
    }
    return {f"wider_attribute_{p}.json": json.dumps(content).encode() for p in ("trainval", "test")}


def vispr() -> Files:
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

FIFTYONE = json.dumps(
    {
        "classes": ["x", "y"],
        "samples": [
            {
                "filepath": "a.jpg",
                "tags": ["train"],
                "ground_truth": {"_cls": "Classifications", "classifications": [{"label": "x"}]},
                "unknown": {"_cls": "Classifications", "classifications": [{"label": "y"}]},
            },
            {"filepath": "b.jpg", "tags": ["val"], "ground_truth": {"classifications": []}},
            {"filepath": "c.jpg", "tags": ["val"], "ground_truth": None},
        ],
    }
).encode()
HEADER = ["path", "labels", "unknown", "split"]
ONE_HOT = ["path", "x", "y", "group"]


def is_the_batch(table: LabelTable, folder: Path) -> bool:
    """The labels of CIFAR are the numbers in its batches."""
    batches = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    numbers = [n for name in batches for n in (folder / name).read_bytes()[::3073]]
    lines = (folder / "batches.meta.txt").read_bytes().decode("utf-8-sig").splitlines()
    names = [line for line in lines if line.strip()]
    found = [table.space.names[int(table.present.row(row)[0])] for row in range(len(table))]
    assert found == [names[n] for n in numbers], "a picture got another picture's class"
    return True


def voc_parts() -> Files:
    return {**voc(), "parts.json": b'{"train": "train", "val": "test"}'}


def read_voc_parts(folder: Path) -> LabelTable:
    try:
        parts = json.loads((folder / "parts.json").read_bytes())
    except RecursionError:
        raise DataError("no option can be so deep") from None
    return load(f"voc:{folder}", check_files=False, parts=parts)


def named_parts(table: LabelTable, folder: Path) -> bool:
    """Every image set has as many rows as lines, in the split that was asked for."""
    parts = json.loads((folder / "parts.json").read_bytes())
    if not parts:
        return False
    words = {"training": "train", "validation": "val", "valid": "val", "dev": "val"}
    lines = {p: (folder / f"ImageSets/Main/{p}.txt").read_text().split("\n") for p in parts}
    wanted = [words.get(s, s) for p, s in parts.items() for line in lines[p] if line.strip()]
    assert [str(s).removeprefix("trainval") or "train" for s in wanted] == table.split.tolist()
    return True


def strange_parts(rng: Random, content: bytes) -> bytes:
    return as_json(strange_json(rng, json.loads(content)))


def untouched(rng: Random, content: bytes) -> bytes:
    return content


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
    "coco": ("t.json", coco(), coco_by_hand),
    "label studio": ("t.json", label_studio(), label_studio_by_hand),
    "cvat": ("t.xml", CVAT, cvat_by_hand),
    "fiftyone": ("samples.json", FIFTYONE, fiftyone_by_hand),
    "tar shard": ("t.tar", shard(), nothing),
}
FOLDERS = {
    "coco root": {f"annotations/instances_{p}2017.json": coco() for p in ("train", "val")},
    "wider": wider(),
    "vispr": vispr(),
    "hugging face metadata": {"train/metadata.jsonl": LINES.replace(b"path", b"file_name")},
}


def of_one_file(
    name: str, file: str, content: bytes, read: Callable[[bytes], Rows | None]
) -> Target:
    check = by_hand(lambda folder: read((folder / file).read_bytes()))
    return Target(name, {file: content}, loads(file), check)


TABLES = (
    drawn("made tables", made_table, read_made, is_the_truth),
    *(of_one_file(name, *facts) for name, facts in ONE_FILE.items()),
    *(Target(name, files, loads(""), by_hand(nothing)) for name, files in FOLDERS.items()),
    Target("voc", voc(), loads(""), by_hand(voc_by_hand)),
    Target(
        "voc parts",
        voc_parts(),
        read_voc_parts,
        named_parts,
        {".json": strange_parts, "": untouched},
    ),
    Target("cifar", cifar(), loads(""), is_the_batch),
)

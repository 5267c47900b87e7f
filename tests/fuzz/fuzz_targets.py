"""TARGETS: every reader of files and specs, with good input for it and the way it is damaged.

Another area registers its reader by one more ``Target`` here.
"""

import csv
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fuzz_inputs import (
    Files,
    damage,
    damage_json,
    damage_json_lines,
    damage_npz,
    damage_parquet,
)
from sample_pictures import jpeg

from labelwise.data import LabelTable, export, load
from labelwise.fitting.read import read_scores
from labelwise.links import Sigmoid
from labelwise.models import ModelSpec
from labelwise.predictions import Predictions
from labelwise.training.settings import read_settings

Damage = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """A reader of a folder: ``good`` files, how each kind is damaged, and what must then hold."""

    name: str
    good: Callable[[], Files]
    read: Callable[[Path], object]
    damage: dict[str, Damage]  # by suffix, "" for the rest
    check: Callable[[Any, Path], None] = lambda value, folder: None
    made: Callable[[Random], Files] | None = None  # other good files for each draw, not damaged

    def files(self, rng: Random) -> Files:
        """Return the good files, one of them damaged, or files that are made anew."""
        if self.made is not None:
            return self.made(rng)
        files = dict(self.good())
        chosen = rng.choice(sorted(files))
        change = self.damage.get(Path(chosen).suffix, self.damage.get("", damage))
        files[chosen] = change(rng, files[chosen])
        return files


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
            writer.writerow((i, "|".join(p), "|".join(u)))
    else:
        writer.writerow(("path", *names))
        for i, row in zip(ids, states, strict=True):
            writer.writerow((i, *({1: "1", 0: "0", -1: ""}[s] for s in row)))
    return {kind: text.getvalue().encode(), "truth.json": truth}


def read_made(folder: Path) -> LabelTable:
    return load(folder / json.loads((folder / "truth.json").read_text())["file"], check_files=False)


def is_the_truth(table: LabelTable, folder: Path) -> None:
    """Every cell that was read must be the one that was written."""
    truth = json.loads((folder / "truth.json").read_text())
    assert list(table.space.names) == truth["names"]
    assert list(table.ids) == truth["ids"]
    states = table.present.dense().astype(int) - table.unknown.dense().astype(int)
    assert states.tolist() == truth["states"], "a label was read as another state"


def loads(name: str) -> Callable[[Path], object]:
    return lambda folder: load(folder / name if name else folder, check_files=False)


def one(name: str, content: bytes) -> Callable[[], Files]:
    return lambda: {name: content}


def parquet(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata or {}), buffer)
    return buffer.getvalue()


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
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "filenames": ["a", "b"]}
    content = pickle.dumps(batch, 2)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    return dict.fromkeys(names, content) | {
        "batches.meta": pickle.dumps({"label_names": [f"c{n}" for n in range(10)]}, 2)
    }


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


def predictions() -> Predictions:
    logits = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0]])
    labels = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.uint8)
    observed = torch.tensor([[True, True, False], [True, True, True]])
    return Predictions(["a", "b"], logits, labels, observed, ("x", "y", "z"), "val", Sigmoid())


def saved(save: Callable[[Path], None], name: str) -> Callable[[], Files]:
    """Return good files as the project itself writes them."""
    import tempfile

    cache: list[bytes] = []

    def files() -> Files:
        if not cache:
            with tempfile.TemporaryDirectory() as folder:
                save(Path(folder) / name)
                cache.append((Path(folder) / name).read_bytes())
        return {name: cache[0]}

    return files


def model_json(path: Path) -> None:
    from sample_scores import spec_of

    from labelwise.decide import Threshold

    spec_of(("x", "y", "z"), Sigmoid(), Threshold(0.5)).save(path)


def npz() -> bytes:
    buffer = io.BytesIO()
    scores = np.linspace(0.1, 0.9, 12).reshape(4, 3)
    np.savez(buffer, scores=scores, labels=scores > 0.5, names=np.array(["x", "y", "z"]))
    return buffer.getvalue()


CVAT = (
    b'<annotations><image id="0" name="a.jpg" subset="train"><tag label="x"/><tag label="y">'
    b'<attribute name="state">unknown</attribute></tag></image>'
    b'<image id="1" name="b.jpg" subset="val"/></annotations>'
)
SETTINGS = b"""data: scenes
method: bce
seed: 3
batch_size: 32
data_options: {num_train: 20}
recipe: {epochs: 2, optimizer: {lr: 0.1}}
"""
SCORES = b"id,score:x,score:y,label:x,label:y,split\na,0.5,0.1,1,0,val\nb,0.2,0.7,,1,test\n"
LINES = (
    b'{"path": "a.jpg", "labels": ["x"], "unknown": ["y"], "split": "train", "group": "g"}\n'
    b'{"path": "b.jpg", "labels": [], "unknown": ["*"], "split": "val", "group": "h"}\n'
)
TABLE = {"path": ["a.jpg", "b.jpg"], "labels": [["x", "y"], []], "split": ["val", "test"]}
JSON: dict[str, Damage] = {".json": damage_json}

TARGETS = {
    target.name: target
    for target in (
        Target("made tables", dict, read_made, {}, is_the_truth, made_table),
        Target(
            "csv",
            one("t.csv", b'path,labels,unknown,split\na.jpg,x|y,z,train\n"b.jpg",,*,val\n'),
            loads("t.csv"),
            {},
            reads_back,
        ),
        Target(
            "csv, one column per label",
            one("t.csv", b"path,x,y,group\na.jpg,1,,g\nb.jpg,0,1,h\n"),
            loads("t.csv"),
            {},
            reads_back,
        ),
        Target(
            "written lists",
            one("t.txt", b"path\tlabels\na.jpg\t['x', 'y']\nb.jpg\t[]\n"),
            loads("t.txt"),
            {},
            reads_back,
        ),
        Target(
            "json lines",
            one("t.jsonl", LINES),
            loads("t.jsonl"),
            {"": damage_json_lines},
            reads_back,
        ),
        Target(
            "parquet",
            one("t.parquet", parquet(TABLE, {"classes": '["x", "y", "z"]'})),
            loads("t.parquet"),
            {"": damage_parquet},
            reads_back,
        ),
        Target(
            "parquet with images",
            one("t.parquet", parquet({"image": [jpeg(), jpeg(1)], "labels": [0, 1]})),
            loads("t.parquet"),
            {"": damage_parquet},
        ),
        Target("coco", one("t.json", coco()), loads("t.json"), JSON, reads_back),
        Target(
            "coco root",
            lambda: {f"annotations/instances_{p}2017.json": coco() for p in ("train", "val")},
            loads(""),
            JSON,
        ),
        Target("label studio", one("t.json", label_studio()), loads("t.json"), JSON, reads_back),
        Target("cvat", one("t.xml", CVAT), loads("t.xml"), {}, reads_back),
        Target("tar shard", one("t.tar", shard()), loads("t.tar"), {}),
        Target("voc", voc, loads(""), {}, reads_back),
        Target("cifar", cifar, loads(""), {}),
        Target("wider", wider, loads(""), JSON),
        Target("vispr", vispr, loads(""), JSON, reads_back),
        Target(
            "hugging face metadata",
            lambda: {"train/metadata.jsonl": LINES.replace(b"path", b"file_name")},
            loads(""),
            {"": damage_json_lines},
        ),
        Target(
            "predictions",
            saved(lambda path: predictions().save(path), "p.parquet"),
            lambda folder: Predictions.load(folder / "p.parquet"),
            {"": damage_parquet},
        ),
        Target(
            "model.json",
            saved(model_json, "model.json"),
            lambda folder: ModelSpec.load(folder / "model.json"),
            JSON,
        ),
        Target(
            "settings",
            one("s.yaml", SETTINGS),
            lambda folder: read_settings(folder / "s.yaml", {}),
            {},
        ),
        Target(
            "scores npz",
            one("s.npz", npz()),
            lambda folder: read_scores(folder / "s.npz", "probs"),
            {"": damage_npz},
        ),
        Target(
            "scores csv",
            one("s.csv", SCORES),
            lambda folder: read_scores(folder / "s.csv", "probs"),
            {},
        ),
    )
}

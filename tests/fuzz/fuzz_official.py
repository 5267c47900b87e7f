"""OFFICIAL: the layouts of the papers' data sets, and what a run keeps to go on from.

The text files of the data sets are read a second time line by line.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_by_hand import Rows, agrees
from fuzz_inputs import Files
from fuzz_readers import Target, of_file, same, saved

from labelwise.data import load
from labelwise.models.run_folder import RunFolder
from labelwise.scores.embeddings import read_prompts
from labelwise.system.yaml_values import parse_assignments
from labelwise.training.checkpoint import load_latest, save


def read_as(format: str) -> Any:
    return lambda folder: load(f"{format}:{folder}", check_files=False)


def lines_of(path: Path) -> list[str]:
    return [one for one in path.read_text("utf-8-sig", "replace").split("\n") if one.strip()]


def cub() -> Files:
    return {
        "images.txt": b"1 a.jpg\n2 b.jpg\n",
        "train_test_split.txt": b"1 1\n2 0\n",
        "attributes/attributes.txt": b"1 has_bill::long\n2 has_wing::red\n",
        "attributes/image_attribute_labels.txt": b"1 1 1 3 2.0\n1 2 0 1 1.0\n2 2 1 4 3.0\n",
    }


def cub_by_hand(folder: Path) -> Rows | None:
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


def nuswide() -> Files:
    files = {"ImageList/Imagelist.txt": b"x\\a.jpg\nx\\b.jpg\nx\\c.jpg\n"}
    for part, rows in (("Train", b"x\\a.jpg\nx\\b.jpg\n"), ("Test", b"x\\c.jpg\n")):
        files[f"ImageList/{part}Imagelist.txt"] = rows
    for name, marks in (("sky", "101"), ("bear", "011")):
        text = "".join(f"{mark}\n" for mark in marks).encode()
        files[f"Groundtruth/AllLabels/Labels_{name}.txt"] = text
        files[f"Groundtruth/TrainTestLabels/Labels_{name}_Train.txt"] = text[:4]
        files[f"Groundtruth/TrainTestLabels/Labels_{name}_Test.txt"] = text[4:]
    return files


def tiny_imagenet() -> Files:
    return {
        "wnids.txt": b"n0\nn1\n",
        "train/n0/images/a.JPEG": b"",
        "train/n1/images/b.JPEG": b"",
        "val/images/c.JPEG": b"",
        "val/val_annotations.txt": b"c.JPEG\tn1\t0\t0\t8\t6\n",
    }


def vqa() -> Files:
    files: Files = {}
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


def checkpoint(folder: Path) -> None:
    for step in (1, 2):
        save(folder, {"model.w": torch.full((3,), float(step))}, {"step": step, "best_step": None})


def same_checkpoint(read: Any, folder: Path) -> bool:
    """Tensors and facts are those of one checkpoint, as they were saved."""
    files = [one.read_bytes() for one in (folder / "c").glob("*/state.json")]
    if any(b'"sha256"' not in one for one in files):
        return False  # as in version 0.1
    step = read.facts["step"]
    assert read.tensors["model.w"].tolist() == [float(step)] * 3
    assert step in (1, 2)
    return True


def read_assignments(path: Path) -> Any:
    return parse_assignments(path.read_bytes().decode("utf-8", "replace").split("\n"))


def run_settings(folder: Path) -> Any:
    RunFolder(folder).journal.read()
    return RunFolder(folder).settings


RUN = {
    "settings.yaml": b"data: scenes\nseed: 1\n",
    "metrics.jsonl": b'{"step": 1}\n{"step": 2}\n',
}
PROMPTS = b"label,prompt\ndog,a photo of a dog\ncat,a cat\n"


def same_prompts(read: Any, folder: Path) -> bool:
    lines = (folder / "p.csv").read_text("utf-8-sig").splitlines()
    if any('"' in line for line in lines):
        return False
    cells = [line.split(",") for line in lines if line.replace(",", "").strip()]
    same([[label, text] for _, label, text in read], [[c.strip() for c in r] for r in cells[1:]])
    return True


OFFICIAL = (
    Target("cub", cub(), read_as("cub"), lambda table, folder: agrees(table, cub_by_hand(folder))),
    Target("nuswide", nuswide(), read_as("nuswide")),
    Target("tiny-imagenet", tiny_imagenet(), read_as("tiny-imagenet")),
    Target("vqa", vqa(), lambda folder: load(f"vqa:{folder}", check_files=False, at_least=1)),
    Target("checkpoint", saved(checkpoint, "c"), lambda f: load_latest(f / "c"), same_checkpoint),
    of_file("settings by hand", "set.txt", b"a.b=1\nc=[1, 2]\nd=x", read_assignments),
    Target("run folder", RUN, run_settings),
    of_file("prompts", "p.csv", PROMPTS, read_prompts, check=same_prompts),
)

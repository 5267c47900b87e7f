"""Small faithful copies of the papers' data sets, each in its official layout."""

import json

import numpy as np
from sample_pictures import Folder

RNG = np.random.default_rng(0)
TRAIN, TEST = 24, 8


def write(data, root):
    """Write the data set of a cell below ``root``; returns nothing."""
    WRITERS[data](root)


def _cifar10(root):
    folder = Folder(root / "cifar-10-batches-bin")
    folder.text("batches.meta.txt", "".join(f"class {k}\n" for k in range(10)))
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        records = RNG.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] = RNG.integers(0, 10, 8)
        folder.text(f"{name}.bin", records.tobytes())


def _cifar100(root):
    folder = Folder(root / "cifar-100-binary")
    folder.text("fine_label_names.txt", "".join(f"class {k}\n" for k in range(100)))
    for name, rows in (("train", 200), ("test", 100)):
        records = RNG.integers(0, 256, (rows, 3074), dtype=np.uint8)
        records[:, 0], records[:, 1] = RNG.integers(0, 20, rows), np.arange(rows) % 100
        folder.text(f"{name}.bin", records.tobytes())


def _coco(root):
    folder = Folder(root / "coco")
    kinds = [{"id": 10 * k, "name": f"thing {k}"} for k in range(6)]
    for part, count in (("train", TRAIN), ("val", TEST)):
        images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(count)]
        pairs = [(n, k) for n in range(count) for k in RNG.choice(6, 2, replace=False).tolist()]
        content = {"images": images, "categories": kinds}
        content["annotations"] = [{"image_id": n, "category_id": 10 * k} for n, k in pairs]
        folder.text(f"annotations/instances_{part}2014.json", json.dumps(content))
        folder.pictures(*(f"{part}2014/{n}.jpg" for n in range(count)))


def _voc(root):
    folder = Folder(root / "VOC2012")
    names = ("cat", "dog", "bird", "boat", "bus", "cow")
    for part, count in (("train", TRAIN), ("val", TEST)):
        images = [f"{part}_{n}" for n in range(count)]
        folder.text(f"ImageSets/Main/{part}.txt", "".join(f"{image}\n" for image in images))
        for k, name in enumerate(names):
            marks = [1 if n % 6 == k or n % 4 == k else -1 for n in range(count)]
            lines = (f"{image} {mark:2d}\n" for image, mark in zip(images, marks, strict=True))
            folder.text(f"ImageSets/Main/{name}_{part}.txt", "".join(lines))
        folder.pictures(*(f"JPEGImages/{image}.jpg" for image in images))
        folder.text(f"Annotations/{images[0]}.xml", "<annotation></annotation>")


def _wider(root):
    folder = Folder(root / "wider-attribute")
    names = {str(k): f"attribute {k}" for k in range(6)}
    for part, place, count in (("trainval", "train", TRAIN), ("test", "test", TEST)):
        images = []
        for n in range(count):
            marks = [1 if n % 6 == k else (0 if n % 7 == k else -1) for k in range(6)]
            person = {"attribute": marks, "bbox": [1, 1, 5, 4]}
            images.append({"file_name": f"{place}/0--Parade/{n}.jpg", "targets": [person]})
        content = {"attribute_id_map": names, "images": images}
        folder.text(f"Anno/wider_attribute_{part}.json", json.dumps(content))
        folder.pictures(*(f"Image/{place}/0--Parade/{n}.jpg" for n in range(count)))


def _vispr(root):
    folder = Folder(root / "vispr")
    for part, count in (("train2017", TRAIN), ("val2017", 4), ("test2017", TEST)):
        for n in range(count):
            note = {"image_path": f"images/{part}/{n}.jpg", "labels": [f"a{n % 6}", f"a{n % 4}"]}
            note["labels"] = sorted(set(note["labels"]))
            folder.text(f"annotations/{part}/{n}.json", json.dumps(note))
            folder.pictures(f"images/{part}/{n}.jpg")


def _nus_wide(root):
    folder = Folder(root / "nus-wide")
    files = [f"actor\\{n}.jpg" for n in range(TRAIN + TEST)]
    marks = {name: [int(n % 3 == k or n % 4 == k) for n in range(len(files))]
             for k, name in enumerate(("bear", "sky", "water", "tree", "snow"))}  # fmt: skip
    parts = {"Train": slice(TRAIN), "Test": slice(TRAIN, None), "": slice(None)}
    for part, rows in parts.items():
        folder.text(f"ImageList/{part}Imagelist.txt", "\n".join(files[rows]))
        for name, values in marks.items():
            place = f"TrainTestLabels/Labels_{name}_{part}" if part else f"AllLabels/Labels_{name}"
            lines = "".join(f"{value}\n" for value in values[rows])
            folder.text(f"Groundtruth/{place}.txt", lines)
    folder.pictures(*("Flickr/" + file.replace("\\", "/") for file in files))


def _plantnet(root):
    folder = Folder(root / "plantnet_300K")
    for part, count in (("train", 36), ("val", 12), ("test", 12)):
        folder.pictures(*(f"images_{part}/species {n % 12:02d}/{n}.jpg" for n in range(count)))


def _tiny_imagenet(root):
    folder = Folder(root / "tiny-imagenet-200")
    names = [f"n{k}" for k in range(5)]
    folder.text("wnids.txt", "".join(f"{name}\n" for name in names))
    folder.pictures(*(f"train/{names[n % 5]}/images/{n}.JPEG" for n in range(TRAIN)))
    folder.pictures(*(f"val/images/{n}.JPEG" for n in range(TEST)))
    lines = "".join(f"{n}.JPEG\t{names[n % 5]}\t0\t0\t8\t6\n" for n in range(TEST))
    folder.text("val/val_annotations.txt", lines)


def _imagenet(root):
    folder = Folder(root / "imagenet")
    for part, count in (("train", TRAIN), ("val", TEST)):
        folder.pictures(*(f"{part}/n{n % 5}/{n}.JPEG" for n in range(count)))


def _vqa(root):
    folder = Folder(root / "vqa")
    answers = ("yes", "no", "2", "red")
    for part, count in (("train2014", TRAIN), ("val2014", TEST)):
        questions, notes = [], []
        for n in range(count):
            number, votes = 1000 * len(part) + n, RNG.multinomial(10, (0.6, 0.2, 0.1, 0.1))
            given = [answers[(n + k) % 4] for k, times in enumerate(votes) for _ in range(times)]
            facts = {"image_id": n // 2, "question_id": number}
            questions.append({**facts, "question": f"What is it, {n}?"})
            ten = [{"answer": a, "answer_confidence": "yes", "answer_id": k}
                   for k, a in enumerate(given, 1)]  # fmt: skip
            notes.append({**facts, "answers": ten, "multiple_choice_answer": answers[n % 4],
                          "question_type": "what is", "answer_type": "other"})  # fmt: skip
        facts = {"info": {}, "license": {}, "data_subtype": part, "data_type": "mscoco"}
        asked = {**facts, "task_type": "Open-Ended", "questions": questions}
        folder.text(f"v2_OpenEnded_mscoco_{part}_questions.json", json.dumps(asked))
        annotated = {**facts, "annotations": notes}
        folder.text(f"v2_mscoco_{part}_annotations.json", json.dumps(annotated))
        ids = np.array([one["question_id"] for one in questions])[::-1]
        features = RNG.normal(size=(count, 8)).astype(np.float32)[::-1]
        np.savez(folder.path / f"{part}_features.npz", question_id=ids, features=features)


WRITERS = {
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "cifar60+40": _cifar100,
    "coco": _coco,
    "imagenet": _imagenet,
    "nus-wide": _nus_wide,
    "nus-wide-gong": _nus_wide,
    "plantnet": _plantnet,
    "tiny-imagenet": _tiny_imagenet,
    "vispr": _vispr,
    "voc": _voc,
    "vqa": _vqa,
    "wider": _wider,
}

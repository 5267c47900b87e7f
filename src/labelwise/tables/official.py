"""Official folders of the papers' other sets.

ImageNet's validation images lie in class folders, or flat with ``LOC_val_solution.csv`` or the
development kit's ground truth beside them. Labels are WordNet ids, in order.

NUS-WIDE: 81 concepts over 269,648 Flickr photos.

    ImageList/{Imagelist,TrainImagelist,TestImagelist}.txt
    Groundtruth/AllLabels/Labels_<concept>.txt, TrainTestLabels/Labels_<concept>_{Train,Test}.txt

Flavour "official" keeps the authors' split, "gong" draws 150,000 of the labelled 209,347 photos for
training at random (the papers' seed is not known). Both leave out the 60,301 photos without label
unless ``drop_unlabelled`` is False.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.names import Names
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.decode import image_files
from labelwise.pictures.memory import ArrayImages, FeatureRows
from labelwise.pictures.sources import CropImages, FileImages
from labelwise.tables.archives import Archive
from labelwise.tables.rows import from_rows, inner, read_fields, read_json, read_lines, require_file
from labelwise.tables.table import LabelSets, LabelTable, SoftLabels
from labelwise.types import LabelSpace

# VQA v2: questions about photos, each answered by ten people, as soft labels.
#
#     v2_OpenEnded_mscoco_{train,val}2014_questions.json   question_id, image_id, question
#     v2_mscoco_{train,val}2014_annotations.json           question_id and ten answers
#     {train,val}2014_features.npz                         question_id (N,) and features (N, D)
#
# The features are any model's of photo and question, such as LXMERT's pooled output. The soft label
# of an answer is its official accuracy: the mean, over the ten ways to leave one person out, of
# min(how many of the nine gave it / 3, 1). The official test answers are not public: val is the
# test.


PARTS = {"train": "train2014", "test": "val2014"}
PEOPLE = 10
ENOUGH = 3  # people that make an answer right
ARTICLES = {"a", "an", "the"}
NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five"),
    *("six", "seven", "eight", "nine", "ten"),
)
DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(NUMBER_WORDS)}
NEGATED = (
    *("are", "ca", "could", "did", "do", "does", "had", "has", "have", "is"),
    *("might", "must", "need", "should", "was", "were", "wo", "would"),
)
CONTRACTIONS = {f"{word}nt": f"{word}n't" for word in NEGATED}
PERIOD = re.compile(r"(?<!\d)\.|\.(?!\d)")
COMMA = re.compile(r"(?<=\d),(?=\d)")
PUNCTUATION = re.compile(r"[;/\[\]\"{}()=+\\_\-><@`,?!]")
AT_A_SPACE = re.compile(rf"(?<=\s){PUNCTUATION.pattern}|{PUNCTUATION.pattern}(?=\s|$)")


@dataclass(frozen=True)
class VqaQuestion:
    """A question: its number, its photo, the accuracy of each answer given, the most common."""

    number: int
    image: int
    accuracies: Mapping[str, float]
    most_common: str


def answer_accuracy(votes: int, people: int = PEOPLE) -> float:
    """Return the official accuracy of an answer that ``votes`` of ``people`` gave."""
    without_one, with_all = min((votes - 1) / ENOUGH, 1), min(votes / ENOUGH, 1)
    return (votes * without_one + (people - votes) * with_all) / people


def normal_answer(text: str) -> str:
    """Return an answer in the form in which answers are compared.

    Without articles, number words as digits; punctuation left out (a period only where it is not a
    decimal point, an apostrophe never), a missing apostrophe before t put in.
    """
    plain = COMMA.sub("", PERIOD.sub("", " ".join(text.lower().split())))
    plain = PUNCTUATION.sub(" ", AT_A_SPACE.sub("", plain))
    words = (CONTRACTIONS.get(word, DIGITS.get(word, word)) for word in plain.split())
    return " ".join(word for word in words if word not in ARTICLES)


def read_questions(path: Path, part: str) -> list[VqaQuestion]:
    """Return the questions of ``part`` (train2014 or val2014) in the order of their file."""
    asked = path / f"v2_OpenEnded_mscoco_{part}_questions.json"
    noted = path / f"v2_mscoco_{part}_annotations.json"
    notes = {_number(note, "question_id", noted): note for note in _entries(noted, "annotations")}
    questions = []
    for entry in _entries(asked, "questions"):
        number = _number(entry, "question_id", asked)
        if number not in notes:
            raise DataError(f"{noted}: question {number} of {asked.name} has no annotation")
        note = notes[number]
        try:
            answers = [normal_answer(answer["answer"]) for answer in note["answers"]]
            common = normal_answer(note["multiple_choice_answer"])
        except (AttributeError, KeyError, TypeError):
            answers = []
        if len(answers) != PEOPLE:
            what = f"{PEOPLE} answers, each with a text 'answer', and a 'multiple_choice_answer'"
            raise DataError(f"{noted}: question {number} must have {what}")
        given = {answer: answer_accuracy(votes) for answer, votes in Counter(answers).items()}
        questions.append(VqaQuestion(number, _number(entry, "image_id", asked), given, common))
    return questions


def read_vqa(path: Path, *, at_least: int = 9) -> LabelTable:
    """Return questions with features; an answer most common ``at_least`` times is a label."""
    if at_least < 1:
        raise SettingsError(f"at_least must be 1 or more, got {at_least}")
    parts = {split: read_questions(path, name) for split, name in PARTS.items()}
    questions = [question for own in parts.values() for question in own]
    uses = Counter(question.most_common for question in questions)
    names = sorted(answer for answer, count in uses.items() if count >= at_least and answer)
    if not names:
        raise DataError(f"{path}: no answer is the most common one of {at_least} questions")
    features = [
        _features(path / f"{PARTS[split]}_features.npz", [question.number for question in own])
        for split, own in parts.items()
    ]
    first, second = (part.shape[1] for part in features)
    if first != second:
        got = f"{first} and {second}"
        raise DataError(f"{path}: the features of both parts must be as wide, got {got}")
    columns = {name: column for column, name in enumerate(names)}
    known = [
        sorted((columns[answer], share) for answer, share in given.items() if answer in columns)
        for given in (question.accuracies for question in questions)
    ]
    present = [[column for column, share in row if share > 0.5] for row in known]
    soft = [[column for column, share in row if share < 1] for row in known]
    shares = [share for row in known for _, share in row if share < 1]
    width = len(names)
    return LabelTable(
        LabelSpace(tuple(names)),
        FeatureRows(np.concatenate(features), [str(question.number) for question in questions]),
        LabelSets.from_lists(present, width),
        LabelSets.none(len(questions), width),
        np.repeat(list(parts), [len(own) for own in parts.values()]),
        Names(f"{PARTS[split]}/{q.image}" for split, own in parts.items() for q in own),
        "vqa",
        soft=SoftLabels(LabelSets.from_lists(soft, width), np.array(shares, np.float32)),
    )


def _entries(file: Path, key: str) -> list[dict[str, Any]]:
    entries = inner(read_json(file), key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{file}: must hold a list {key!r} of objects")
    return entries


def _number(entry: Mapping[str, Any], key: str, file: Path) -> int:
    value = entry.get(key)
    if not isinstance(value, int):
        raise DataError(f"{file}: every entry must have a whole number {key!r}, got {value!r}")
    return value


def _features(file: Path, numbers: Sequence[int]) -> NDArray[np.float32]:
    if not file.exists():
        raise DataError(
            f"{file} is missing: put there the arrays question_id (N,) and features (N, D) of a "
            "model that reads photo and question, such as LXMERT's pooled output"
        )
    archive = Archive(file)
    features = archive.features("features", (None, None))
    ids = archive.array("question_id", "iu", (len(features),))
    rows = {number: row for row, number in enumerate(ids.tolist())}
    if missing := [number for number in numbers if number not in rows]:
        such = f"such as {missing[0]}"
        raise DataError(f"{file}: {len(missing):,} questions have no features, {such}")
    return features[[rows[number] for number in numbers]]


# CIFAR-10 and CIFAR-100, binary version. CIFAR60+40: two of the five fine classes of each of the 20
# coarse ones lose their label, so 20,000 training images have none of the 60 labels left.

PIXELS = 3 * 32 * 32
FINE_TO_COARSE = np.array(
    [
        *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
        *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
        *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
        *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
        *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
    ]
)


def read_cifar10(path: Path) -> LabelTable:
    """Return CIFAR-10 from ``cifar-10-batches-bin``."""
    _require_binary(path / "batches.meta", "cifar-10-binary.tar.gz")
    files = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    return _cifar(path, files, read_lines(path / "batches.meta.txt"), 1, 0, "cifar10")


def _require_binary(pickled: Path, archive: str) -> None:
    if pickled.is_file():
        raise DataError(
            f"{pickled}: this is the python version of CIFAR, and labelwise opens no pickles. "
            f"Download the binary version, https://www.cs.toronto.edu/~kriz/{archive}"
        )


def read_cifar100(path: Path, *, labels: Literal["fine", "coarse", "both"] = "fine") -> LabelTable:
    """Return CIFAR-100 from ``cifar-100-binary``; with "both" an image has two of 120 labels."""
    if labels != "both":
        return _one_label(path, labels)
    fine, coarse = _one_label(path, "fine"), _one_label(path, "coarse")
    names = (*fine.space.names, *coarse.space.names)
    truth = np.hstack([fine.targets()[0], coarse.targets()[0]])
    return LabelTable.from_arrays(names, fine.images, truth, split=fine.split, name="cifar100")


def _one_label(path: Path, labels: str) -> LabelTable:
    _require_binary(path / "meta", "cifar-100-binary.tar.gz")
    names = read_lines(path / f"{labels}_label_names.txt")
    return _cifar(path, ["train.bin", "test.bin"], names, 2, int(labels == "fine"), "cifar100")


def read_cifar60_40(path: Path, *, seed: int | None = 0) -> LabelTable:
    """Return CIFAR-100 where 40 fine classes have lost their label (see ``cifar60_40_out``)."""
    table = _one_label(path, "fine")
    kept = np.setdiff1d(np.arange(len(table.space)), cifar60_40_out(seed))
    names, labels = [table.space.names[column] for column in kept], table.targets()[0][:, kept]
    return LabelTable.from_arrays(names, table.images, labels, split=table.split, name="cifar60_40")


def cifar60_40_out(seed: int | None = 0) -> NDArray[np.int64]:
    """Return the 40 fine classes without label, ascending.

    For each coarse class 0..19 RandomState(seed) permutes its five fine ids and the first two are
    out; with seed None the last two are. The authors never published theirs.
    """
    random = None if seed is None else np.random.RandomState(seed)
    out: list[int] = []
    for coarse in range(20):
        fine = np.flatnonzero(coarse == FINE_TO_COARSE)
        out.extend(fine[-2:] if random is None else random.permutation(fine)[:2])
    return np.sort(np.array(out, np.int64))


def _cifar(
    path: Path, files: list[str], names: list[str], width: int, column: int, name: str
) -> LabelTable:
    """Return records of ``width`` class bytes and 3,072 pixel bytes; the last file is the test."""
    parts = []
    for file in files:
        content = np.frombuffer(require_file(path / file).read_bytes(), np.uint8)
        if not len(content) or len(content) % (width + PIXELS):
            raise DataError(f"{path / file}: must be records of {width + PIXELS} bytes")
        parts.append(content.reshape(-1, width + PIXELS))
    records = np.concatenate(parts)
    codes = records[:, column].astype(np.int32)
    if codes.max() >= len(names):
        raise DataError(f"{name}: a class must be in 0..{len(names) - 1}, got {codes.max()}")
    tests = len(parts[-1])
    sizes = {"train": len(records) - tests, "test": tests}
    ids = [f"{split}/{row:05d}" for split, size in sizes.items() for row in range(size)]
    pixels = records[:, width:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()
    return LabelTable(
        LabelSpace(tuple(names)),
        ArrayImages(pixels, ids),
        LabelSets.from_csr(np.arange(len(codes) + 1), codes, len(names)),
        LabelSets.none(len(codes), len(names)),
        np.repeat(list(sizes), list(sizes.values())),
        name=name,
    )


GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
GONG_SHARE = 150_000 / 209_347


def read_tiny_imagenet(path: Path) -> LabelTable:
    """Return Tiny-ImageNet: ``train/ID/images``, ``val/images`` with ``val_annotations.txt``.

    The official test images have no labels, so val is the test.
    """
    names = sorted(line.strip() for line in read_lines(path / "wnids.txt"))
    files = [f"train/{file}" for file in image_files(path / "train")]
    labels = [[file.split("/")[1]] for file in files]
    split = ["train"] * len(files)
    notes = path / "val" / "val_annotations.txt"
    for _, (image, name, *_) in read_fields(notes, 2, "an image and its class", "\t"):
        files.append(f"val/images/{image}")
        labels.append([name])
        split.append("test")
    return from_rows((path, files), labels, names=names, split=split, name="tiny-imagenet")


def read_imagenet(path: Path) -> LabelTable:
    """Return ImageNet: ``train/ID/...`` and ``val/``, which is the test.

    They may lie in ``Data/CLS-LOC``, or in ``ILSVRC/Data/CLS-LOC`` as Kaggle has them.
    """
    places = (path / "ILSVRC" / "Data" / "CLS-LOC", path / "Data" / "CLS-LOC")
    base = next((folder for folder in places if folder.is_dir()), path)
    start = "" if base == path else f"{base.relative_to(path).as_posix()}/"
    for split in ("train", "val"):
        if not (base / split).is_dir():
            raise DataError(f"{path}: ImageNet needs the folder {split!r}")
    train, val = image_files(base / "train"), image_files(base / "val")
    if any("/" not in file for file in train):
        raise DataError(f"{path}: every training image must be in the folder of its class")
    labels = [[file.split("/")[0]] for file in train]
    names = sorted({label[0] for label in labels})
    solutions = [folder / "LOC_val_solution.csv" for folder in (path, path.resolve().parent)]
    if all("/" in file for file in val):
        held = {file: file.split("/")[0] for file in val}
    elif solution := next(filter(Path.is_file, solutions), None):
        rows = csv.reader(read_lines(solution)[1:])
        held = {f"{row[0]}.JPEG": row[1].split()[0] for row in rows if len(row) > 1 and row[1]}
    else:
        held = _by_development_kit(path, val)
    for file in val:
        if file not in held:
            raise DataError(f"{path}: the class of val/{file} is not given")
    return from_rows(
        (path, [f"{start}train/{file}" for file in train] + [f"{start}val/{file}" for file in val]),
        labels + [[held[file]] for file in val],
        names=names,
        split=["train"] * len(train) + ["test"] * len(val),
        name="imagenet",
    )


def _by_development_kit(path: Path, files: list[str]) -> dict[str, str]:
    from scipy.io import loadmat  # slow to import, and seldom needed

    truth = next(iter(sorted(path.rglob(GROUND_TRUTH))), None)
    if truth is None:
        need = f"LOC_val_solution.csv or {GROUND_TRUTH}, or folders of their classes"
        raise DataError(f"{path}: flat validation images need {need}")
    meta = truth.with_name("meta.mat")
    try:
        synsets = loadmat(meta, squeeze_me=True)["synsets"]
        ids = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{meta}: the development kit cannot be read ({error})") from None
    codes = read_lines(truth)
    if len(codes) != len(files):
        raise DataError(f"{truth}: must have {len(files)} lines, got {len(codes)}")
    try:
        return {file: ids[int(code)] for file, code in zip(sorted(files), codes, strict=True)}
    except (KeyError, ValueError) as error:
        raise DataError(f"{truth}: every line must be a class number, got {error}") from None


def read_nuswide(
    path: Path,
    *,
    flavour: Literal["official", "gong"] = "official",
    drop_unlabelled: bool = True,
    images: str = "Flickr",
    seed: int = 0,
) -> LabelTable:
    """Return NUS-WIDE; ``images`` is the folder of the photos inside ``path``."""
    own = flavour == "official"
    parts = [_nuswide_part(path, name) for name in (("Train", "Test") if own else ("",))]
    files = [f"{images}/{file}" for names, _ in parts for file in names]
    labels = np.concatenate([labels for _, labels in parts])
    split = np.repeat(["train", "test"][: len(parts)], [len(names) for names, _ in parts])
    table = LabelTable.from_arrays(
        _concepts(path), FileImages(path, files), labels, split=split, name=f"nuswide-{flavour}"
    )
    if drop_unlabelled:
        table = table.subset(~table.zero_label())
    if own:
        return table
    drawn = np.full(len(table), "test", "U5")
    count = round(GONG_SHARE * len(table))
    drawn[np.random.RandomState(seed).permutation(len(table))[:count]] = "train"
    return replace(table, split=drawn)


def _concepts(path: Path) -> list[str]:
    folder = path / "Groundtruth" / "AllLabels"
    names = sorted(file.stem.removeprefix("Labels_") for file in folder.glob("Labels_*.txt"))
    if not names:
        raise DataError(f"{folder}: there must be files such as Labels_animal.txt")
    return names


def _nuswide_part(path: Path, part: str) -> tuple[list[str], NDArray[np.bool_]]:
    listed = read_lines(path / "ImageList" / f"{part}Imagelist.txt")
    files = [line.strip().replace("\\", "/") for line in listed]
    concepts = _concepts(path)
    labels = np.zeros((len(files), len(concepts)), np.bool_)
    folder = path / "Groundtruth" / ("TrainTestLabels" if part else "AllLabels")
    for column, name in enumerate(concepts):
        file = folder / (f"Labels_{name}_{part}.txt" if part else f"Labels_{name}.txt")
        marks = [line.strip() for line in read_lines(file)]
        if len(marks) != len(files) or not set(marks) <= {"0", "1"}:
            raise DataError(f"{file}: must have {len(files)} lines of 0 or 1, got {len(marks)}")
        labels[:, column] = [mark == "1" for mark in marks]
    return files, labels


def read_wider(path: Path) -> LabelTable:
    """Return WIDER-Attribute: each person's box is a row; 0 = unspecified is unknown.

    The people of a photo are a group, so that validation never shows a photo of training.
    ``Anno/wider_attribute_{trainval,test}.json`` (or beside ``Image``), photos in ``Image``.
    """
    files, boxes, ids, split, states = [], [], [], [], []
    names: list[str] = []
    for name, target in (("trainval", "train"), ("test", "test")):
        file = _first(path, f"Anno/wider_attribute_{name}.json", f"wider_attribute_{name}.json")
        content = read_json(file)
        try:
            mapping = content["attribute_id_map"]
            own = [str(mapping[str(number)]) for number in range(len(mapping))]
            if names not in ([], own):
                raise ValueError("its attributes are not those of the other file")
            names = own
            for image in content["images"]:
                for number, person in enumerate(image["targets"]):
                    marks = [int(mark) for mark in person["attribute"]]
                    left, top, width, height = (float(edge) for edge in person["bbox"])
                    if len(marks) != len(names) or not set(marks) <= {-1, 0, 1}:
                        raise ValueError(f"{len(names)} marks of 1, 0 or -1 expected, got {marks}")
                    files.append(str(image["file_name"]))
                    ids.append(f"{image['file_name']}#{number}")
                    boxes.append((left, top, left + width, top + height))
                    states.append(marks)
                    split.append(target)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{file}: not a WIDER-Attribute file ({error!r})") from None
    edges = np.array(boxes, np.float64).reshape(-1, 4)
    marked = np.array(states, np.int8).reshape(len(states), len(names))
    return LabelTable.from_arrays(
        names,
        CropImages(FileImages(path / "Image", files), edges, ids),
        marked == 1,
        marked != 0,
        split=split,
        group=files,
        name="wider",
    )


def read_vispr(path: Path) -> LabelTable:
    """Return VISPR: a JSON file for each photo, in folders train2017, val2017 and test2017.

    The papers train on train and val together, so both are train here.
    """
    parts = {"train2017": "train", "val2017": "train", "test2017": "test"}
    files, labels, split = [], [], []
    for note in sorted(path.rglob("*.json")):
        part = note.parent.name
        if part not in parts:
            continue
        content = read_json(note)
        words, image = inner(content, "labels"), inner(content, "image_path")
        texts = [image, *words] if isinstance(words, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"{note}: must have 'image_path' and a list 'labels'")
        files.append(image if (path / image).is_file() else f"{part}/{Path(image).name}")
        labels.append(words)
        split.append(parts[part])
    if not files:
        raise DataError(f"{path}: there must be JSON files in train2017, val2017 and test2017")
    return from_rows((path, files), labels, split=split, name="vispr")


def read_cub(path: Path, *, not_visible: Literal["absent", "unknown"] = "absent") -> LabelTable:
    """Return the 312 attributes of CUB-200-2011; ``not_visible`` is what certainty 1 means.

    Single-positive training takes ``is_present`` as it stands, so "absent" is the default.
    """
    paths = _numbered(path / "images.txt")
    in_train = _numbered(path / "train_test_split.txt")
    listed = _first(path, "attributes/attributes.txt", "attributes.txt", "../attributes.txt")
    names = _numbered(listed)
    labels: dict[str, list[str]] = {image: [] for image in paths}
    unknown: dict[str, list[str]] = {image: [] for image in paths}
    notes = path / "attributes" / "image_attribute_labels.txt"
    with require_file(notes).open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):  # a few official ones have an extra field
            image, attribute, present, certainty, *_ = (*line.split(), "", "", "", "")
            if image not in paths or attribute not in names or not certainty:
                raise DataError(f"{notes}, line {number}: must be image, attribute, 0/1, certainty")
            if present == "1":
                labels[image].append(names[attribute])
            elif certainty == "1" and not_visible == "unknown":
                unknown[image].append(names[attribute])
    return from_rows(
        (path, [f"images/{file}" for file in paths.values()]),
        list(labels.values()),
        names=list(names.values()),
        unknown=list(unknown.values()) if not_visible == "unknown" else None,
        split=["train" if in_train.get(image) == "1" else "test" for image in paths],
        name="cub",
    )


def _numbered(path: Path) -> dict[str, str]:
    rows = read_fields(path, 2, "a number and a value")
    return {number: " ".join(words) for _, (number, *words) in rows}


def _first(path: Path, *places: str) -> Path:
    if found := next((path / name for name in places if (path / name).is_file()), None):
        return found
    raise DataError(f"{path}: there must be a file {places[0]}")

"""VQA v2: questions about photos, each answered by ten people, as soft labels.

    v2_OpenEnded_mscoco_{train,val}2014_questions.json   question_id, image_id, question
    v2_mscoco_{train,val}2014_annotations.json           question_id and ten answers
    {train,val}2014_features.npz                         question_id (N,) and features (N, D)

The features are any model's of photo and question together, such as LXMERT's pooled output. The
official accuracy of an answer that n of ten people gave is the mean, over the ten ways to leave one
person out, of min(how many of the nine gave it / 3, 1):

    n          0    1     2     3     4 and more
    accuracy   0    0.3   0.6   0.9   1

It is the answer's soft label. The labels are the answers that are the most common one of at least
nine questions (3,129 in the whole set). The official test answers are not public: val is the test.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.feature_files import read_arrays
from labelwise.data.rows import read_json
from labelwise.data.sets import LabelSets, SoftLabels
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.memory import FeatureRows
from labelwise.system.names import Names
from labelwise.types import LabelSpace

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

    Lower case, without articles; number words as digits; punctuation left out (a period only
    where it is not a decimal point, an apostrophe never), a missing apostrophe before t put in.
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
    found = []
    for entry in _entries(asked, "questions"):
        number = _number(entry, "question_id", asked)
        if number not in notes:
            raise DataError(f"{noted}: question {number} of {asked.name} has no annotation")
        found.append(_question(number, _number(entry, "image_id", asked), notes[number], noted))
    return found


def read_vqa(path: Path, *, at_least: int = 9) -> LabelTable:
    """Return the questions with their features and the soft labels of their answers.

    An answer is a label if it is the most common one of ``at_least`` questions.
    """
    if at_least < 1:
        raise SettingsError(f"at_least must be 1 or more, got {at_least}")
    parts = {split: read_questions(path, part) for split, part in PARTS.items()}
    questions = [question for part in parts.values() for question in part]
    uses = Counter(question.most_common for question in questions)
    names = sorted(answer for answer, count in uses.items() if count >= at_least and answer)
    if not names:
        raise DataError(f"{path}: no answer is the most common one of {at_least} questions")
    features = [
        _features(path / f"{PARTS[split]}_features.npz", [one.number for one in part])
        for split, part in parts.items()
    ]
    if len({part.shape[1] for part in features}) > 1:
        widths = " and ".join(str(part.shape[1]) for part in features)
        raise DataError(f"{path}: the features of both parts must be as wide, got {widths}")
    present, soft = _labels(questions, names)
    return LabelTable(
        LabelSpace(tuple(names)),
        FeatureRows(np.concatenate(features), [str(question.number) for question in questions]),
        present,
        LabelSets.none(len(questions), len(names)),
        np.repeat(list(parts), [len(part) for part in parts.values()]),
        Names([f"{PARTS[split]}/{one.image}" for split, part in parts.items() for one in part]),
        "vqa",
        soft=soft,
    )


def _labels(questions: Sequence[VqaQuestion], names: Sequence[str]) -> tuple[LabelSets, SoftLabels]:
    """Return the labels above one half, and those strictly between 0 and 1 with their share."""
    columns = {name: column for column, name in enumerate(names)}
    present, soft, shares = [], [], []
    for question in questions:
        known = sorted(
            (columns[answer], value)
            for answer, value in question.accuracies.items()
            if answer in columns
        )
        present.append([column for column, value in known if value > 0.5])
        soft.append([column for column, value in known if value < 1])
        shares += [value for _, value in known if value < 1]
    width = len(names)
    sets = LabelSets.from_lists(soft, width)
    return LabelSets.from_lists(present, width), SoftLabels(sets, np.array(shares, np.float32))


def _question(number: int, image: int, note: Mapping[str, Any], file: Path) -> VqaQuestion:
    given = note.get("answers")
    try:
        answers = [normal_answer(one["answer"]) for one in given or ()]
    except (AttributeError, KeyError, TypeError):
        answers = []
    if len(answers) != PEOPLE:
        raise DataError(
            f"{file}: question {number} must have {PEOPLE} answers, each with the text 'answer', "
            f"got {len(answers)}"
        )
    common = note.get("multiple_choice_answer")
    if not isinstance(common, str):
        raise DataError(f"{file}: question {number} must have a text 'multiple_choice_answer'")
    votes = Counter(answers)
    accuracies = {answer: answer_accuracy(count) for answer, count in votes.items()}
    return VqaQuestion(number, image, accuracies, normal_answer(common))


def _entries(file: Path, key: str) -> list[dict[str, Any]]:
    content = read_json(file)
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{file}: must hold a list {key!r} of objects")
    return entries


def _number(entry: Mapping[str, Any], key: str, file: Path) -> int:
    value = entry.get(key)
    if not isinstance(value, int):
        raise DataError(f"{file}: every entry must have a whole number {key!r}, got {value!r}")
    return value


def _features(file: Path, numbers: Sequence[int]) -> NDArray[np.float32]:
    """Return the features of the questions, in their order."""
    if not file.exists():
        raise DataError(
            f"{file} is missing: put there the arrays question_id (N,) and features (N, D) of a "
            "model that reads photo and question, such as LXMERT's pooled output"
        )
    arrays = read_arrays(file, ("question_id", "features"))
    ids, features = arrays["question_id"], arrays["features"]
    if ids.dtype.kind not in "iu" or features.dtype.kind not in "fiu":
        raise DataError(
            f"{file}: question_id must hold whole numbers and features numbers, got {ids.dtype} "
            f"and {features.dtype}"
        )
    if features.ndim != 2 or ids.shape != (len(features),):
        raise DataError(
            f"{file}: question_id must be (N,) and features (N, D), got {ids.shape} and "
            f"{features.shape}"
        )
    rows = {int(number): row for row, number in enumerate(ids.tolist())}
    missing = [number for number in numbers if number not in rows]
    if missing:
        raise DataError(
            f"{file}: {len(missing):,} questions have no features, such as {missing[0]}"
        )
    chosen = features[[rows[number] for number in numbers]]
    return np.ascontiguousarray(chosen, np.float32)

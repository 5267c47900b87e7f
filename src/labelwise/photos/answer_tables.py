"""Tables of answers about photos: a CSV with the columns path and answer (yes, no or unsure)."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labelwise.errors import DataError
from labelwise.photos.check_log import Answer
from labelwise.system.text import from_cell, one_line

ANSWER_WORDS: dict[str, Answer] = {"yes": "yes", "no": "no", "unsure": "unsure"}
ANSWER_WORDS |= {"y": "yes", "n": "no", "u": "unsure", "?": "unsure", "1": "yes", "0": "no"}


@dataclass(frozen=True)
class AnsweredLine:
    """A line that has an answer: where it stands, for errors, and what its other cells say."""

    place: str
    path: str
    answer: Answer
    cells: Mapping[str, str | None]


def read_answered(path: Path) -> tuple[frozenset[str], list[AnsweredLine]]:
    """Return the columns of a table, and its lines but for those whose answer is empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            columns, lines = list(table.fieldnames or ()), list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not {"path", "answer"} <= set(columns):
        got = one_line(", ".join(columns)) or "nothing"
        raise DataError(f"{path} must have the columns path and answer, got {got:.200}")
    found = []
    for number, line in enumerate(lines, start=2):
        word = (line["answer"] or "").strip().lower()
        if not word:
            continue
        place = f"{path}, line {number}"
        if word not in ANSWER_WORDS:
            raise DataError(f"{place}: the answer must be yes, no or unsure, got {word!r}")
        found.append(AnsweredLine(place, from_cell(line["path"] or ""), ANSWER_WORDS[word], line))
    return frozenset(columns), found


def read_answers(path: Path) -> dict[str, Answer]:
    """Return the answers of a table by path; photos whose answer is empty are left out."""
    found: dict[str, Answer] = {}
    for line in read_answered(path)[1]:
        if found.setdefault(line.path, line.answer) != line.answer:
            raise DataError(
                f"{line.place}: {line.path} has two different answers; leave one of them, or say "
                "unsure"
            )
    return found

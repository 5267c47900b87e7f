"""Tables of answers about photos: a CSV with the columns path and answer (yes, no or unsure)."""

import csv
from pathlib import Path

from labelwise.errors import DataError
from labelwise.search.check_log import Answer
from labelwise.system.text import one_line

__all__ = ["ANSWER_WORDS", "read_answers"]

ANSWER_WORDS: dict[str, Answer] = {"yes": "yes", "no": "no", "unsure": "unsure"}
ANSWER_WORDS |= {"y": "yes", "n": "no", "u": "unsure", "?": "unsure", "1": "yes", "0": "no"}


def read_answers(path: Path) -> dict[str, Answer]:
    """Return the answers of a table by path; photos whose answer is empty are left out."""
    found: dict[str, Answer] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            if not {"path", "answer"} <= set(table.fieldnames or ()):
                got = one_line(", ".join(table.fieldnames or ())) or "nothing"
                raise DataError(f"{path} must have the columns path and answer, got {got:.200}")
            for number, line in enumerate(table, start=2):
                word = (line["answer"] or "").strip().lower()
                if not word:
                    continue
                if word not in ANSWER_WORDS:
                    raise DataError(
                        f"{path}, line {number}: the answer must be yes, no or unsure, got {word!r}"
                    )
                if found.setdefault(line["path"], ANSWER_WORDS[word]) != ANSWER_WORDS[word]:
                    raise DataError(
                        f"{path}, line {number}: {line['path']} has two different answers; "
                        "leave one of them, or say unsure"
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return found

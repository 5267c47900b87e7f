"""Review files, and the tables that are repaired by them.

A review file is a CSV with one question per row, "does this photo carry this label?":

    rank, photo, label, given, probability, check, promised, answer

``given`` is what the table says (present, absent or unknown), ``check`` marks the random sample
that a promise is made on, ``promised`` the suspects that a promise covers, and ``answer`` is for
the person: yes, no, unknown (looked, cannot tell), or empty (not asked yet).
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np

from labelwise.data import LabelTable
from labelwise.data.sets import LabelSets, SoftLabels
from labelwise.errors import DataError
from labelwise.system.csv_files import write_csv
from labelwise.system.files import replacing
from labelwise.system.text import as_cell, from_cell
from labelwise.types import nearest

Answer = Literal["yes", "no", "unknown", ""]
Given = Literal["present", "absent", "unknown"]
ChangeReason = Literal["answered", "promised"]
ANSWERS: dict[str, Answer] = {
    "yes": "yes",
    "y": "yes",
    "1": "yes",
    "no": "no",
    "n": "no",
    "0": "no",
    "unknown": "unknown",
    "don't know": "unknown",
    "?": "unknown",
    "": "",
}
COLUMNS = ("rank", "photo", "label", "given", "probability", "check", "promised", "answer")
LOG_COLUMNS = ("time", "photo", "label", "before", "after", "because")
GIVEN: dict[str, Given] = {"present": "present", "absent": "absent", "unknown": "unknown"}
STATES = {"yes": "present", "no": "absent", "unknown": "unknown"}


@dataclass(frozen=True)
class Reviewed:
    """One question of a review file, answered or not."""

    photo: str
    label: str
    given: Given
    probability: float
    check: bool = False
    promised: bool = False
    answer: Answer = ""

    @property
    def confirmed(self) -> bool | None:
        """Whether the given label is a mistake; None where nobody looked. Unknown is not."""
        if not self.answer or self.given == "unknown":
            return None
        return self.answer == ("yes" if self.given == "absent" else "no")


@dataclass(frozen=True)
class Change:
    """An entry of a table that was repaired."""

    photo: str
    label: str
    before: str
    after: str
    because: ChangeReason


def write_review(path: Path, questions: Sequence[Reviewed]) -> None:
    """Write a review file; the answers of questions that have one are kept."""
    rows = [
        (
            rank,
            one.photo,
            one.label,
            one.given,
            f"{one.probability:.6f}",
            "yes" if one.check else "",
            "yes" if one.promised else "",
            one.answer,
        )
        for rank, one in enumerate(questions, start=1)
    ]
    write_csv(path, COLUMNS, rows)


def read_review(path: Path) -> list[Reviewed]:
    """Return the questions of a review file, in the order of their ranks."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            headers, rows = reader.fieldnames or [], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: the review file cannot be read ({error})") from None
    for name in COLUMNS:
        if name not in headers:
            raise DataError(
                f"{path}: there is no column {name!r}{nearest(name, headers)}; "
                "review files are written by `labelwise data suspects` and `data next`"
            )
    found: dict[int, Reviewed] = {}
    for line, row in enumerate(rows, start=2):
        answer = ANSWERS.get((row["answer"] or "").strip().lower())
        if answer is None:
            raise DataError(
                f"{path}: line {line}: an answer is yes, no, unknown or empty, "
                f"got {row['answer']!r}"
            )
        try:
            rank, probability = int(row["rank"]), float(row["probability"])
        except (TypeError, ValueError):
            raise DataError(f"{path}: line {line}: rank and probability must be numbers") from None
        if not 0 <= probability <= 1:
            raise DataError(
                f"{path}: line {line}: a probability lies in [0, 1], got {row['probability']}"
            )
        if not row["photo"] or not row["label"]:
            raise DataError(f"{path}: line {line}: photo and label must not be empty")
        given = GIVEN.get(row["given"] or "")
        if given is None:
            raise DataError(
                f"{path}: line {line}: given is present, absent or unknown, got {row['given']!r}"
            )
        if rank in found:
            raise DataError(f"{path}: line {line}: rank {rank} stands there twice")
        found[rank] = Reviewed(
            from_cell(row["photo"]),
            from_cell(row["label"]),
            given,
            probability,
            row["check"] == "yes",
            row["promised"] == "yes",
            answer,
        )
    return [found[rank] for rank in sorted(found)]


def repair(
    table: LabelTable,
    questions: Iterable[Reviewed],
    *,
    accept_promised: bool = False,
    test_too: bool = False,
) -> tuple[LabelTable, list[Change]]:
    """Return the table with the answers in it, and what they changed.

    ``accept_promised`` also turns round the promised suspects that nobody answered. Labels that
    were found wrong by a model make its own test look better than it is, so rows of the test
    split are refused unless ``test_too``.
    """
    place = {name: row for row, name in enumerate(table.ids)}
    labels, observed = table.targets()
    known = np.ones(labels.shape, np.bool_) if observed is None else observed.copy()
    labels = np.where(known, labels, 0)
    changes = []
    for one in questions:
        answer: Answer = one.answer
        because: ChangeReason = "answered"
        if not answer and accept_promised and one.promised and one.given != "unknown":
            answer, because = ("yes" if one.given == "absent" else "no"), "promised"
        if not answer:
            continue
        if one.photo not in place:
            raise DataError(f"{table.name} has no photo {one.photo!r}{nearest(one.photo, place)}")
        row, column = place[one.photo], table.space.column(one.label)
        before = _state(float(labels[row, column]), bool(known[row, column]))
        after = STATES[answer]
        if after == before:
            continue
        if table.split is not None and table.split[row] == "test" and not test_too:
            raise DataError(
                f"{table.name}: {one.photo!r} is in the test split, where repairs by a model's own "
                "suspects would flatter it; leave test out of the suspects, or say --test-too and "
                "review test photos that the model did not choose as well"
            )
        labels[row, column], known[row, column] = answer == "yes", answer != "unknown"
        changes.append(Change(one.photo, one.label, before, after, because))
    repaired = replace(
        table,
        present=LabelSets.from_dense(labels > 0.5),
        unknown=LabelSets.from_dense(~known),
        soft=None if table.soft is None else SoftLabels.from_dense(labels),
    )
    return repaired, changes


def write_changes(path: Path, changes: Iterable[Change]) -> None:
    """Append changes to the log of a table's repairs; the log is never shortened."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    old = path.read_text(encoding="utf-8") if path.exists() else ",".join(LOG_COLUMNS) + "\n"
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        stream.write(old)
        writer = csv.writer(stream, lineterminator="\n")
        for one in changes:
            photo, label = as_cell(one.photo), as_cell(one.label)
            writer.writerow([now, photo, label, one.before, one.after, one.because])


def _state(label: float, known: bool) -> str:
    if not known:
        return "unknown"
    if 0 < label < 1:
        return "soft"
    return "present" if label else "absent"

"""What people agree on about labels: the last answer of each person, and the table to train on.

Where two people disagree, nothing is known. A table is an export: the answer log is the truth.
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelwise.answers.log import AnswerLog, Line, LoggedAnswer, Note, answered
from labelwise.answers.session import Key, Session
from labelwise.base.files import replacing, sha256_of
from labelwise.base.text import as_cell
from labelwise.errors import DataError

ASIDE, CHOSEN = "aside", "chosen"  # draws: photos set aside at random, and those a model chose


@dataclass
class Tally:
    """How many photos people answered about a label, and how."""

    label: str
    yes: int = 0
    no: int = 0
    unsure: int = 0
    disagreed: int = 0


class LabelAnswers(Session):
    """What people say of labels now. A model chose all photos but those ``aside``, unless None."""

    why = "label"

    def __init__(self, log: AnswerLog, aside: Collection[str] | None = None) -> None:
        self.aside = aside
        super().__init__(log)

    def restart(self) -> None:
        self._agreed: dict[str, dict[str, bool]] = {}
        self._counted: dict[Key, tuple[Tally, str]] = {}  # where an answer is counted
        self._tallies: dict[str, Tally] = {}
        self._labels: dict[str, int] = {}  # how many were answered, by photo
        self._draws: dict[str, str] = {}

    def covers(self, line: LoggedAnswer) -> bool:
        return True

    def add(self, label: str, answers: Mapping[str, str], who: str) -> None:
        lines = []
        for photo, answer in answers.items():
            draw = None if self.aside is None else ASIDE if photo in self.aside else CHOSEN
            lines.append(answered(photo, label, answer, who, self.why, draw=draw))
        self.record(lines)

    def take(self, key: Key, line: Line) -> None:
        photo, label = key
        verdict = self.verdict(photo, label)
        known = {**self._agreed.get(photo, {})}  # a new one: another thread may read the old
        known.pop(label, None)
        if verdict is not None:
            known[label] = verdict
        self._agreed[photo] = known
        if isinstance(line, LoggedAnswer) and line.draw is not None:
            self._draws[photo] = line.draw
        if key in self._counted:
            self._count(*self._counted.pop(key), photo, -1)
        if key in self.said:
            kind = {True: "yes", False: "no", None: "disagreed"}[verdict]
            kind = "unsure" if {*self.said[key].values()} == {("unsure",)} else kind
            self._counted[key] = self._tallies.setdefault(label, Tally(label)), kind
            self._count(*self._counted[key], photo, 1)

    def _count(self, tally: Tally, kind: str, photo: str, change: int) -> None:
        setattr(tally, kind, getattr(tally, kind) + change)
        self._labels[photo] = self._labels.get(photo, 0) + change
        if not self._labels[photo]:
            del self._labels[photo]

    def is_answered(self, photo: str, label: str) -> bool:
        return (photo, label) in self.said

    def verdict(self, photo: str, label: str) -> bool | None:  # None: disagreed, or nobody knows
        words = {*self.said.get((photo, label), {}).values()} - {("unsure",)}
        return words == {("yes",)} if len(words) == 1 else None

    @property
    def answered(self) -> int:
        return len(self._labels)

    def tally(self, label: str) -> Tally:
        return self._tallies.get(label, Tally(label))

    @property
    def agreed(self) -> dict[str, dict[str, bool]]:
        """What people agree on, by photo and label; a copy that other threads can read."""
        return {photo: known for photo, known in self._agreed.copy().items() if known}

    def export(self, table: Path, labels: Sequence[str] = ()) -> None:
        """Write the label table of what people agree on, only over a table of the log's own."""
        require_own(self.log, table)
        known, draws = self.agreed, self._draws.copy()
        others = (label for own in known.values() for label in own)
        columns = list(dict.fromkeys([*labels, *others]))
        aside = {photo for photo, draw in draws.items() if draw == ASIDE}.union(self.aside or ())
        split = None if self.aside is None and not draws else aside
        with replacing(table) as temporary:
            write_table(temporary, columns, known, split)
            digest = sha256_of(temporary)
            if digest not in _exported(self.log):
                self.log.append([Note("export", {"sha256": digest})])


def export_again(table: Path) -> None:
    """Bring a table up to date with the log that it was exported from, if that is beside it."""
    log = AnswerLog(table.with_suffix(".jsonl"))
    if table.suffix == ".csv" and log.is_own() and _may_write(log, table):
        LabelAnswers(log).export(table)


def require_own(log: AnswerLog, table: Path) -> None:
    """Raise where a table exists that is not an export of a log: it is never overwritten."""
    if not _may_write(log, table):
        other = table.with_stem(f"{table.stem}-answers")
        raise DataError(
            f"{table} exists, and labelwise did not write it from {log.path.name}, so it is not "
            f"overwritten; use another file, such as {other}, or move it away"
        )


def _may_write(log: AnswerLog, table: Path) -> bool:
    return not table.exists() or sha256_of(table) in _exported(log)


def _exported(log: AnswerLog) -> set[str]:
    return {facts["sha256"] for facts in log.notes("export")}


def write_table(
    path: Path,
    labels: Sequence[str],
    known: Mapping[str, Mapping[str, bool]],
    aside: Collection[str] | None,
) -> None:
    """Write a label table: 1, 0, or empty where nothing is known.

    ``aside`` are the photos of the split test, all others are of train; None: no splits.
    """
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", *map(as_cell, labels), *([] if aside is None else ["split"])])
        for photo, own in sorted(known.items()):
            cells = [str(int(own[label])) if label in own else "" for label in labels]
            if aside is not None:
                cells.append("test" if photo in aside else "train")
            writer.writerow([as_cell(photo), *cells])

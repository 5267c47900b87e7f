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
        if isinstance(line, LoggedAnswer) and line.draw is not None:
            self._draws[key[0]] = line.draw

    def is_answered(self, photo: str, label: str) -> bool:
        return (photo, label) in self.said

    def verdict(self, photo: str, label: str) -> bool | None:  # None: disagreed, or nobody knows
        words = {*self.said.get((photo, label), {}).values()} - {("unsure",)}
        return words == {("yes",)} if len(words) == 1 else None

    @property
    def answered(self) -> int:
        return len({photo for photo, _ in self.said})

    def tallies(self) -> dict[str, Tally]:
        """Return how people answered about each label that anybody answered about."""
        tallies: dict[str, Tally] = {}
        for (photo, label), people in self.said.items():
            tally = tallies.setdefault(label, Tally(label))
            kind = {True: "yes", False: "no", None: "disagreed"}[self.verdict(photo, label)]
            kind = "unsure" if {*people.values()} == {("unsure",)} else kind
            setattr(tally, kind, getattr(tally, kind) + 1)
        return tallies

    @property
    def agreed(self) -> dict[str, dict[str, bool]]:
        """What people agree on, by photo and label; other threads may ask."""
        agreed: dict[str, dict[str, bool]] = {}
        for photo, label in self.said.copy():
            if (verdict := self.verdict(photo, label)) is not None:
                agreed.setdefault(photo, {})[label] = verdict
        return agreed

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


def _exported(log: AnswerLog) -> set[object]:
    return {facts.get("sha256") for facts in log.notes("export")}


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

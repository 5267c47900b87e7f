"""AnswerLog: what people say of photos, one line per answer, and the label table that follows.

    NAME.jsonl    every answer in the order it came; no line is changed or taken out
    NAME.csv      the label table: one column per word, 1 it is there, 0 it is not, empty unknown

Where questions were chosen, its column ``split`` says which photos were not: those set aside are
``test``, all others ``train``.
Of one person, photo and word the last answer counts. Where people disagree, the table says unknown.
An answer is on the disk before it is acknowledged; a last line that was cut off was not.
"""

import csv
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from labelwise.errors import DataError, SettingsError
from labelwise.system.files import append_whole, locked, replacing, write_error
from labelwise.system.text import as_cell

AnswerState = Literal["present", "absent", "unsure", "withdrawn"]


@dataclass(frozen=True)
class GivenAnswer:
    """What one person said of one word and one photo."""

    photo: str
    label: str
    state: AnswerState
    who: str
    at: str


@dataclass(frozen=True)
class Tally:
    """How many photos people answered about a word, and how."""

    yes: int = 0
    no: int = 0
    unsure: int = 0
    disagreed: int = 0


def asking_order(label: str, photos: Iterable[str]) -> list[str]:
    """Return photos in the order in which they are asked about for a word.

    It is random, each word's own, and the same every time: by the hash of word and photo.
    """

    def place(photo: str) -> bytes:
        return hashlib.sha256(os.fsencode(f"{label}\0{photo}")).digest()

    return sorted(photos, key=place)


class AnswerLog:
    """The answers of a file; whoever opens one closes it, best by ``with``.

    ``aside`` are the photos that are set aside, where questions about the others are chosen.
    ``agreed`` is what people agree on, by photo and word: a new mapping after each answer, so that
    other threads can read it.
    """

    def __init__(
        self, table: Path, words: Sequence[str], aside: Collection[str] | None = None
    ) -> None:
        if table.suffix.lower() != ".csv":
            raise SettingsError(f"the answers are kept in a .csv file, got {table}")
        self.table, self.words, self.aside = table, tuple(words), aside
        self.path = table.with_suffix(".jsonl")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)  # nothing is kept back for later
        except OSError as error:
            raise write_error(self.path, error) from None
        busy = f"another server keeps its answers in {self.path}; stop it, or use another file"
        self._lock = locked(self.path, busy)
        self._said: dict[tuple[str, str], dict[str, AnswerState]] = {}
        self.agreed: Mapping[str, Mapping[str, bool]] = {}
        try:
            self._lock.__enter__()
        except BaseException:
            self._file.close()
            raise
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        self.agreed = self._agreed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if not self._file.closed:
            self._file.close()
            self._lock.__exit__(None, None, None)

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                one = GivenAnswer(**json.loads(line))
                is_text = all(isinstance(value, str) for value in vars(one).values())
                if not is_text or one.state not in get_args(AnswerState):
                    raise ValueError(one.state)
            except (ValueError, TypeError, RecursionError):
                raise DataError(
                    f"{self.path}, line {number}: this is not an answer; take the line out, or "
                    "move the file away to start anew"
                ) from None
            self._note(one)

    def _note(self, one: GivenAnswer) -> None:
        people = self._said.setdefault((one.photo, one.label), {})
        people.pop(one.who, None)
        if one.state != "withdrawn":
            people[one.who] = one.state

    def add(self, label: str, states: Mapping[str, AnswerState], who: str) -> None:
        """Keep what one person said of a word in some photos."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        answers = [GivenAnswer(photo, label, state, who, at) for photo, state in states.items()]
        lines = [json.dumps(asdict(one)) + "\n" for one in answers]
        try:
            append_whole(self._file, "".join(lines).encode(), durable=True)
        except OSError as error:
            raise write_error(self.path, error) from None
        for one in answers:
            self._note(one)
        self.agreed = self._agreed()
        self._write_table()

    def is_answered(self, photo: str, label: str) -> bool:
        """Return whether anyone has said anything of a word in a photo."""
        return bool(self._said.get((photo, label)))

    def verdict(self, photo: str, label: str) -> bool | None:
        """Return what people agree on; None where they do not, or nobody knows."""
        said = {one for one in self._said.get((photo, label), {}).values() if one != "unsure"}
        return said == {"present"} if len(said) == 1 else None

    @property
    def answered(self) -> int:
        """How many photos someone has said anything of."""
        return len({photo for (photo, _), people in self._said.items() if people})

    def tallies(self) -> dict[str, Tally]:
        """Return how many photos were answered, for each of the words."""
        counts = {
            word: dict.fromkeys(("yes", "no", "unsure", "disagreed"), 0) for word in self.words
        }
        for (photo, label), people in self._said.items():
            if not people or label not in counts:
                continue
            verdict = self.verdict(photo, label)
            if verdict is not None:
                kind = "yes" if verdict else "no"
            else:
                kind = "unsure" if set(people.values()) == {"unsure"} else "disagreed"
            counts[label][kind] += 1
        return {word: Tally(**own) for word, own in counts.items()}

    def _agreed(self) -> dict[str, dict[str, bool]]:
        known: dict[str, dict[str, bool]] = {}
        for photo, label in self._said:
            verdict = self.verdict(photo, label)
            if verdict is not None:
                known.setdefault(photo, {})[label] = verdict
        return known

    def _write_table(self) -> None:
        """Write the label table of all photos that people agree on something of."""
        said = dict.fromkeys(label for own in self.agreed.values() for label in own)
        others = [label for label in said if label not in self.words]  # of before; they stay
        write_answer_table(self.table, (*self.words, *others), self.agreed, self.aside)


def write_answer_table(
    path: Path,
    labels: Sequence[str],
    answers: Mapping[str, Mapping[str, bool]],
    aside: Collection[str] | None,
) -> None:
    """Write a label table of answers by photo and label; all others are unknown.

    ``aside`` are the photos of the split test, all others are of train; None: no splits.
    """
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream,
    ):
        writer = csv.writer(stream)
        writer.writerow(["path", *map(as_cell, labels), *([] if aside is None else ["split"])])
        for photo in sorted(answers):
            own = answers[photo]
            cells = [str(int(own[label])) if label in own else "" for label in labels]
            if aside is not None:
                cells.append("test" if photo in aside else "train")
            writer.writerow([as_cell(photo), *cells])

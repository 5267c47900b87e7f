"""AnswerLog: what people said about photos, in one file of JSON lines that only grows.

    {"labelwise": "answers", "version": 1}                     the first line
    {"photo", "label", "answer", "who", "when", "why", ...}    yes, no, unsure, or undo
    {"note": KIND, ...}                                        what was drawn or exported

``photo`` is a path, or the SHA-256 of the photo's content. ``label`` is a label, or the query that
was asked. ``why`` says how the question came about: ``correction``, ``label``, ``review``,
``audit``, ``list``, ``count``. A sampled question has a ``draw`` and may have a ``weight``. Each
line ends with a checksum of itself and of all lines before it, so a line that was taken out or put
in is noticed, unless no line comes after it: see :meth:`AnswerLog.mark`. Lines of version 0.3 have
checksums of themselves alone. A file with another first
line is never written to.

An append costs the same however long the log is. It holds a file lock, and is on the disk before it
returns. A line that a crash cut off is removed by the next append. Logs of version 0.2 are
converted by the first append; the old file is kept.
"""

import json
import os
import shutil
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from io import FileIO
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from labelwise.base.files import (
    append_whole,
    locked,
    replacing,
    require_regular,
    sha256_of,
    write_error,
)
from labelwise.base.text import first_line, for_terminal
from labelwise.errors import DataError
from labelwise.tables.words import ABSENT, PRESENT

Answer = Literal["yes", "no", "unsure"]
# As people type them, in the languages of the tables. Ticks and crosses are not answers, for "x" is
# either; nor are words that leave open whether anybody looked, such as "maybe" and "todo".
SPELLED = {word for word in PRESENT | ABSENT if word[0].isalnum() and word != "x"}
ANSWER_WORDS: dict[str, Answer] = {
    **dict.fromkeys((*(SPELLED & PRESENT), "o", "s"), "yes"),
    **dict.fromkeys(SPELLED & ABSENT, "no"),
    **dict.fromkeys(("unsure", "u", "d", "unknown", "don't know", "dont know", "?"), "unsure"),
    **dict.fromkeys(
        ("not sure", "unsicher", "unklar", "weiß nicht", "je ne sais pas", "no sé"), "unsure"
    ),
}
HEADER = b'{"labelwise": "answers", "version": 1}\n'
START = zlib.crc32(HEADER)  # what the checksums of lines run on from
NO_FILE = -1
MOST = 1 << 31  # bytes, of some ten million answers
SEAL = len(b', "sum": "00000000"}')
AS_ANSWER = {word: word for word in ("yes", "no", "unsure", "undo")} | {
    "present": "yes", "absent": "no", "unknown": "unsure", "withdrawn": "undo", "undone": "undo",
}  # fmt: skip
Facts = Mapping[str, object]
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """One line of a log. "undo" takes back what this person said of the photo and label."""

    photo: str
    label: str
    answer: Literal["yes", "no", "unsure", "undo"]
    who: str
    when: str
    why: str
    weight: float | None = None
    draw: str | None = None
    path: str | None = None  # where the photo was, if ``photo`` is its hash

    def __post_init__(self) -> None:
        texts = [self.photo, self.label, self.who, self.when, self.why]
        texts += [self.draw or "", self.path or ""]
        is_weight = isinstance(self.weight, int | float | None)
        if not all(isinstance(text, str) for text in texts) or not is_weight:
            raise TypeError("text expected, or a number as its weight")
        if self.answer not in AS_ANSWER:
            raise TypeError(self.answer)


@dataclass(frozen=True, slots=True)
class Note:
    """A line that is not an answer: facts of one kind, such as a random draw."""

    kind: str
    facts: Facts


Line = LoggedAnswer | Note


def now() -> str:
    """Return the time as logs write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def answered(photo: str, label: str, answer: str, who: str | None, why: str, **more: Any) -> Line:
    """Return a new line; present, absent and unknown are taken for yes, no and unsure."""
    word: Any = AS_ANSWER[answer]
    return LoggedAnswer(photo, label, word, who or getuser(), now(), why, **more)


def answer_of(text: str, where: str = "") -> Answer:
    """Return the answer that a person typed, in one of the languages that are understood."""
    word = unicodedata.normalize("NFC", text).strip().casefold()
    if word not in ANSWER_WORDS:
        got = f"got {for_terminal(text.strip()[:60])}"
        raise DataError(
            f"{where}{': ' if where else ''}the answer must be yes, no or unsure, {got}"
        )
    return ANSWER_WORDS[word]


class AnswerLog:
    """The log in a file, which need not exist yet.

    ``older`` returns the facts of lines that version 0.2 kept elsewhere. They are the beginning of
    a log that is not there, and the first append writes them. Threads may share a log.
    """

    def __init__(self, path: Path, older: Callable[[], Iterable[Facts]] | None = None) -> None:
        self.path, self._older = path, older
        self._inode: int | None = None  # of the file that was read, how much of it was, and
        self._size, self._own = 0, False  # whether it is a log of this version
        self._sums = [START]  # checksums of the header and of the lines that were read
        self.lock = RLock()

    def lines(self) -> list[Line]:
        """Return all lines in order: the same list, which grows, unless the file was replaced."""
        with self.lock:
            try:
                self._require_log()
                with self.path.open("rb") as stream:
                    inode, size = os.fstat(stream.fileno()).st_ino, stream.seek(0, os.SEEK_END)
                    if inode == self._inode and self._own and size >= self._size:
                        stream.seek(self._size)
                        self._take(stream.read())
                    elif (inode, size) != (self._inode, self._size):
                        stream.seek(0)
                        self._begin(stream.read(), inode)
            except FileNotFoundError:
                if self._inode != NO_FILE:
                    self._begin(b"", NO_FILE)
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}") from None
            return self._lines

    def _begin(self, content: bytes, inode: int) -> None:
        self._lines: list[Line] = []
        self._notes: dict[str, list[Facts]] = {}
        self._inode, self._size, self._own = None, len(HEADER), content.startswith(HEADER)
        self._sums, self._is_chained = [START], False
        if self._own:
            self._take(content[len(HEADER) :])
        else:
            self._keep(self._converted(content))
            self._size = len(content)
        self._inode = inode

    def _take(self, content: bytes) -> None:
        """Add the complete lines of what was read; the last one may still be being written."""
        lines: list[Line] = []
        try:
            taken = content[: _complete(content)]
            sums, is_chained = self._sums[-1:], self._is_chained
            for raw in taken.splitlines():
                body, end = raw[:-SEAL] + b"}", raw[-SEAL:]
                if end == _seal(zlib.crc32(body, sums[-1])):
                    is_chained = True
                elif is_chained or end != _seal(zlib.crc32(body)):  # as of version 0.3
                    raise ValueError(raw)
                sums.append(int(end[-10:-2], 16))
                lines.append(_line(json.loads(body)))
        except (ValueError, TypeError, LookupError, RecursionError):
            raise self.damaged(f"line {len(self._lines) + len(lines) + 2}") from None
        self._sums, self._is_chained = [*self._sums, *sums[1:]], is_chained
        self._keep(lines)
        self._size += len(taken)

    def damaged(self, where: str) -> DataError:
        """Return the error about a line, described by ``where``, that cannot be in this log."""
        return DataError(
            f"{self.path}, {where}: this line is not as labelwise wrote it, or a line before it "
            "was taken out; bring the file back from a copy, or delete this line and all below it"
        )

    def _keep(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._lines.append(line)
            if isinstance(line, Note):
                self._notes.setdefault(line.kind, []).append(line.facts)

    def _converted(self, content: bytes) -> list[Line]:
        """Return the lines of an earlier version; raise if the file is a foreign one."""
        records: Iterable[Facts] | None = ()
        if not HEADER.startswith(content):  # neither empty, nor a first line that was cut off
            records = lines_of_labelling(content, self.path)
        elif self._older is not None:
            records = self._older()
        if records is None:
            other = self.path.with_stem(f"{self.path.stem}-answers")
            raise DataError(f"{self.path} is not an answer log; use another file, such as {other}")
        try:
            return [_line(facts) for facts in records]
        except TypeError:
            raise DataError(
                f"the answers of version 0.2 beside {self.path} cannot be read; bring them back "
                "from a copy, or move them away"
            ) from None

    def _require_log(self) -> None:
        """Raise unless the file can be a log, before any of it is read."""
        require_regular(self.path)
        if self.path.exists() and (size := self.path.stat().st_size) > MOST:
            raise DataError(f"{self.path} must have at most {MOST:,} bytes, got {size:,}")

    def is_own(self) -> bool:
        try:
            self._require_log()
            with self.path.open("rb") as stream:
                return stream.read(len(HEADER)) == HEADER
        except OSError:
            return False

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines; they are on the disk when this returns."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.lock:
                while not self._appended(lines):
                    pass
        except OSError as error:
            raise write_error(self.path, error) from None

    def _appended(self, lines: Sequence[Line]) -> bool:
        """Append under the lock; False where the file had to be converted, or was by another."""
        self._require_log()
        self.path.touch()
        before = self.path.stat().st_ino
        with locked(self.path):
            if self.path.stat().st_ino != before:
                return False
            with self.path.open("r+b", buffering=0) as stream:
                start = stream.read(len(HEADER))
                if start == HEADER:
                    append_whole(stream, _sealed(lines, self._repair(stream)), durable=True)
                    return True
                old = start + stream.read()
                older = self._converted(old)
                if not older:
                    stream.truncate(0)
                    append_whole(stream, HEADER + _sealed(lines), durable=True)
                    return True
            if not HEADER.startswith(old):
                shutil.copy2(self.path, self.path.with_suffix(f".0.2{self.path.suffix}"))
            with replacing(self.path) as temporary:
                temporary.write_bytes(HEADER + _sealed(older))
            return False

    def _repair(self, stream: FileIO) -> int:
        """Cut a last line that has no end, and return the checksum of the last one that has one."""
        size = stream.seek(0, os.SEEK_END)
        try:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # only then more than an end is read
                stream.seek(0)
                size = stream.truncate(_complete(stream.read(size)))
            if size == len(HEADER):
                return START
            stream.seek(size - 11)
            return int(stream.read(8), 16)
        except ValueError:
            raise self.damaged("last line") from None

    def mark(self) -> tuple[int, int]:
        """Return how many lines there are and their checksum, to know later that none was lost."""
        return len(self.lines()), self._sums[-1]

    def holds(self, mark: Sequence[int]) -> bool:
        """Return whether the log still begins with the lines that it had at :meth:`mark`."""
        lines, total = mark
        return len(self.lines()) >= lines >= 0 and self._sums[lines : lines + 1] in ([total], [])

    def notes(self, kind: str) -> list[Facts]:
        self.lines()
        return self._notes.get(kind, [])


def _sealed(lines: Iterable[Line], total: int = START) -> bytes:
    """Return lines with their checksums, which run on from that of the last line before."""
    content = b""
    for line in lines:
        if isinstance(line, Note):
            facts = {"note": line.kind, **line.facts}
        else:
            named = ((name, getattr(line, name)) for name in LoggedAnswer.__slots__)
            facts = {name: value for name, value in named if value is not None}
        body = json.dumps(facts).encode()
        total = zlib.crc32(body, total)
        content += body[:-1] + _seal(total) + b"\n"
    return content


def _seal(total: int) -> bytes:
    return b', "sum": "%08x"}' % total


def _line(facts: Facts) -> Line:
    if "note" in facts:
        if not isinstance(facts["note"], str):
            raise TypeError("the kind of a note is text")
        return Note(facts["note"], {name: fact for name, fact in facts.items() if name != "note"})
    fields: Any = facts  # which the answer checks
    return LoggedAnswer(**fields)


def _complete(content: bytes) -> int:
    """Return how much of a log is complete lines; raise where the end of a line is damaged."""
    end = content.rfind(b"\n") + 1
    if content[end:-1][-SEAL:-10] == b', "sum": "':
        raise ValueError("a line has another end than was written")
    return end


# Answers that version 0.2 kept in five formats, as the facts of lines of a log.


def lines_of_labelling(content: bytes, path: Path) -> list[Facts] | None:
    """Return the answers of the labelling page, from a file of JSON lines; None of other files."""
    lines: list[Facts] = []
    for number, raw in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            record = json.loads(raw)
            texts = [text for text in record.values() if isinstance(text, str)]
            if len(texts) != 5 or set(record) != {"photo", "label", "state", "who", "at"}:
                raise ValueError(number)
            lines.append(_answer(record.pop("state"), record.pop("at"), "label", **record))
        except UNREADABLE:
            if not lines:
                return None
            raise DataError(f"{path}, line {number}: this is not an answer; take it out") from None
    table = path.with_suffix(".csv")
    if lines and table.is_file():
        lines.append({"note": "export", "sha256": sha256_of(table)})
    return lines or None


def lines_of_run(path: Path) -> list[Facts]:
    """Return the answers of a run of words, from its Parquet file."""
    import pyarrow as pa  # not needed by those who have none
    import pyarrow.parquet as pq

    if not path.is_file():
        return []
    lines: list[Facts] = []
    try:
        for row in pq.read_table(path).to_pylist():
            more = {"draw": "aside"} if row["aside"] else {}
            more |= {"photo": row["digest"].hex(), "path": row["id"], "who": "unknown"}
            said = dict.fromkeys(row["present"], "yes") | dict.fromkeys(row["absent"], "no")
            lines += [_answer(word, "", "label", label=name, **more) for name, word in said.items()]
    except (OSError, *UNREADABLE, pa.ArrowException) as error:
        raise DataError(
            f"{path} holds no answers that can be read ({first_line(error)}); move it away to "
            "start without them, or bring back a copy"
        ) from None
    return lines


def lines_of_index(
    folder: Path, select: Callable[[str], list[Any]], has_table: Callable[[str], bool]
) -> Iterator[Facts]:
    """Yield corrections, checked lists and samples of an index, from SQLite and samples.jsonl."""
    if has_table("corrections"):
        for photo, label, state, who, at, source in select(
            "SELECT lower(hex(hash)), label, state, who, at, source FROM corrections "
            "JOIN contents USING (row) ORDER BY id"
        ):
            yield _answer(state, at, source, photo=photo, label=label, who=who)
    if has_table("checked_lists"):
        for _, query, wrong, listed, cut, seed, at, *distinct in select(
            "SELECT * FROM checked_lists ORDER BY id"
        ):
            facts = {"wrong_at_most": wrong, "listed": listed, "cut": cut, "seed": seed, "at": at}
            yield {"note": "list", "query": query, **facts, "distinct": distinct == [1]}
    if has_table("check_answers"):
        for photo, query, answer, who, at in select(
            "SELECT lower(hex(hash)), query, answer, who, at FROM check_answers "
            "JOIN contents USING (row) ORDER BY id"
        ):
            yield _answer(answer, at, "list", photo=photo, label=query, who=who)
    samples = folder / "samples.jsonl"
    content = samples.read_bytes() if samples.is_file() else b""
    for number, raw in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            facts = json.loads(raw)
            kind = facts.pop("kind")
            if kind == "sample":
                yield {"note": "count", **facts}
                continue
            more = {"label": facts["query"], "who": facts["who"] or "unknown"}
            more["draw"] = str(facts["seed"])
            for photo, answer in facts["answers"].items():
                yield _answer(answer or "undo", facts["at"], "count", photo=photo, **more)
        except UNREADABLE:
            raise DataError(
                f"{samples}, line {number}: this cannot be read; bring the file back from a copy, "
                "or move it away to draw other photos"
            ) from None


def _answer(state: str, at: str, why: str, **more: str) -> Facts:
    return {"answer": AS_ANSWER[state], "when": at, "why": why, **more}

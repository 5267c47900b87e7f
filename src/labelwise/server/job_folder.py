"""The files of one job, written so that a server that was killed can go on with it.

    job.json           which model, its labels, when; whether more pictures come
    pictures.jsonl     one line per picture that was received: its name
    pictures/NUMBER    the bytes of those that are not answered yet
    results.jsonl      one line per picture that was answered, in the same order

A picture is received once its line is there, and answered once its result is. A last line without
an end was being written when the server ended: it is cut off, and what it was about is done again.
"""

import json
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.errors import CheckpointError
from labelwise.models.answer_rows import Answer, json_record
from labelwise.server.uploads import Upload
from labelwise.system.files import append_whole, read_regular, replacing, write_error
from labelwise.system.text import first_line, shortened

LONGEST_FACTS = 64 << 20
CHUNK = 1 << 20


class JobFacts(BaseModel):
    """What a job is."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    model: str
    labels: tuple[str, ...]
    made: str
    state: Literal["open", "closed", "cancelled"] = "open"


@dataclass(eq=False)
class JobFolder:
    """A job: how many pictures were received and answered, and the bytes on disk.

    ``cautioned`` says whether something must stand beside the probabilities of some answer.
    """

    path: Path
    facts: JobFacts
    received: int = 0
    answered: int = 0
    failed: int = 0
    size: int = 0
    cautioned: bool = False
    _place: int = 0  # of the first picture that is not answered, in the list of those received

    @classmethod
    def create(cls, path: Path, facts: JobFacts) -> "JobFolder":
        """Make the folder of a new job."""
        try:
            (path / "pictures").mkdir(parents=True)
        except OSError as error:
            raise write_error(path, error) from None
        made = cls(path, facts)
        made._save(facts)
        for name in ("pictures.jsonl", "results.jsonl"):
            made._append(name, "")
        return made

    @classmethod
    def load(cls, path: Path) -> "JobFolder":
        """Return a job as it was left, or raise CheckpointError."""
        try:
            content, _ = read_regular(path / "job.json", LONGEST_FACTS)
            facts = JobFacts.model_validate_json(content)
            found = cls(path, facts)
            found.received = found._cut("pictures.jsonl")
            found.answered = min(found._cut("results.jsonl"), found.received)
            found._cut("results.jsonl", found.answered)
            for line in found._lines("pictures.jsonl", found.received):
                _name(line)
            found._place = sum(map(len, found._lines("pictures.jsonl", found.answered)))
            for answer in found.results():
                found._count(answer)
            (path / "pictures").mkdir(exist_ok=True)
            found._remove_others()
            found.size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        except OSError as error:
            raise CheckpointError(f"the job {path} cannot be read: {error.strerror}") from None
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"the job {path} is damaged ({shortened(first_line(error))}); remove its folder"
            ) from None
        return found

    @property
    def waiting(self) -> int:
        """How many pictures are not answered yet."""
        return 0 if self.facts.state == "cancelled" else self.received - self.answered

    def set_state(self, state: Literal["closed", "cancelled"]) -> None:
        """Take no more pictures, or give up those that wait."""
        self._save(self.facts.model_copy(update={"state": state}))
        if state == "cancelled":
            for number in range(self.answered, self.received):
                self._remove(number)

    def add(self, uploads: Sequence[Upload]) -> None:
        """Keep pictures of encoded bytes until they are answered."""
        try:
            for number, upload in enumerate(uploads, start=self.received):
                if not isinstance(upload.content, bytes):
                    raise TypeError(f"a job takes encoded pictures, got {type(upload.content)}")
                self._picture(number).write_bytes(upload.content)
                self.size += upload.size
            lines = "".join(json.dumps({"name": upload.name}) + "\n" for upload in uploads)
            self._append("pictures.jsonl", lines)
        except OSError as error:
            raise write_error(self.path, error) from None
        self.received += len(uploads)

    def next_pictures(self, most: int) -> list[Upload]:
        """Return the pictures to be answered next; one whose file is gone has no bytes."""
        end = min(self.received, self.answered + most)
        names = self._lines("pictures.jsonl", end - self.answered, self._place)
        uploads = []
        for number, line in zip(range(self.answered, end), names, strict=True):
            try:
                content = self._picture(number).read_bytes()
            except FileNotFoundError:
                content = b""
            uploads.append(Upload(_name(line), content))
        return uploads

    def answer(self, answers: Sequence[Answer], version: str) -> None:
        """Keep the answers of the next pictures, and let go of the pictures."""
        records = [json_record(one, self.facts.labels) | {"model": version} for one in answers]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self._append("results.jsonl", lines)
        for number in range(self.answered, self.answered + len(answers)):
            self._remove(number)
        self._place += sum(map(len, self._lines("pictures.jsonl", len(answers), self._place)))
        self.answered += len(answers)
        for one in answers:
            self._count(one)

    def _count(self, answer: Answer) -> None:
        self.failed += answer.error is not None
        self.cautioned |= answer.caution is not None

    def results(self) -> Iterator[Answer]:
        """Yield the answers so far."""
        for row, line in enumerate(self._lines("results.jsonl", self.answered)):
            yield _answer(row, json.loads(line), self.facts.labels)

    def result_chunks(self) -> Generator[bytes, None, None]:
        """Yield the file of results so far, in pieces of whole lines."""
        part: list[bytes] = []
        size = 0
        for line in self._lines("results.jsonl", self.answered):
            part.append(line)
            size += len(line)
            if size > CHUNK:
                yield b"".join(part)
                part, size = [], 0
        yield b"".join(part)

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _save(self, facts: JobFacts) -> None:
        with replacing(self.path / "job.json") as temporary:
            temporary.write_text(facts.model_dump_json(), encoding="utf-8")
        self.facts = facts

    def _append(self, name: str, text: str) -> None:
        content = text.encode()
        try:
            with (self.path / name).open("ab", buffering=0) as stream:
                append_whole(stream, content)
        except OSError as error:
            raise write_error(self.path / name, error) from None
        self.size += len(content)

    def _lines(self, name: str, count: int, place: int = 0) -> Iterator[bytes]:
        """Yield so many lines of a file from a place on."""
        with (self.path / name).open("rb") as stream:
            stream.seek(place)
            yield from islice(stream, count)

    def _cut(self, name: str, most: int | None = None) -> int:
        """Cut a file after its last whole line, or after ``most``; return how many there are."""
        count = place = 0
        with (self.path / name).open("r+b") as stream:
            for line in stream:
                if not line.endswith(b"\n") or count == most:
                    break
                count, place = count + 1, place + len(line)
            stream.truncate(place)
        return count

    def _remove_others(self) -> None:
        """Remove what was received in part, and what was answered."""
        wanted = {self._picture(number).name for number in range(self.answered, self.received)}
        if self.facts.state == "cancelled":
            wanted = set()
        for file in (self.path / "pictures").iterdir():
            if file.name not in wanted:
                file.unlink()

    def _remove(self, number: int) -> None:
        file = self._picture(number)
        try:
            self.size -= file.stat().st_size
            os.unlink(file)
        except FileNotFoundError:
            pass

    def _picture(self, number: int) -> Path:
        return self.path / "pictures" / f"{number:09d}"


def _name(line: bytes) -> str:
    """Return the name of a picture that was received."""
    return str(json.loads(line)["name"])


def _answer(row: int, record: dict[str, Any], labels: Sequence[str]) -> Answer:
    """Return the answer that a line of results holds."""
    name = str(record["path"])
    if "error" in record:
        return Answer(row, name, error=str(record["error"]))
    probs = tuple(record["probs"][label] for label in labels)
    if not all(type(one) in (int, float) and 0 <= one <= 1 for one in probs):
        raise ValueError(f"result {row} has a probability that is not a number from 0 to 1")
    caution = None if record.get("caution") is None else str(record["caution"])
    return Answer(row, name, tuple(map(str, record["labels"])), probs, caution=caution)

"""Answers as CSV, JSON Lines or Parquet, written as they come."""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labelwise.errors import SettingsError
from labelwise.models.answer_rows import CAUTION, Answer, csv_header, csv_row, json_record
from labelwise.system.files import replacing


class Writer(ABC):
    """Writes answers one by one; ``cautioned``: something must stand beside their probabilities."""

    def __init__(self, names: Sequence[str], cautioned: bool) -> None:
        self.names, self.cautioned = names, cautioned

    @abstractmethod
    def write(self, answer: Answer) -> None:
        """Write one answer."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""


class CSVWriter(Writer):
    """``path, labels, error``, perhaps ``caution``, then a column of probabilities per label."""

    def __init__(self, path: Path, names: Sequence[str], cautioned: bool) -> None:
        super().__init__(names, cautioned)
        self._stream: IO[str] = path.open("w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._stream)
        self._csv.writerow(csv_header(names, cautioned=cautioned))

    def write(self, answer: Answer) -> None:
        self._csv.writerow(csv_row(answer, self.names, cautioned=self.cautioned))

    def close(self) -> None:
        self._stream.close()


class JSONLinesWriter(Writer):
    """One object per line: ``path``, ``labels``, ``probs`` by name, or ``path``, ``error``.

    Where there is a ``caution``, it stands beside ``probs``.
    """

    def __init__(self, path: Path, names: Sequence[str], cautioned: bool) -> None:
        super().__init__(names, cautioned)
        self._stream: IO[str] = path.open("w", encoding="utf-8")

    def write(self, answer: Answer) -> None:
        record = json_record(answer, self.names)
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._stream.close()


class ParquetWriter(Writer):
    """``path``, ``labels`` (list), ``probs`` (list in the order of the metadata), ``error``.

    Where there is a ``caution``, it is the last column.
    """

    ROWS = 1024

    def __init__(self, path: Path, names: Sequence[str], cautioned: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(names, cautioned)
        probs = pa.list_(pa.float32())  # of a fixed size, a row without any would be unreadable
        kinds = [pa.string(), pa.list_(pa.string()), probs, pa.string()]
        fields = list(zip(("path", "labels", "probs", "error"), kinds, strict=True))
        if cautioned:
            fields.append((CAUTION, pa.string()))
        facts = {"labelwise": json.dumps({"names": list(names)})}
        self._schema = pa.schema(fields, metadata=facts)
        self._writer = pq.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, answer: Answer) -> None:
        probs = list(answer.probs) or None
        row = {"path": answer.id, "labels": list(answer.labels), "probs": probs}
        self._rows.append(row | {"error": answer.error, CAUTION: answer.caution})
        if len(self._rows) == self.ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []


WRITERS: dict[str, Callable[[Path, Sequence[str], bool], Writer]] = {
    ".csv": CSVWriter,
    ".jsonl": JSONLinesWriter,
    ".parquet": ParquetWriter,
}


def check_suffix(path: Path) -> None:
    """Raise unless answers can be written to such a file."""
    if path.suffix not in WRITERS:
        raise SettingsError(f"the output must end in {', '.join(WRITERS)}, got {path.name!r}")


@contextmanager
def writing(
    path: Path | None, names: Sequence[str], cautioned: bool
) -> Iterator[Callable[[Answer], None]]:
    """Yield a function that writes an answer; the file is whole in the end, or not there."""
    if path is None:
        yield lambda answer: None
        return
    with replacing(path) as temporary:
        writer = WRITERS[path.suffix](temporary, names, cautioned)
        try:
            yield writer.write
        finally:
            writer.close()

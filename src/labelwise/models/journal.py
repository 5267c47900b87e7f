"""Journal: a file of records, one JSON object per line, that is written while something goes on."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.errors import CheckpointError
from labelwise.system.files import append_whole, write_error


class Journal:
    """A file of records that can be cut back to where a checkpoint was taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records; the last line may still be being written, or have been cut off.

        A damaged line in between is left out with a warning: history is worth showing, and not
        worth refusing a run for.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from None
        records, (*lines, last) = [], content.split(b"\n")
        for number, line in enumerate([*lines, last], start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                records.append(record)
            elif line.strip() and number <= len(lines):
                warnings.warn(f"{self.path}: line {number} is damaged, left out", stacklevel=2)
        return records

    def progress(self, epochs: int) -> str:
        """Return the epoch of a run of ``epochs`` and its time left; its step in the first one."""
        records = self.read()
        if not records:
            return ""
        last = next((record for record in reversed(records) if "epoch" in record), None)
        if last is None:
            return f"step {records[-1]['step']}"
        done = last["epoch"]
        left = last["seconds"] / done * (epochs - done) / 60
        return f"epoch {done}/{epochs}, {left:,.1f} min left"

    def cut(self, size: int) -> None:
        """Forget what was written after the first ``size`` bytes, and a line that has no end."""
        try:
            with self.path.open("a+b") as stream:
                stream.seek(0)
                kept = stream.read(size)
                self.size = kept.rfind(b"\n") + 1
                stream.truncate(self.size)
        except OSError as error:
            raise write_error(self.path, error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        line = (json.dumps(record) + "\n").encode()
        try:
            with self.path.open("ab", buffering=0) as stream:
                append_whole(stream, line)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.size += len(line)

"""metrics.jsonl: one JSON object a line, appended as training goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.files import write_error

__all__ = ["Journal"]


class Journal:
    """A file of records that can be cut back to where a checkpoint was taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def cut(self, size: int) -> None:
        """Forget what was written after the first ``size`` bytes."""
        try:
            with self.path.open("ab") as stream:
                stream.truncate(size)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.size = size

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        line = json.dumps(record) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.size += len(line)

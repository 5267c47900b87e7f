"""The access log: one line of JSON per request, in a file that is turned over as it grows.

    {"time": "2026-01-31T12:00:00.123Z", "client": "127.0.0.1", "method": "GET",
     "path": "/api/v1/model", "route": "/api/v1/model", "status": 200, "ms": 1.3, "bytes": 227}

Queries, headers and bodies are not written: they may hold what is private. A thread of its own
writes, so that a slow disk holds up no request; what it cannot keep up with is left out, counted.
"""

import json
import queue
import threading
from datetime import UTC, datetime
from logging import INFO, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from labelwise.errors import SettingsError

FILE_BYTES = 16 << 20
FILES_KEPT = 5
LINES_WAITING = 10_000
LONGEST_PATH = 300


class AccessLog:
    """Writes what was asked and answered; ``FILE.1`` to ``FILE.5`` hold what came before."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        try:
            self._file = RotatingFileHandler(
                path, maxBytes=file_bytes, backupCount=FILES_KEPT, encoding="utf-8"
            )
        except OSError as error:
            raise SettingsError(
                f"the access log {path} cannot be written: {error.strerror}; choose another file"
            ) from None
        self.left_out = 0
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_WAITING)
        self._thread = threading.Thread(target=self._write, name="access-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def note(self, **facts: Any) -> None:
        """Write one line, later."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts["path"] = facts["path"][:LONGEST_PATH]
        if self.left_out:
            facts["left_out_before"] = self.left_out
        try:
            self._lines.put_nowait(json.dumps({"time": now, **facts}))
        except queue.Full:
            self.left_out += 1
        else:
            self.left_out = 0

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        self._lines.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._file.handle(LogRecord("access", INFO, "", 0, line, None, None))

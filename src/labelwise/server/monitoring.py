"""What happens while models are served, counted for ``/metrics``."""

import json
from datetime import UTC, datetime
from logging import INFO, LogRecord
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from labelwise.errors import SettingsError

# The access log: one line of JSON per request, in a file that is turned over as it grows.
#
#     {"time": "2026-01-31T12:00:00.123Z", "client": "127.0.0.1", "method": "GET",
#      "path": "/api/v1/model", "route": "/api/v1/model", "status": 200, "ms": 1.3, "bytes": 227}
#
# Queries, headers and bodies are not written: they may hold what is private. A thread writes, so
# that a slow disk holds up no request; lines that it cannot keep up with are left out.

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)  # of histograms
FILE_BYTES = 16 << 20
FILES_KEPT = 5
LINES_WAITING = 10_000
LONGEST_PATH = 300


class AccessLog:
    """Writes what was asked and answered; ``FILE.1`` to ``FILE.5`` hold what came before."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        try:
            self._file = RotatingFileHandler(path, "a", file_bytes, FILES_KEPT, "utf-8")
        except OSError as error:
            words = f"the access log {path} cannot be written: {error.strerror}"
            raise SettingsError(f"{words}; choose another file") from None
        self._lines: SimpleQueue[LogRecord] = SimpleQueue()
        self._writer = QueueListener(self._lines, self._file)

    def start(self) -> None:
        self._writer.start()

    def note(self, **facts: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": now, **facts, "path": facts["path"][:LONGEST_PATH]})
        if self._lines.qsize() < LINES_WAITING:
            self._lines.put(LogRecord("access", INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._writer.stop()
        self._file.close()


class Monitor:
    """Counts what happens to a server and its models, for ``/metrics``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "labelwise", "registry": self.registry}
        times = own | {"buckets": SECONDS}
        asked = own | {"namespace": "", "labelnames": ("method", "route", "status")}
        self.requests = Histogram(
            "http_request_duration_seconds", "Time of requests.", **asked, buckets=(*SECONDS, 10)
        )
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self.batches = Histogram("batch_size", "Pictures per forward pass.", buckets=sizes, **own)
        self.opened = Histogram("open_seconds", "How long pictures took to be opened.", **times)
        self.forward = Histogram("forward_seconds", "How long forward passes took.", **times)
        self.queue = Gauge("queue_length", "Pictures on their way.", **own)
        self.failures = Counter("failures", "Pictures that could not be used.", **own)
        self.busy = Counter("busy", "Requests turned away because the queue was full.", **own)
        self.corrections = Counter("corrections", "What people said.", ("state", "source"), **own)
        own["labelnames"] = ("label",)
        self.evidence = Gauge("calibration_evalue", "Evidence against calibration.", **own)
        self.alarm = Gauge("calibration_alarm", "1 once the alarm was raised.", **own)

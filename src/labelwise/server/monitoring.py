"""What happens while models are served, counted for ``/metrics``."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from logging import INFO, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from labelwise.errors import SettingsError
from labelwise.metrics.shift import Alarm

# The access log: one line of JSON per request, in a file that is turned over as it grows.
#
#     {"time": "2026-01-31T12:00:00.123Z", "client": "127.0.0.1", "method": "GET",
#      "path": "/api/v1/model", "route": "/api/v1/model", "status": 200, "ms": 1.3, "bytes": 227}
#
# Queries, headers and bodies are not written: they may hold what is private. A thread of its own
# writes, so that a slow disk holds up no request; lines it cannot keep up with are counted.


TICK = 0.02  # seconds between two looks
SCHEDULED = Path("/proc/thread-self/schedstat")  # on a core, waiting for one, how often
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
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


class LoopPauses:
    """Looks at the event loop it runs on: how late it is, and whose fault that is.

    pause       from when a look at the loop was due to when it came
    busy        processor time of the loop's own thread since the look before
    no core     time in which that thread was ready to run, and every core was taken
    own         a pause without that: the loop was busy, or another thread had the lock
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pauses, self.own = (
            Histogram(f"labelwise_loop_{name}_seconds", words, buckets=BUCKETS, registry=registry)
            for name, words in (
                ("pause", "How long the event loop was late."),
                ("own_pause", "The same without the time in which every core was taken."),
            )
        )
        self._longest = {
            name: Gauge(f"labelwise_loop_{name}_longest_seconds", words, registry=registry)
            for name, words in (
                ("pause", "The longest pause."),
                ("own_pause", "The longest without the time in which every core was taken."),
                ("busy", "The most processor time of the event loop's own between two looks."),
            )
        }
        self._most = dict.fromkeys(self._longest, 0.0)

    async def watch(self) -> None:
        """Look for as long as the event loop runs."""
        while True:
            began, used, waited = time.perf_counter(), time.thread_time(), waited_for_core()
            await asyncio.sleep(TICK)
            pause = max(0.0, time.perf_counter() - began - TICK)
            self.note(pause, time.thread_time() - used, waited_for_core() - waited)

    def note(self, pause: float, busy: float, no_core: float) -> None:
        """Count one look."""
        own = max(0.0, pause - no_core)
        self.pauses.observe(pause)
        self.own.observe(own)
        for name, seconds in (("pause", pause), ("own_pause", own), ("busy", busy)):
            if seconds > self._most[name]:
                self._most[name] = seconds
                self._longest[name].set(seconds)


def waited_for_core() -> float:
    """Return how many seconds this thread was ready to run without a core, 0 if nobody tells."""
    try:
        return int(SCHEDULED.read_bytes().split()[1]) / 1e9
    except OSError:  # not Linux, or a kernel that does not count
        return 0.0


class Monitor:
    """Counts what happens to a server and its models, for ``/metrics``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Histogram(
            "http_request_duration_seconds",
            "How long requests took.",
            ["method", "route", "status"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
            registry=own,
        )
        self.batches = Histogram(
            "labelwise_batch_size",
            "Pictures per forward pass.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=own,
        )
        self.opened = Histogram(
            "labelwise_open_seconds",
            "How long pictures took to be opened.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=own,
        )
        self.forward = Histogram(
            "labelwise_forward_seconds",
            "How long forward passes took.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=own,
        )
        self.loop = LoopPauses(own)
        self.queue = Gauge("labelwise_queue_length", "Pictures on their way.", registry=own)
        self.failures = Counter(
            "labelwise_failures", "Pictures that could not be used.", registry=own
        )
        self.busy = Counter(
            "labelwise_busy", "Requests refused because the queue was full.", registry=own
        )
        self.corrections = Counter(
            "labelwise_corrections", "What people said.", ["state", "source"], registry=own
        )
        self.evidence = Gauge(
            "labelwise_calibration_evalue", "Evidence against calibration.", ["label"], registry=own
        )
        self.alarm = Gauge(
            "labelwise_calibration_alarm", "1 once the alarm was raised.", ["label"], registry=own
        )

    def note_alarms(self, alarms: Iterable[Alarm]) -> None:
        """Show alarms at ``/metrics``."""
        for alarm in alarms:
            self.evidence.labels(alarm.label).set(alarm.evidence)
            self.alarm.labels(alarm.label).set(alarm.raised)

"""A server whose late event loop is caught in the act: which line each thread was at meanwhile.

    python benchmarks/serve_watched.py NOTES serve RUN ...     as `labelwise serve RUN ...` runs

A thread looks at the others while the loop is late. It needs the interpreter's lock for that, as
the loop does; once a long call of C code gives it away, either may come first, so about half of
such calls are seen, at their line. NOTES is JSON Lines, one line for each pause.
"""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from prometheus_client import Gauge, Histogram

from labelwise.cli import main
from labelwise.server.monitoring import TICK, Monitor

LATE = 0.03  # seconds of pause after which threads are looked at
WAITING = ("concurrent/futures/thread.py", "selectors.py", "threading.py", "queue.py")


SCHEDULED = Path("/proc/thread-self/schedstat")  # on a core, waiting for one, how often


def waited_for_core() -> float:
    """Return how many seconds this thread was ready to run without a core, 0 if nobody tells."""
    try:
        return int(SCHEDULED.read_bytes().split()[1]) / 1e9
    except OSError:  # not Linux, or a kernel that does not count
        return 0.0


class LoopPauses:
    """How late an event loop was, and whose fault that is, at /metrics.

    pause       from when a look at the loop was due to when it came
    busy        processor time of the loop's own thread since the look before
    own         a pause without the time in which every core was taken
    """

    def __init__(self, monitor: Monitor) -> None:
        self.pauses, registry = monitor.pauses, monitor.registry
        self.own = Histogram(
            "labelwise_loop_own_pause_seconds",
            "Pauses without the time in which every core was taken.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=registry,
        )
        self._longest = {
            name: Gauge(f"labelwise_loop_{name}_longest_seconds", "The longest.", registry=registry)
            for name in ("pause", "own_pause", "busy")
        }
        self._most = dict.fromkeys(self._longest, 0.0)

    def note(self, pause: float, busy: float, no_core: float) -> None:
        """Count one look."""
        own = max(0.0, pause - no_core)
        self.pauses.observe(pause)
        self.own.observe(own)
        for name, seconds in (("pause", pause), ("own_pause", own), ("busy", busy)):
            self._most[name] = max(self._most[name], seconds)
            self._longest[name].set(self._most[name])


class Watch:
    """What threads do while the event loop is late."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.due = float("inf")
        self.lines: set[str] = set()

    def look(self) -> None:
        own = threading.get_ident()
        while True:
            time.sleep(0.005)
            if time.perf_counter() > self.due + LATE:
                frames = [one for key, one in sys._current_frames().items() if key != own]
                self.lines.update(filter(None, map(_line, frames)))

    async def watch(self, pauses: LoopPauses) -> None:
        """Do what Monitor.watch_loop does, and note pauses with their lines."""
        threading.Thread(target=self.look, daemon=True).start()
        with self.notes.open("w", buffering=1) as notes:
            while True:
                began, used, waited = time.perf_counter(), time.thread_time(), waited_for_core()
                self.lines, self.due = set(), began + TICK
                await asyncio.sleep(TICK)
                pause = max(0.0, time.perf_counter() - self.due)
                busy, no_core = time.thread_time() - used, waited_for_core() - waited
                pauses.note(pause, busy, no_core)
                if pause > LATE:
                    facts = {"pause": pause, "busy": busy, "no_core": no_core}
                    notes.write(json.dumps(facts | {"lines": sorted(self.lines)}) + "\n")


def _line(frame) -> str | None:
    """Return the innermost line of a thread, and that of ours which called it."""
    if frame.f_code.co_filename.endswith(WAITING):
        return None
    place, caller = _place(frame), frame
    while caller is not None and "/labelwise/" not in caller.f_code.co_filename:
        caller = caller.f_back
    return place if caller is None or caller is frame else f"{place} for {_place(caller)}"


def _place(frame) -> str:
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


def own_pauses(notes: Path) -> list[tuple[str, int, float]]:
    """Return what threads were at in own pauses: the line, in how many, the longest in ms."""
    counts: Counter[str] = Counter()
    longest: dict[str, float] = {}
    for text in notes.read_text().splitlines():
        facts = json.loads(text)
        own = facts["pause"] - facts["no_core"]
        if own > LATE:
            for line in facts["lines"] or ["(not seen)"]:
                counts[line] += 1
                longest[line] = max(longest.get(line, 0.0), 1000 * own)
    return [(line, count, longest[line]) for line, count in counts.most_common()]


if __name__ == "__main__":
    WATCH = Watch(Path(sys.argv.pop(1)))
    Monitor.watch_loop = lambda monitor: WATCH.watch(LoopPauses(monitor))  # type: ignore
    main()

"""How late the event loop is, and whose fault that is.

    pause     from when a look at the loop was due to when it came
    busy      processor time of the loop's own thread since the look before
    no core   time in which that thread was ready to run, and every core was taken (Linux tells)
    own       a pause without that: the loop was busy, or another thread had the interpreter's lock

A pause for want of a core says that the machine has too much to do; an own one that the server does
something for too long at a time.
"""

import asyncio
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram

__all__ = ["TICK", "LoopPauses", "waited_for_core"]

TICK = 0.02  # seconds between two looks
SCHEDULED = Path("/proc/thread-self/schedstat")  # on a core, waiting for one, how often
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class LoopPauses:
    """Looks at the event loop it runs on, for ``/metrics``."""

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

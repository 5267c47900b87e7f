"""The event loop of the server, whose turns are short however many connections have something.

Python's event loop handles in one turn whatever is ready, and looks at timers, answers of threads
and new connections between two turns. Some 160 ready connections took 50 ms of processor time.
Each is read and written with the interpreter's lock let go; a thread that computes may take it
then, and is asked to give it back only after the switch interval, which is 5 ms in Python. Here

    a turn      handles 4 connections at most; the others come in the next turns, in order
    a round     ends when everyone who was ready has had a turn: only then is the system asked again
    accepting   16 new connections in a turn at most; the others wait with the system
    the lock    is asked for after 0.5 ms

How late the loop is, and whose fault that is:

    pause       from when a look at the loop was due to when it came
    busy        processor time of the loop's own thread since the look before
    no core     time in which that thread was ready to run, and every core was taken (Linux tells)
    own         a pause without that: the loop was busy, or another thread had the lock

A pause for want of a core says that the machine has too much to do; an own one that the server does
something for too long at a time.
"""

import asyncio
import selectors
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram

AT_ONCE = 4
ACCEPTED_AT_ONCE = 16  # once in a round, so that few of them would keep newcomers waiting
SWITCH_SECONDS = 0.0005
TICK = 0.02  # seconds between two looks
SCHEDULED = Path("/proc/thread-self/schedstat")  # on a core, waiting for one, how often
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

_Ready = tuple[selectors.SelectorKey, int]


class BoundedSelector(selectors.DefaultSelector):
    """Tells which files are ready, so many at a time and each once in a round."""

    def __init__(self) -> None:
        super().__init__()
        self._left: deque[_Ready] = deque()

    def select(self, timeout: float | None = None) -> list[_Ready]:
        """Return the next that are ready; wait for some only if nobody is left."""
        if not self._left:
            self._left.extend(super().select(timeout))
        found = []
        for _ in range(min(AT_ONCE, len(self._left))):
            key, events = self._left.popleft()
            now = self.get_map().get(key.fd)  # a turn of others may have closed or changed it
            if now is not None and events & now.events:
                found.append((now, events & now.events))
        return found


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop with short turns; on Windows, whose loop waits in another way, the usual."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(BoundedSelector())


@contextmanager
def threads_take_short_turns() -> Iterator[None]:
    """Let a thread that waits for the interpreter's lock ask for it sooner, within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


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

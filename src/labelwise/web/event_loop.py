"""The event loop of the server, whose turns are short however many connections have something.

Python's event loop handles in one turn whatever is ready, and looks at timers, answers of threads
and new connections between two turns. Some 160 ready connections took 50 ms of processor time.
Each is read and written with the interpreter's lock let go; a thread that computes may take it
then, and is asked to give it back only after the switch interval, which is 5 ms in Python. Here

    a turn      handles 4 connections at most; the others come in the next turns, in order
    a round     ends when everyone who was ready has had a turn: only then is the system asked again
    accepting   16 new connections in a turn at most; the others wait with the system
    the lock    is asked for after 0.5 ms
"""

import asyncio
import selectors
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "ACCEPTED_AT_ONCE",
    "AT_ONCE",
    "BoundedSelector",
    "new_event_loop",
    "threads_take_short_turns",
]

AT_ONCE = 4
ACCEPTED_AT_ONCE = 16  # once in a round, so that few of them would keep newcomers waiting
SWITCH_SECONDS = 0.0005

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
        some = [self._left.popleft() for _ in range(min(AT_ONCE, len(self._left)))]
        return [(key, events) for one in some for key, events in self._still_asked(*one)]

    def _still_asked(self, key: selectors.SelectorKey, events: int) -> list[_Ready]:
        """Return what is still waited for: a turn of others may have closed or changed it."""
        now = self.get_map().get(key.fd)
        return [] if now is None or not events & now.events else [(now, events & now.events)]


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

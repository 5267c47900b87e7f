"""What reading one small file may take: seconds of processor, and bytes."""

import resource
import signal
from contextlib import contextmanager
from pathlib import Path

SECONDS, BYTES = 10, 2 << 30


class TooSlow(BaseException):
    """Raised by the alarm, past every ``except Exception``."""


@contextmanager
def limited():
    """Fail what takes more than a small file may; an allocation beyond it is a MemoryError."""

    def stop(number, frame):
        raise TooSlow(f"reading a small file takes more than {SECONDS} seconds")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)

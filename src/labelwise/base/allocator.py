"""Memory that glibc keeps for the next layer: it maps each large tensor and clears its pages.

This changes the process, so only our own commands call it, never an import.
``LABELWISE_MALLOC=system`` leaves the allocator as it is.
"""

import ctypes
import os
import sys

VARIABLE = "LABELWISE_MALLOC"
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
# No mappings of their own, nothing given back from the top, and more asked for in large steps.
KEPT = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 256 << 20}


def keep_freed_memory() -> bool:
    """Keep freed memory in this process; return whether that was done: only with glibc."""
    if os.environ.get(VARIABLE) == "system" or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(option, value) == 1 for option, value in KEPT.items())


def memory_bytes() -> int:
    """Return the size of this machine's memory, 0 where it is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0

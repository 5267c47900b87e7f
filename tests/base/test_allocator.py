"""The allocator's setting, seen from outside: the oracle is what glibc says it has mapped."""

import os
import subprocess
import sys

import pytest

from labelwise.base.allocator import keep_freed_memory

PASSES = """
import ctypes, threading
import numpy as np
from labelwise.base.allocator import keep_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena ordblks smblks hblks mapped usmblks fsmblks uordblks fordblks keepcost").split()]

kept = keep_freed_memory()
array = np.ones(1 << 23)  # 64 MiB, too much for a chunk that glibc would keep by itself
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
mapped = library.mallinfo2().mapped
thread = threading.Thread(target=lambda: np.ones(1 << 25).sum())  # more than a thread's heap
thread.start()
thread.join()
print(kept, mapped)
"""


def run(**environment):
    told = {"capture_output": True, "text": True, "check": True}
    given = os.environ | environment
    done = subprocess.run([sys.executable, "-c", PASSES], env=given, **told)
    kept, mapped = done.stdout.split()
    return kept == "True", int(mapped)


@pytest.mark.skipif(not hasattr(os, "confstr"), reason="not a POSIX system")
def test_freed_memory_is_kept_and_can_be_left_alone():
    if "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        assert not keep_freed_memory()
        return
    (kept, few), (system, many) = run(), run(LABELWISE_MALLOC="system")
    assert kept
    assert not system
    assert few < 64 << 20 <= many

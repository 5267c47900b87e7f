"""Tests wait for what they expect to happen, and for ten minutes at most.

A machine that is busy with other things takes long for everything; only a test that would
otherwise never end is stopped. ``LABELWISE_PATIENCE`` sets other seconds.
"""

import os
import time
from collections.abc import Callable

PATIENCE = float(os.environ.get("LABELWISE_PATIENCE", "600"))  # seconds


def wait_until(holds: Callable[[], bool]) -> None:
    """Return as soon as ``holds()``."""
    latest = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < latest, f"it did not come in {PATIENCE:.0f} seconds"
        time.sleep(0.02)

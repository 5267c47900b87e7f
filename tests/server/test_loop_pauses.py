"""How late the event loop is, held to how long it was kept, and to what the kernel counts."""

import asyncio
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from labelwise.server.monitoring import LoopPauses, waited_for_core

BLOCKED = 0.25


def longest(registry, kind):
    return registry.get_sample_value(f"labelwise_loop_{kind}_longest_seconds")


def watched(block):
    """Return what is told of a loop that something blocks once."""
    registry = CollectorRegistry()

    async def run():
        watching = asyncio.create_task(LoopPauses(registry).watch())
        for _ in range(3):
            await asyncio.sleep(0)  # it has begun to look
        block()
        while not longest(registry, "pause"):
            await asyncio.sleep(0.01)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    asyncio.run(run())
    return registry


def test_a_call_that_sleeps_is_a_pause_of_its_own_and_not_busy():
    registry = watched(lambda: time.sleep(BLOCKED))
    assert longest(registry, "pause") > BLOCKED / 2
    assert longest(registry, "own_pause") > BLOCKED / 2
    assert longest(registry, "busy") < BLOCKED / 2


def test_a_call_that_computes_is_busy():
    def compute():
        end = time.thread_time() + BLOCKED
        while time.thread_time() < end:
            pass

    registry = watched(compute)
    assert longest(registry, "busy") >= BLOCKED
    assert longest(registry, "own_pause") > BLOCKED / 2


def test_the_time_without_a_core_is_taken_off():
    registry = CollectorRegistry()
    pauses = LoopPauses(registry)
    for pause, busy, no_core in ((0.2, 0.01, 0.19), (0.03, 0.02, 0.0), (0.001, 0.0, 0.01)):
        pauses.note(pause, busy, no_core)
    found = [longest(registry, kind) for kind in ("pause", "own_pause", "busy")]
    assert found == pytest.approx([0.2, 0.03, 0.02])
    above = {
        kind: registry.get_sample_value(f"labelwise_loop_{kind}_seconds_count")
        - registry.get_sample_value(f"labelwise_loop_{kind}_seconds_bucket", {"le": "0.05"})
        for kind in ("pause", "own_pause")
    }
    assert above == {"pause": 1, "own_pause": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts waits for a core")
def test_waits_are_what_the_kernel_counts():
    place = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if not place.exists():
        pytest.skip("this kernel does not count waits for a core")
    before = int(place.read_text().split()[1])
    found = waited_for_core()
    assert before / 1e9 <= found <= int(place.read_text().split()[1]) / 1e9

"""Time and memory of two ways to do one job, measured in one run with the same threads.

Each contender runs in a forked child, so that it finds the inputs in place and leaves nothing
behind. Time is CPU seconds, the least of a few repeats, because machines are shared. Memory is the
peak resident size of the first repeat above what the child began with.
"""

import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """CPU seconds, those of the clock, peak extra MiB, and what the call returned."""

    seconds: float
    clock_seconds: float
    peak_mib: float
    value: Any


@dataclass(frozen=True)
class Contender:
    """A named way to do the job; ``scale`` multiplies its time if it did only a part of it.

    ``goal`` is the ratio to reach against this one, if it differs from the job's.
    """

    name: str
    call: Callable[[], Any]
    repeats: int = 1
    scale: float = 1.0
    goal: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of a result: ours against one peer."""

    job: str
    size: str
    peer: str
    our_seconds: float
    our_peak_mib: float
    peer_seconds: float
    peer_peak_mib: float
    peer_scaled: bool
    ratio: float
    goal: float
    memory_goal_mib: float

    @property
    def reached(self) -> bool:
        return self.ratio >= self.goal and self.our_peak_mib <= self.memory_goal_mib


def _status(field: str) -> int:
    """Return a memory figure of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _child(connection: Connection, call: Callable[[], Any], repeats: int) -> None:
    try:
        warnings.simplefilter("ignore")
        Path("/proc/self/clear_refs").write_text("5")  # start the peak again from here
        before, seconds, clock, peak, value = _status("VmRSS"), [], [], 0, None
        for repeat in range(repeats):
            start, began = time.process_time(), time.perf_counter()
            value = call()
            seconds.append(time.process_time() - start)
            clock.append(time.perf_counter() - began)
            if repeat == 0:
                peak = _status("VmHWM") - before
        connection.send(Measured(min(seconds), min(clock), max(peak, 0) / MIB, value))
    except BaseException:
        connection.send(traceback.format_exc())
        raise


def measure(call: Callable[[], Any], repeats: int = 1) -> Measured:
    """Return the time and memory of a call; its value must be small and picklable."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, call, repeats))
    process.start()
    send.close()
    result = receive.recv()
    process.join()
    if isinstance(result, str):
        raise RuntimeError(result)
    return result


def compare(
    job: str,
    size: str,
    ours: Contender,
    peers: Sequence[Contender],
    *,
    goal: float,
    memory_goal_mib: float = 100.0,
    check: Callable[[Any, str, Any], None] | None = None,
) -> list[Row]:
    """Measure ours and each peer, print a line each, and return the rows.

    ``check(our value, peer name, peer value)`` raises if the answers do not agree.
    """
    mine = measure(ours.call, ours.repeats)
    rows = []
    for peer in peers:
        other = measure(peer.call, peer.repeats)
        if check is not None:
            check(mine.value, peer.name, other.value)
        seconds = other.seconds * peer.scale
        aim = goal if peer.goal is None else peer.goal
        row = Row(
            job,
            size,
            peer.name,
            mine.seconds,
            mine.peak_mib,
            seconds,
            other.peak_mib,
            peer.scale != 1,
            seconds / mine.seconds,
            aim,
            memory_goal_mib,
        )
        rows.append(row)
        mark = "ok" if row.reached else "MISSED"
        star = "*" if row.peer_scaled else ""
        print(
            f"{job:<24} {size:>14}  ours {mine.seconds:8.3f} s {mine.peak_mib:6.0f} MiB   "
            f"{peer.name} {seconds:8.2f}{star} s {other.peak_mib:6.0f} MiB   "
            f"{row.ratio:8.1f}x (goal {aim:g}x) {mark}",
            flush=True,
        )
    return rows


def slug(text: str) -> str:
    """Return letters and digits of a text in lower case, one dash between words."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower().replace(",", "")))


def finish(rows: Sequence[Row], save: str | None) -> None:
    """Save the rows as JSON if asked, and end with status 1 if a goal was missed."""
    if save is not None:
        Path(save).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sys.exit(0 if all(row.reached for row in rows) else 1)


def record(name: str, ours: float, peer: float | None = None, ratios: Sequence[float] = ()) -> None:
    """Keep a figure where ``benchmarks/limits.py`` asks for figures, as a line of JSON.

    ``ratios`` are those of several runs, best ones not singled out.
    """
    place = os.environ.get("LABELWISE_FIGURES")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            found = {"name": name, "ours": ours, "peer": peer}
            if ratios:
                found["range"] = [min(ratios), max(ratios), len(ratios)]
            file.write(json.dumps(found) + "\n")

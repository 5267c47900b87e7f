"""Processor seconds of ways to do one job, in one run with the same threads, and how to keep them.

Each way runs in a forked child, so that it finds the inputs in place and leaves nothing behind.
Time is processor seconds, the least of a few repeats, because machines are shared.
"""

import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Contender:
    """A way to do the job, and its figure; ``scale`` multiplies its time if it did only a part."""

    name: str
    call: Callable[[], Any]
    scale: float = 1.0
    repeats: int = 1


def _child(connection: Connection, contender: Contender) -> None:
    warnings.simplefilter("ignore")
    seconds, value = [], None
    for _ in range(contender.repeats):
        start = time.process_time()
        value = contender.call()
        seconds.append(time.process_time() - start)
    connection.send((min(seconds) * contender.scale, value))


def measure(contender: Contender) -> tuple[float, Any]:
    """Return the seconds of a call and what it returned, which must be small and picklable."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, contender))
    process.start()
    send.close()
    result: tuple[float, Any] = receive.recv()
    process.join()
    return result


def compare(
    job: str,
    ours: Callable[[], Any],
    peers: Sequence[Contender],
    check: Callable[[Any, Any], None] | None = None,
) -> None:
    """Measure ours and each peer; print and record both. ``check`` raises if answers disagree."""
    mine, value = measure(Contender("ours", ours, repeats=3))
    for peer in peers:
        seconds, other = measure(peer)
        if check is not None and peer.scale == 1:
            check(value, other)
        print(f"{peer.name:70s} {seconds:8.2f} s, ours {mine:.3f} s: {seconds / mine:.1f} x")
        record(f"array-{job}-{peer.name}", mine, seconds)


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

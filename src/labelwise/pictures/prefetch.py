"""Starting work before its result is asked for, on as many cores as there are."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from typing import TypeVar

Item = TypeVar("Item")
Started = TypeVar("Started")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def started_ahead(
    items: Iterable[Item], start: Callable[[Item], Started], count: int
) -> Iterator[Started]:
    """Yield what ``start`` returns for each item, in order, with ``count`` more started already."""
    waiting: deque[Started] = deque()
    for item in items:
        waiting.append(start(item))
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def by_threads(
    items: Iterable[Item], work: Callable[[Item], Result], threads: int, ahead: int, name: str
) -> Generator[Result]:
    """Yield what threads make of each item, in order, with ``ahead`` more begun or waiting.

    Its end, by exhaustion, error or ``close``, waits for those that are being made.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        for future in started_ahead(items, lambda item: pool.submit(work, item), ahead):
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_thread(items: Generator[Item], ahead: int, name: str) -> Generator[Item]:
    """Yield items that one thread makes, ``ahead`` of them before they are asked for.

    Its end, by exhaustion, error or ``close``, waits for the item that is being made.
    """
    end = object()

    def make(_: None) -> Item | object:
        return next(items, end)

    with closing(items), closing(by_threads(repeat(None), make, 1, ahead, name)) as made:
        for item in made:
            if item is end:
                return
            yield item  # type: ignore[misc]

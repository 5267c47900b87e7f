"""Starting work before its result is asked for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["started_ahead"]

Item = TypeVar("Item")
Started = TypeVar("Started")


def started_ahead(
    items: Iterable[Item], start: Callable[[Item], Started], count: int
) -> Iterator[Started]:
    """Yield what ``start`` returns for each item, in order, with ``count`` more started already.

    >>> for one in started_ahead("abc", lambda item: print("start", item) or item, 1):
    ...     print("use", one)
    start a
    start b
    use a
    start c
    use b
    use c
    """
    waiting: deque[Started] = deque()
    for item in items:
        waiting.append(start(item))
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting

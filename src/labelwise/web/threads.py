"""Threads that do what would hold up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from labelwise.web.queueing import BusyError

__all__ = ["Threads"]

T = TypeVar("T")

WAITING = 64


class Threads:
    """Threads that do one thing after another; BusyError if much is waiting for them."""

    def __init__(self, count: int, name: str, waiting: int = WAITING) -> None:
        # Without threads of torch's own beside the model's: see batching.model_thread.
        self._pool = ThreadPoolExecutor(count, name, torch.set_num_threads, (1,))
        self._waiting, self._most = 0, waiting

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work returns."""
        if self._waiting >= self._most:
            raise BusyError(1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self, *, wait: bool) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

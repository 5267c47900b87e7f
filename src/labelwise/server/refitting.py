"""Refitting: the guide of questions learns in the background while people answer.

One fit runs at a time, in a thread of its own. Answers that come during a fit are not queued up:
when it ends, one more fit is made of all answers there are then. People are asked by the newest
guide that is ready and never wait for one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from labelwise.photos.words import AnswerLog, QuestionGuide
from labelwise.server.queueing import Threads

log = logging.getLogger("labelwise.server")

Learn = Callable[[Mapping[str, Mapping[str, bool]]], QuestionGuide]


class Guided(Protocol):
    """What asks people by a guide, and logs what they say."""

    guide: QuestionGuide | None
    log: AnswerLog


class Refitting:
    """Fits again when that is wanted. All calls come from the event loop's thread."""

    def __init__(self, asking: Guided, learn: Learn) -> None:
        self._asking, self._learn = asking, learn
        self._thread = Threads(1, "refit")
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Have one more fit made of all answers, after the one that may be running."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._fit())

    async def _fit(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                self._asking.guide = await self._thread.run(
                    lambda: self._learn(self._asking.log.agreed)
                )
            except Exception:  # people go on answering, by the guide there is
                log.exception("the guide of the questions could not be fitted to the answers")

    async def close(self) -> None:
        """Make no more fits; one that is running is waited for and not used."""
        self._wanted = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.close(wait=True)

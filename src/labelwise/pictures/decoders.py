"""Pictures of strangers, opened in processes, so that a harmful one can only hurt one of those.

    server --socket--> worker: "this picture" --> uint8 (size, size, 3), or a sentence

Each has limits on memory and processor time, opens no file, writes none, and is killed when it
does not answer in time. What it warned of is logged.

Whom a failure is blamed on:

    the worker says why                             the picture: ImageError
    it used its processor time                      the picture: ImageError
    it died, or ran out of memory                   nobody yet: once more in a new one
    ... and that died too                           the picture: ImageError
    no answer in time, and little of it was used    the machine: once more, then DecoderError
    it does not start                               the machine: once more, then DecoderError
"""

import logging
import threading
from dataclasses import replace
from queue import LifoQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ImageError, LabelwiseError
from labelwise.pictures.transform import Transform
from labelwise.pictures.worker import NAME, Item, Kind, Limits, Work
from labelwise.pictures.worker_starter import (
    Worker,
    WorkerAnswer,
    WorkerStartError,
    can_start,
    start_worker,
)

TRIES = 2

log = logging.getLogger("labelwise.pictures")


class DecoderError(LabelwiseError):
    """A picture could not be opened, and that says nothing of the picture; try again."""


class Decoders:
    """Opens pictures in processes of their own, or in this one where ``count`` is 0."""

    def __init__(self, transform: Transform, count: int, *, seconds: float, memory: int) -> None:
        self.transform, self.count = transform, count
        self.seconds, self.memory = seconds, memory
        self.limits = Limits(seconds, memory, strangers=True)
        self._idle: LifoQueue[Worker] = LifoQueue()
        self._turn = threading.Lock()  # so that who gives a worker back cannot take it at once
        self._is_closed = False
        self.is_lost = False  # whether the last one that was wanted could not be started
        self.apart = count > 0 and can_start()
        if self.apart:
            for _ in range(count):
                self._idle.put(self._start())

    def _start(self) -> Worker:
        return start_worker(self.limits, bands=self.transform.bands is not None)

    def await_start(self) -> None:
        """Return once the processes are there; they start while other things are done."""
        for worker in list(self._idle.queue):
            worker.await_start()

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        for worker in list(self._idle.queue):  # they stay, for those who wait for one
            worker.close()

    def pixels(self, blob: bytes, name: str, transform: Transform | None = None) -> NDArray[Any]:
        """Return a model's input (size, size, C) of an encoded picture, or raise ImageError.

        The model is the one these decoders were made for, unless a transform is given.
        """
        transform = transform or self.transform
        values = self._made(Work(Kind.RESIZED, transform), blob, name)
        kind = np.uint8 if transform.bands is None else np.float32
        return np.frombuffer(values, kind).reshape(
            transform.size, transform.size, transform.channels
        )

    def thumbnail(self, blob: bytes, name: str, side: int) -> bytes:
        """Return a JPEG of at most ``side`` pixels with nothing but the picture in it."""
        shown = Transform(side)
        if self.transform.bands is not None:
            shown = replace(self.transform, size=side)
        return self._made(Work(Kind.THUMBNAIL, shown), blob, name)

    def _made(self, work: Work, blob: bytes, name: str) -> bytes:
        """Return the bytes of what a picture becomes."""
        if not self.apart:
            return work.load(blob, name=name)[1].tobytes()
        answer = self._ask(work, blob, name)
        if answer.warned:
            log.warning("%.200r: %s", name, answer.warned)
        (entry,) = answer.entries
        if isinstance(entry, str):
            raise ImageError(entry.replace(NAME, name))
        return answer.values[0]

    def _ask(self, work: Work, blob: bytes, name: str) -> WorkerAnswer:
        tries = unstarted = 0  # a starter that dies takes workers with it that no picture has seen
        died = False
        while tries < TRIES and unstarted < TRIES:
            with self._turn:
                worker = self._idle.get()
            used = 0.0
            try:
                worker.await_start()
                tries, died = tries + 1, False
                worker.connection.settimeout(self.seconds)
                worker.send(work, [Item(blob)])
                answer = worker.receive()
            except TimeoutError:
                used = worker.processor_seconds()
            except WorkerStartError:
                unstarted += 1
            except (OSError, EOFError):
                died = True
                worker.pid = None  # another process may have its number by now
            except BaseException:
                self._replace(worker)
                raise
            else:
                self._idle.put(worker)
                self.is_lost = False
                return answer
            self._replace(worker)
            if used > self.seconds / 2:
                raise ImageError(
                    f"{name}: the picture took more than {self.seconds:g} seconds to open, and was "
                    "given up"
                )
        if unstarted == TRIES:
            self._lose()
        if died:
            raise ImageError(
                f"{name}: the picture took more than {self.memory >> 20:,} MiB to open, or ended "
                f"the program that opens pictures {TRIES} times, and was given up"
            )
        raise DecoderError("pictures cannot be opened in time at the moment; try again")

    def _replace(self, worker: Worker) -> None:
        """End a worker and start another, or put it back dead for those who wait for one."""
        worker.kill()
        successor = worker
        try:
            if self._is_closed:
                raise DecoderError("the server is shutting down")
            successor = self._start()
        except WorkerStartError:
            self._lose()
        finally:
            self._idle.put(successor)

    def _lose(self) -> None:
        self.is_lost = True
        raise DecoderError(
            "the processes that open pictures do not start; restart the server"
        ) from None

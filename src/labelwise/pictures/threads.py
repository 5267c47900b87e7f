"""Batches whose pictures threads decode and resize."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures.ahead import started_ahead
from labelwise.pictures.inputs import CHUNK, Failure, Inputs, Resizer, available_cores, sent
from labelwise.pictures.sources import ImageSource
from labelwise.pictures.work import reason_of

__all__ = ["resized_by_threads"]

AHEAD = 2  # batches decoded before they are asked for

_Errors = list[Exception | None]
_Started = tuple[NDArray[np.int64], Tensor, list[Future[_Errors]]]


def resized_by_threads(
    images: ImageSource,
    transform: Resizer,
    batches: Sequence[NDArray[np.int64]],
    workers: int | None,
    device: torch.device,
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device."""
    threads = workers or available_cores()
    longest = max(map(len, batches), default=1)
    chunk = max(1, min(CHUNK, longest // (2 * threads)))
    ahead = max(AHEAD, ceil(2 * threads * chunk / longest))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    start = partial(_start, images, transform, pool, device.type == "cuda", chunk)
    try:
        for batch, buffer, waiting in started_ahead(batches, start, ahead):
            inputs = _finish(images, batch, buffer, waiting)
            yield Inputs(inputs.rows, sent(inputs.values, device), inputs.failures)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(
    images: ImageSource,
    transform: Resizer,
    pool: ThreadPoolExecutor,
    pinned: bool,
    chunk: int,
    batch: NDArray[np.int64],
) -> _Started:
    side = transform.size
    buffer = torch.empty((len(batch), side, side, 3), dtype=torch.uint8, pin_memory=pinned)
    array = buffer.numpy()

    def fill(first: int, rows: list[int]) -> _Errors:
        errors: _Errors = []
        for at, row in enumerate(rows, first):
            try:
                array[at] = transform.resize(images.read(row, transform.at_least()))
                errors.append(None)
            except Exception as error:
                errors.append(error)
        return errors

    places = range(0, len(batch), chunk)
    return batch, buffer, [pool.submit(fill, at, batch[at : at + chunk].tolist()) for at in places]


def _finish(
    images: ImageSource, batch: NDArray[np.int64], buffer: Tensor, waiting: list[Future[_Errors]]
) -> Inputs:
    errors = [error for future in waiting for error in future.result()]
    failures = [
        Failure(row, images.ids[row], reason_of(images.ids[row], error))
        for row, error in zip(batch.tolist(), errors, strict=True)
        if error is not None
    ]
    if failures:
        good = [at for at, error in enumerate(errors) if error is None]
        batch, buffer = batch[good], buffer[good]
    return Inputs(batch, buffer.permute(0, 3, 1, 2), failures)

"""Pictures to what a function makes of their pixels, batch by batch, on threads and without torch.

Each thread decodes a few pictures, scales them, and calls the function: a session of onnxruntime
and Pillow's decoder both work while others hold Python's lock.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from labelwise.base.arrays import Values
from labelwise.pictures.memory import ArrayImages, FeatureRows
from labelwise.pictures.prefetch import available_cores, by_threads
from labelwise.pictures.sources import ImageSource, Rows
from labelwise.pictures.transform import Transform
from labelwise.pictures.worker import reason_of

AT_ONCE = 4  # pictures in a network at once: as fast as more, in less memory
AHEAD = 2  # batches begun or waiting for each thread

Arrays = tuple[Values, ...]


@dataclass(frozen=True)
class Failure:
    """An image without an answer: its row, its id, and a sentence that says why."""

    row: int
    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Mapped:
    """What a function made of one batch, a row for each of ``rows``, and the pictures it lacks."""

    rows: Rows
    values: Arrays
    failures: tuple[Failure, ...] = ()

    @staticmethod
    def join(parts: "Sequence[Mapped]") -> "Mapped":
        """Return several batches as one."""
        answered = [part.values for part in parts if part.values]
        return Mapped(
            np.concatenate([part.rows for part in parts]),
            tuple(np.concatenate(some) for some in zip(*answered, strict=True)),
            tuple(failure for part in parts for failure in part.failures),
        )


def input_array(images: ImageSource, row: int, transform: Transform) -> Values:
    """Return the input (C, size, size) of one picture: uint8 pixels, or float32 bands."""
    if isinstance(images, ArrayImages) and images.resized:
        resized: Values = images.pixels[row]
    elif transform.bands is None:
        resized = np.asarray(transform.resize(images.read(row, transform.at_least())))
    else:
        resized = transform.resize_bands(images.read_bands(row, transform.bands))
    return np.ascontiguousarray(resized.transpose(2, 0, 1))


def mapped(
    function: Callable[[np.ndarray], Arrays],
    images: ImageSource,
    transform: Transform,
    *,
    rows: Sequence[int] | Rows | None = None,
    batch_size: int = AT_ONCE,
    threads: int | None = None,
) -> Generator[Mapped]:
    """Yield what a function makes of the inputs (n, C, size, size) of images, in order.

    Stored features are given to the function as they are. Several threads call it at once.
    """
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, np.int64)
    batches = [chosen[at : at + batch_size] for at in range(0, len(chosen), batch_size)]
    threads = threads or available_cores()

    def made(batch: Rows) -> Mapped:
        if isinstance(images, FeatureRows):
            return Mapped(batch, function(np.asarray(images.features[batch])))
        inputs, readable, failures = [], [], []
        for row in batch.tolist():
            try:
                inputs.append(input_array(images, row, transform))
                readable.append(row)
            except Exception as error:  # decoders raise errors of every kind
                name = images.ids[row]
                failures.append(Failure(row, name, reason_of(name, error)))
        values = function(np.stack(inputs)) if inputs else ()
        return Mapped(np.array(readable, np.int64), values, tuple(failures))

    with closing(by_threads(batches, made, threads, AHEAD * threads, "pictures")) as parts:
        yield from parts

"""Answers for image files: read in threads, predicted in batches."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labelwise.data import FileImages
from labelwise.data.ahead import started_ahead
from labelwise.errors import DataError, ImageError
from labelwise.predictor import Predictor

__all__ = ["Answer", "answer_files", "find_images"]

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"}
    | {".webp"}
)
AHEAD = 2  # batches read before they are asked for


@dataclass(frozen=True)
class Answer:
    """What is said of one file: its label set and probabilities, or why it cannot be read."""

    path: str
    labels: tuple[str, ...] = ()
    probs: tuple[float, ...] = ()
    error: str | None = None


def find_images(places: Sequence[Path]) -> list[str]:
    """Return the files given, and the images in and below the folders given, in order."""
    found: list[str] = []
    for place in places:
        if place.is_dir():
            inside = sorted(p for p in place.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise DataError(f"there are no images in the folder {place}")
            found += map(str, inside)
        else:
            found.append(str(place))
    return found


def answer_files(
    predictor: Predictor, paths: Sequence[str], batch_size: int = 64
) -> Iterator[Answer]:
    """Return one answer a file, in order; a file that cannot be read does not stop the others.

    Some batches are read and scaled by threads, as in evaluation, while one is predicted.
    """
    source, transform = FileImages(".", paths), predictor.transform

    def read(row: int) -> Tensor | ImageError:
        try:
            return transform(source.read(row, transform.at_least))
        except ImageError as error:
            return error

    rows = range(len(paths))
    batches = [rows[first : first + batch_size] for first in rows[::batch_size]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def start(batch: range) -> tuple[range, list[Future[Tensor | ImageError]]]:
            return batch, [pool.submit(read, row) for row in batch]

        try:
            for batch, reading in started_ahead(batches, start, AHEAD):
                inputs = [image.result() for image in reading]
                yield from _answers(predictor, [paths[row] for row in batch], inputs)
        finally:
            pool.shutdown(cancel_futures=True)


def _answers(
    predictor: Predictor, paths: Sequence[str], inputs: Sequence[Tensor | ImageError]
) -> Iterator[Answer]:
    readable = [value for value in inputs if isinstance(value, Tensor)]
    said: Iterator[tuple[list[float], list[bool]]] = iter(())
    if readable:
        answers = predictor.answers(predictor.logits(torch.stack(readable)))
        said = zip(answers.probs.tolist(), answers.sets.tolist(), strict=True)
    for path, value in zip(paths, inputs, strict=True):
        if isinstance(value, ImageError):
            yield Answer(path, error=str(value))
            continue
        probs, chosen = next(said)
        order = sorted(range(len(probs)), key=lambda k: -probs[k])
        labels = tuple(predictor.space.names[k] for k in order if chosen[k])
        yield Answer(path, labels, tuple(probs))

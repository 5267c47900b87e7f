"""Answers for image files: read in threads, predicted in batches."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labelwise.data import FileImages
from labelwise.errors import DataError, ImageError
from labelwise.predictor import Predictor

__all__ = ["Answer", "answer_files", "find_images"]

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"}
    | {".webp"}
)
READ_THREADS = 4


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
    """Return one answer a file, in order; a file that cannot be read does not stop the others."""
    source, size = FileImages(".", paths), predictor.transform.size

    def read(row: int) -> Tensor | ImageError:
        try:
            return predictor.transform(source.read(row, size))
        except ImageError as error:
            return error

    with ThreadPoolExecutor(READ_THREADS) as pool:
        for first in range(0, len(paths), batch_size):
            rows = range(first, min(first + batch_size, len(paths)))
            inputs = list(pool.map(read, rows))
            yield from _answers(predictor, [paths[row] for row in rows], inputs)


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

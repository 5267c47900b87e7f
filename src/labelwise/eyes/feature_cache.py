"""Features of photos by an eye, computed once for each photo and kept on disk.

    CACHE/features-<eye>.bin    records: the digest of a photo (16 bytes), float32 features (D,)

<eye> is a hash of the network and of how photos are scaled for it. The file only grows, a batch at
a time: a computation that was killed goes on after the last complete record, and one more photo, or
another split, computes one photo. It keeps all features of an eye, whichever are asked for.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import append_whole, locked, write_error
from labelwise.base.progress import Silent, Watch
from labelwise.errors import DataError, ImageError
from labelwise.eyes.eye import Eye
from labelwise.pictures.inputs import mapped
from labelwise.pictures.memory import FeatureRows, Features, MappedFeatures
from labelwise.pictures.sources import ImageSource

FORMAT = 1  # counts changes of how features are computed
DIGEST = 16  # bytes
IN_MEMORY = 2 << 30  # bytes; of more features only rows that are asked for are read
PART = 512  # photos between two times that the disk must have them
AT_ONCE = 4096  # photos whose contents are asked for at once


def features(
    eye: Eye,
    photos: ImageSource,
    cache: str | Path | None = None,
    *,
    outputs: Sequence[str] | None = None,
    workers: int = 0,
    watch: Watch | None = None,
) -> Features:
    """Return float32 features (N, D) of photos: the eye's ``outputs``, side by side.

    By default these are all that are features. The first photo that cannot be read raises its
    ImageError. Without a ``cache`` nothing is kept.
    """
    if isinstance(photos, FeatureRows):
        raise DataError("this table already holds features, not images")
    watch, chosen = watch or Silent(), tuple(outputs or eye.features)
    if cache is None:
        rows = np.arange(len(photos))
        values = np.empty(
            (len(photos), sum(map(eye.outputs.__getitem__, eye.features))), np.float32
        )
        for at, made in _seen(eye, photos, rows, workers, watch):
            values[at : at + len(made)] = made
        return _columns(eye, values, chosen)
    path = Path(cache) / f"features-{eye_key(eye)}.bin"
    names = _digests(photos)
    record = _record(eye)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise write_error(path, error) from None
    with locked(path):  # of two that want the same features one waits, and finds them
        _cut(path, record.itemsize)
        known = _places(path, record)
        first = {name: row for row, name in reversed(list(enumerate(names))) if name not in known}
        missing = np.sort(np.array(list(first.values()), np.int64))
        _grow(path, eye, photos, missing, [names[row] for row in missing.tolist()], workers, watch)
        known |= {names[row]: len(known) + at for at, row in enumerate(missing.tolist())}
        places = np.array([known[name] for name in names], np.int64)
    kept = np.memmap(path, record, "r")["values"] if len(known) else np.empty(0, record)["values"]
    width = sum(eye.outputs[name] for name in chosen)
    if 4 * len(places) * width > IN_MEMORY and chosen == eye.features[: len(chosen)]:
        return MappedFeatures(kept[:, :width], places)
    return _columns(eye, kept, chosen, places)


def eye_key(eye: Eye) -> str:
    """Return the hash of what features depend on beside the photos, 32 hexadecimal digits."""
    facts = [FORMAT, eye.sha256, eye.transform.spec(), eye.features]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _record(eye: Eye) -> np.dtype[np.void]:
    width = sum(eye.outputs[name] for name in eye.features)
    return np.dtype([("photo", f"V{DIGEST}"), ("values", "<f4", (width,))])


def _columns(
    eye: Eye,
    values: NDArray[np.float32],
    chosen: Sequence[str],
    rows: slice | NDArray[np.int64] = slice(None),
) -> NDArray[np.float32]:
    """Return the columns of some outputs among those of all features."""
    if tuple(chosen) == eye.features:
        return np.array(values[rows])
    ends = dict(
        zip(eye.features, np.cumsum([eye.outputs[name] for name in eye.features]), strict=True)
    )
    parts = [values[rows, ends[name] - eye.outputs[name] : ends[name]] for name in chosen]
    return np.concatenate(parts, axis=1)


def _digests(photos: ImageSource) -> list[bytes]:
    names: list[bytes] = []
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(photos), AT_ONCE):
            rows = range(first, min(first + AT_ONCE, len(photos)))
            names += (
                hashlib.sha256(name).digest()[:DIGEST] for name in pool.map(photos.identity, rows)
            )
    return names


def _cut(path: Path, size: int) -> None:
    """Forget a record that was being written when its process was killed."""
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // size * size)


def _places(path: Path, record: np.dtype[np.void]) -> dict[bytes, int]:
    if not path.stat().st_size:
        return {}
    photos = np.ascontiguousarray(np.memmap(path, record, "r")["photo"])
    return {photo.tobytes(): place for place, photo in enumerate(photos)}


def _seen(
    eye: Eye, photos: ImageSource, rows: NDArray[np.int64], workers: int, watch: Watch
) -> Any:
    """Yield the features of rows, batch by batch, each with the place of its first row."""

    def see(pixels: np.ndarray) -> tuple[NDArray[np.float32]]:
        made = eye.see(pixels)
        return (np.concatenate([made[name] for name in eye.features], axis=1),)

    watch.start(f"features of {eye.name}", len(photos), len(photos) - len(rows))
    done = 0
    try:
        with closing(
            mapped(see, photos, eye.transform, rows=rows, threads=workers or None)
        ) as batches:
            for batch in batches:
                if batch.failures:
                    raise ImageError(batch.failures[0].reason)
                yield done, batch.values[0]
                done += len(batch.rows)
                watch.advance(len(batch.rows))
    finally:
        watch.finish()


def _grow(
    path: Path,
    eye: Eye,
    photos: ImageSource,
    rows: NDArray[np.int64],
    names: Sequence[bytes],
    workers: int,
    watch: Watch,
) -> None:
    """Append the records of rows to the file."""
    if not len(rows):
        return
    record = _record(eye)
    with path.open("r+b", buffering=0) as stream:
        for done, made in _seen(eye, photos, rows, workers, watch):
            records = np.empty(len(made), record)
            records["photo"] = np.array(names[done : done + len(made)], f"V{DIGEST}")
            records["values"] = made
            last = done + len(made)
            durable = last == len(rows) or done // PART < last // PART
            try:
                append_whole(stream, records.tobytes(), durable=durable)
            except OSError as error:
                raise write_error(path, error) from None

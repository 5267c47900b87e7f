"""CIFAR-10 and CIFAR-100 in the python or the binary version, and CIFAR60+40.

CIFAR60+40: in each of the 20 coarse classes two of the five fine classes lose their label, so
20,000 training images have none of the 60 labels left.

The official python version is pickled; ``plain_pickle`` reads it without running anything.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.data.plain_pickle import PickleError, as_array, read_pickle
from labelwise.data.rows import read_lines, require_file
from labelwise.data.sets import LabelSets
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.memory import ArrayImages
from labelwise.types import LabelSpace

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # pixels (n, 3072), classes (n,)
PIXELS = 3 * 32 * 32
FINE_TO_COARSE = np.array(
    [
        *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
        *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
        *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
        *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
        *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
    ]
)


def read_binary(path: Path, files: list[str], width: int, column: int) -> Batch:
    """Return records of ``width`` class bytes and 3,072 pixel bytes; one byte is the class."""
    rows = []
    for file in files:
        content = np.frombuffer(_content(path / file), np.uint8)
        if not len(content) or len(content) % (width + PIXELS):
            raise DataError(f"{path / file}: must be records of {width + PIXELS} bytes")
        rows.append(content.reshape(-1, width + PIXELS))
    whole = np.concatenate(rows)
    return whole[:, width:], whole[:, column].astype(np.int64)


def read_python(path: Path, files: list[str], key: str) -> Batch:
    """Return the pixels and the classes under ``key`` of pickled batches."""
    pixels, codes = [], []
    for file in files:
        content = unpickled(path / file)
        try:
            data = as_array(content.get("data"))
        except PickleError as error:
            raise DataError(f"{path / file}: 'data' cannot be read ({error})") from None
        labels = content.get(key)
        if (
            data.dtype != np.uint8
            or data.ndim != 2
            or data.shape[1] != PIXELS
            or not isinstance(labels, list)
            or len(labels) != len(data)
            or not all(type(label) is int and 0 <= label < 256 for label in labels)
        ):
            raise DataError(f"{path / file}: must have 'data' (n, {PIXELS}) and {key!r}")
        pixels.append(data)
        codes.append(np.array(labels, np.int64))
    return np.concatenate(pixels), np.concatenate(codes)


def unpickled(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary of plain values, its keys as text."""
    try:
        content = read_pickle(_content(path))
    except PickleError as error:
        raise DataError(f"{path}: not an official CIFAR batch ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not an official CIFAR batch")
    return {as_text(key): value for key, value in content.items()}


def label_names(path: Path, key: str) -> list[str]:
    """Return the names of the classes in a pickled file of facts."""
    names = unpickled(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path}: must have a list {key!r} of names")
    return [as_text(name) for name in names]


def _content(path: Path) -> bytes:
    return require_file(path).read_bytes()


def as_text(value: object) -> str:
    """Return bytes or text as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_cifar10(path: Path) -> LabelTable:
    """Return CIFAR-10 from ``cifar-10-batches-py`` or ``cifar-10-batches-bin``."""
    if (path / "batches.meta").is_file():
        files = [f"data_batch_{n}" for n in range(1, 6)], ["test_batch"]
        names = label_names(path / "batches.meta", "label_names")
        parts = [read_python(path, part, "labels") for part in files]
    else:
        files = [f"data_batch_{n}.bin" for n in range(1, 6)], ["test_batch.bin"]
        names = read_lines(path / "batches.meta.txt")
        parts = [read_binary(path, part, 1, 0) for part in files]
    return _table(parts, names, "cifar10")


def read_cifar100(path: Path, *, labels: Literal["fine", "coarse", "both"] = "fine") -> LabelTable:
    """Return CIFAR-100 from ``cifar-100-python`` or ``cifar-100-binary``.

    With "both" every image has two of 120 labels: its fine class and its coarse one.
    """
    if labels not in ("fine", "coarse", "both"):
        raise SettingsError(f"labels must be 'fine', 'coarse' or 'both', got {labels!r}")
    if labels == "both":
        fine, coarse = _one_label(path, "fine"), _one_label(path, "coarse")
        names = (*fine.space.names, *coarse.space.names)
        truth = np.hstack([fine.targets()[0], coarse.targets()[0]])
        return LabelTable.from_arrays(names, fine.images, truth, split=fine.split, name="cifar100")
    return _one_label(path, labels)


def _one_label(path: Path, labels: str) -> LabelTable:
    if (path / "meta").is_file():
        names = label_names(path / "meta", f"{labels}_label_names")
        parts = [read_python(path, [part], f"{labels}_labels") for part in ("train", "test")]
    else:
        names = read_lines(path / f"{labels}_label_names.txt")
        column = 1 if labels == "fine" else 0
        parts = [read_binary(path, [f"{part}.bin"], 2, column) for part in ("train", "test")]
    return _table(parts, names, "cifar100")


def read_cifar60_40(path: Path, *, seed: int | None = 0) -> LabelTable:
    """Return CIFAR-100 where 40 fine classes have lost their label (see ``cifar60_40_out``)."""
    return without_labels(read_cifar100(path), cifar60_40_out(seed))


def without_labels(table: LabelTable, out: NDArray[np.int64]) -> LabelTable:
    """Return the table without some labels; an image that had only those is a zero-label one."""
    kept = np.setdiff1d(np.arange(len(table.space)), out)
    labels, observed = table.targets()
    return LabelTable.from_arrays(
        [table.space.names[column] for column in kept],
        table.images,
        labels[:, kept],
        None if observed is None else observed[:, kept],
        split=table.split,
        group=table.group,
        name="cifar60_40",
    )


def cifar60_40_out(seed: int | None = 0) -> NDArray[np.int64]:
    """Return the 40 fine classes without label, ascending.

    For each coarse class 0..19 RandomState(seed) permutes its five fine ids and the first two are
    out; with seed None the last two are. The authors never published theirs.
    """
    random = None if seed is None else np.random.RandomState(seed)
    out: list[int] = []
    for coarse in range(20):
        fine = np.flatnonzero(coarse == FINE_TO_COARSE)
        out.extend(fine[-2:] if random is None else random.permutation(fine)[:2])
    return np.sort(np.array(out, np.int64))


def _table(parts: list[Batch], names: list[str], name: str) -> LabelTable:
    sizes = [len(codes) for _, codes in parts]
    codes = np.concatenate([codes for _, codes in parts])
    if len(codes) and (codes.min() < 0 or codes.max() >= len(names)):
        raise DataError(f"{name}: a class must be in 0..{len(names) - 1}, got {codes.max()}")
    pixels = np.concatenate([pixels for pixels, _ in parts])
    ids = [
        f"{s}/{row:05d}" for s, n in zip(("train", "test"), sizes, strict=True) for row in range(n)
    ]
    return LabelTable(
        LabelSpace(tuple(names)),
        ArrayImages(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), ids),
        LabelSets.from_csr(np.arange(len(codes) + 1), codes.astype(np.int32), len(names)),
        LabelSets.none(len(codes), len(names)),
        np.repeat(["train", "test"], sizes),
        name=name,
    )

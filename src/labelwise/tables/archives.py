"""Arrays of an .npz file by name, each of the kind and shape that is needed; no pickle is read."""

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np
from numpy.typing import NDArray

from labelwise.base.text import first_line
from labelwise.errors import DataError
from labelwise.tables.rows import require_file
from labelwise.types import nearest

Floats = NDArray[np.float64]
Texts = tuple[str, ...]
KINDS = {"fiub": "numbers", "fiu": "numbers", "iu": "whole numbers", "Uiu": "texts or integers"}


class Archive:
    """The arrays of an .npz file; if names are ``known``, no array may have another one."""

    def __init__(self, path: Path, known: Sequence[str] = ()) -> None:
        self.path = path
        try:
            # Opened here: numpy leaves a file open that is not an archive.
            with require_file(path).open("rb") as stream, np.load(stream) as file:
                self.arrays = {name: np.asarray(file[name]) for name in file.files}
        # What a damaged archive raises is up to zipfile, zlib and numpy.
        except (
            *(OSError, BadZipFile, ZlibError, EOFError, ValueError, RuntimeError, AttributeError),
            *(KeyError, TypeError, SyntaxError, TokenError, MemoryError),
        ) as error:
            rule = "arrays of numbers and of numpy text are read, never Python objects"
            reason = f"{first_line(error)}; {rule}"
            raise DataError(f"{path}: not a readable .npz file ({reason})") from None
        for name in self.arrays:
            if known and name not in known:
                raise DataError(f"{path}: unknown array {name!r}{nearest(name, known)}")

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def array(self, name: str, kinds: str, *shapes: tuple[int | None, ...]) -> NDArray[Any]:
        """Return an array of one of these kinds of numpy and of one of these shapes."""
        if name not in self.arrays:
            raise DataError(f"{self.path}: there is no array {name!r}{nearest(name, self.arrays)}")
        value = self.arrays[name]
        for shape in shapes:
            pairs = zip(shape, value.shape, strict=False)
            fits = len(shape) == value.ndim and all(wanted in (None, n) for wanted, n in pairs)
            if fits and value.dtype.kind in kinds:
                return value
        forms = (str(tuple(n or "NDhw"[at] for at, n in enumerate(shape))) for shape in shapes)
        rule = f"{name} must be {KINDS[kinds]} {' or '.join(forms)}".replace("'", "")
        raise DataError(f"{self.path}: {rule}, got {value.dtype} {value.shape}")

    def features(self, name: str, *shapes: tuple[None, ...]) -> NDArray[np.float32]:
        """Return finite numbers in rows."""
        value = self.array(name, "fiu", *shapes)
        finite = np.isfinite(value.reshape(len(value), -1)).all(1)
        if not value.size or not finite.all():
            row = int(np.append(finite, False).argmin()) + 1
            raise DataError(f"{self.path}, row {row}: {name} must be finite numbers")
        return value.astype(np.float32, copy=False)

    def labels(self, shape: tuple[int | None, int | None]) -> Floats | None:
        """Return the labels, NaN where they are not observed, None where there are none."""
        if "labels" not in self:
            return None
        labels = self.array("labels", "fiub", shape).astype(np.float64)
        if "observed" not in self:
            return labels
        observed = self.array("observed", "fiub", labels.shape)
        if not np.isin(observed, (0, 1)).all():
            raise DataError(f"{self.path}: observed must be true and false, or 1 and 0")
        return np.where(observed == 1, labels, np.nan)

    def texts(self, name: str, length: int) -> Texts | None:
        """Return an array of texts, None where there is none."""
        if name not in self:
            return None
        return tuple(map(str, self.array(name, "Uiu", (length,)).tolist()))

    def names(self, width: int, name: str = "names") -> Texts:
        """Return the names of the labels, ``label-0`` and so on where there are none."""
        return self.texts(name, width) or tuple(f"label-{column}" for column in range(width))

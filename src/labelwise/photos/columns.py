"""The columns of an index on disk: logits per label, embeddings and looks, for every row.

    scores/000000000000.parquet  one column of logits per label, named after it, and ``row``
    embeddings/...               ``row`` and ``embedding``, a fixed-size list of half floats
    looks/...                    ``row`` and ``look``, likewise; none in indexes of 0.2
    cache/                       the same columns end to end, see :mod:`labelwise.photos.checksums`

A file is named after its first row, and never changed once its rows are known. Whoever reads says
how many rows are known: what a killed writer left behind them does not count.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.errors import CheckpointError
from labelwise.photos.checksums import CacheFiles, Checksums
from labelwise.system.files import replacing
from labelwise.system.text import first_line

NAMES = {"embeddings": "embedding", "looks": "look"}  # of the columns of vectors


class Columns:
    """The logits, embeddings and looks of an index folder, read as arrays of so many rows."""

    def __init__(self, folder: Path, labels: Sequence[str], checksums: Checksums) -> None:
        self.folder, self._checksums = folder, checksums
        self.cache = CacheFiles(folder)
        # A label that is called "row" would have the name of the first column.
        self._names = ["row (label)" if label == "row" else label for label in labels]

    def append(
        self,
        first: int,
        logits: NDArray[np.float32],
        embeddings: NDArray[np.float16] | None,
        looks: NDArray[np.float16] | None = None,
    ) -> list[str]:
        """Write the logits (n, K), embeddings (n, D) and looks (n, W) of rows from ``first`` on.

        Returns the names of the files written. An index whose first rows have no looks gets none
        for later ones either.
        """
        rows = pa.array(np.arange(first, first + len(logits), dtype=np.int64))
        columns = [pa.array(np.ascontiguousarray(column)) for column in logits.T]
        tables = {"scores": pa.table([rows, *columns], names=["row", *self._names])}
        if first and not self._files("looks"):
            looks = None
        for kind, values in (("embeddings", embeddings), ("looks", looks)):
            if values is not None:
                flat = pa.array(values.reshape(-1))
                lists = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
                tables[kind] = pa.table({"row": rows, NAMES[kind]: lists})
        for kind, table in tables.items():
            with replacing(self.folder / kind / f"{first:012d}.parquet") as temporary:
                pq.write_table(table, temporary)
        return [f"{kind}/{first:012d}.parquet" for kind in tables]

    def _files(self, kind: str) -> list[Path]:
        return sorted((self.folder / kind).glob("*.parquet"))

    def logits(self, label: int, rows: int) -> NDArray[np.float32]:
        """Return the logits (rows,) of one label, mapped from the disk."""
        parts = partial(self._segments, "scores", self._names[label])
        cache = f"scores-{label + 1:05d}.bin"
        return self.cache.grown(cache, np.dtype(np.float32), (rows, 1), parts)[:, 0]

    def vectors(self, kind: Literal["embeddings", "looks"], rows: int) -> NDArray[np.float16]:
        """Return these vectors (rows, D), mapped from the disk; D is 0 where there are none."""
        files = self._files(kind)
        if not files:
            return np.empty((rows, 0), np.float16)
        self._checksums.check(f"{kind}/{files[0].name}", once=True)
        shape = (rows, pq.read_schema(files[0]).field(NAMES[kind]).type.list_size)
        parts = partial(self._segments, kind, NAMES[kind])
        return self.cache.grown(f"{kind}-00000.bin", np.dtype(np.float16), shape, parts)

    def _segments(self, kind: str, name: str, done: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the values of one column from row ``done`` to ``rows``, segment by segment."""
        files = self._files(kind)
        firsts = [int(file.stem) for file in files]
        for file, first, end in zip(files, firsts, [*firsts[1:], rows], strict=True):
            end = min(end, rows)
            if end <= done or first >= rows:
                continue
            self._checksums.check(f"{kind}/{file.name}", once=True)
            try:
                column = pq.read_table(file, columns=[name])[name].combine_chunks()
            except (OSError, pa.ArrowException, KeyError) as error:
                raise CheckpointError(
                    f"{file} of the index cannot be read ({first_line(error)}); "
                    f"{self._checksums.way_out}"
                ) from None
            if len(column) < end - first:
                raise CheckpointError(
                    f"{file} must hold {end - first} rows, got {len(column)}; "
                    f"{self._checksums.way_out}"
                )
            column = column.slice(max(done - first, 0), end - max(done, first))
            if isinstance(column, pa.FixedSizeListArray):
                column = column.flatten()
            yield column.to_numpy(zero_copy_only=False)

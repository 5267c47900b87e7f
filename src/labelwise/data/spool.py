"""Spool: image bytes in memory while they are few, in a temporary file beyond that.

The file has no name, is mapped, not read, and is gone with the process, however that ends.
"""

import mmap
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from labelwise.errors import DataError

__all__ = ["Spool"]

IN_MEMORY = 1 << 30  # bytes
PLACE = Path("/var/tmp")  # /tmp may itself be memory


class Spool:
    """Collects Arrow arrays of bytes; ``finish`` returns them as one chunked array."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []
        self._size = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, array: Any) -> None:
        """Take in an array of image bytes."""
        self._arrays.append(array.cast(pa.large_binary()))
        self._size += array.nbytes
        if self._size > IN_MEMORY:
            self._write()

    def finish(self) -> Any:
        """Return all arrays as one; what is in the file stays there until it is looked at."""
        if self._file is None:
            return pa.chunked_array(self._arrays, pa.large_binary())
        self._write()
        self._writer.close()
        self._file.flush()
        pa.default_memory_pool().release_unused()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all().column(0)

    def _write(self) -> None:
        schema = pa.schema([("bytes", pa.large_binary())])
        place = os.environ.get("TMPDIR") or (PLACE if os.access(PLACE, os.W_OK) else None)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115 (closed by finish)
                self._writer = pa.ipc.new_file(self._file, schema)
            for array in self._arrays:
                self._writer.write_batch(pa.record_batch([array], schema=schema))
        except OSError as error:
            raise DataError(
                f"the images cannot be kept in {place or tempfile.gettempdir()} "
                f"({error.strerror or error}); "
                "set TMPDIR to a folder with room, or use tar shards or image files"
            ) from None
        self._arrays.clear()

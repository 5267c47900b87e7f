"""A table in a file that changes in place and can be taken back to marked steps.

Before a row is changed for the first time after a mark, its old numbers are appended to the
journal of that mark, ``FILE.undo-STEP``. To go back to a mark, the journals from the newest to
that mark's are written back into the table. So a checkpoint never copies the table, and a run
that is killed at any moment resumes from its last checkpoint bit for bit: a half-written change
has its journal entry, and a half-written entry has no change. (After a loss of power, the order in
which pages reached the disk is not known: start such a run again.)

The journals of the last two marks are kept: if a run is killed between marking and finishing a
checkpoint, the one before it is still valid.
"""

from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import CheckpointError

CHUNK = 1024


class UndoFile:
    """A float32 table (N, W) in a file, with journals; ``records`` is its memory map."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        size = prod(shape)
        if path.exists() and path.stat().st_size != 4 * size:
            raise CheckpointError(
                f"{path} must hold {shape[0]} x {shape[1]} numbers ({4 * size} bytes), got "
                f"{path.stat().st_size} bytes; it belongs to another run: name another file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.is_new = path, not path.exists()
        if self.is_new:
            for mark in self._marks():
                self._journal(mark).unlink()  # of a table that was deleted
        self.records = torch.from_file(str(path), shared=True, size=size).view(shape)
        self._entry = np.dtype([("row", "<i8"), ("record", "<f4", shape[1])])
        self._kept = np.zeros(shape[0], dtype=bool)  # rows already in the present journal
        self._mark = self._step = -1  # not taken back to any mark yet

    def rewind(self, step: int) -> None:
        """Make the table what it was at ``step``: now, or a mark whose journal is kept."""
        if step == self._step:
            return
        if self.is_new and step == 0:
            self._journal(0).touch()
        if not self._journal(step).exists():
            raise CheckpointError(
                f"{self.path} has no way back to step {step} of the run; resume from its last "
                "checkpoint, or delete the file and start the run again"
            )
        later = [mark for mark in reversed(self._marks()) if mark >= step]
        for mark in later:
            self._restore(mark)
        for mark in later[:-1]:
            self._journal(mark).unlink()
        self._open(step)

    def write(self, rows: Tensor, records: Tensor, step: int) -> None:
        """Change distinct ``rows`` to ``records``; the table is then that of ``step``."""
        new = rows[torch.from_numpy(~self._kept[rows.numpy()])]
        entries = np.empty(len(new), dtype=self._entry)
        entries["row"], entries["record"] = new.numpy(), self.records[new].numpy()
        with self._journal(self._mark).open("r+b") as journal:
            journal.seek(int(np.count_nonzero(self._kept)) * self._entry.itemsize)
            journal.write(entries.tobytes())
        self._kept[new.numpy()] = True
        self.records[rows] = records
        self._step = step

    def mark(self, step: int) -> None:
        """Make the present table, that of ``step``, one to which ``rewind`` can return."""
        if self._step < 0:
            return  # not used yet: the file may belong to a state that is still to be loaded
        self.rewind(step)
        for old in self._marks():
            if old < self._mark:
                self._journal(old).unlink()
        self._open(step)

    def _open(self, mark: int) -> None:
        self._journal(mark).write_bytes(b"")
        self._kept[:] = False
        self._mark = self._step = mark

    def _restore(self, mark: int) -> None:
        journal = self._journal(mark)
        whole = journal.stat().st_size // self._entry.itemsize
        for first in range(0, whole, CHUNK):
            entries = np.fromfile(
                journal, self._entry, min(CHUNK, whole - first), offset=first * self._entry.itemsize
            )
            rows = torch.from_numpy(entries["row"].copy())
            self.records[rows] = torch.from_numpy(entries["record"].copy())

    def _journal(self, mark: int) -> Path:
        return self.path.with_name(f"{self.path.name}.undo-{mark}")

    def _marks(self) -> list[int]:
        start = self._journal(0).name.removesuffix("0")
        names = (file.name for file in self.path.parent.iterdir())
        return sorted(int(name.removeprefix(start)) for name in names if name.startswith(start))

"""Mirror: files of a folder on this machine that are kept in a bucket.

The bucket is what counts. A command fetches what is there, works on its own disk, and sends what
has changed, file by file, each whole. Files that make others valid are sent last and removed
first, so that a command that is killed in the middle leaves something that can be resumed.

Object stores have no locks. Whoever begins to write puts its name there, and whoever finds another
name there before it writes again stops: the last one to begin goes on.
"""

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.system.storage import ObjectStorage, StorageError, StoredFile

WRITER = ".writer"  # hidden, so that no listing names it

Facts = tuple[int, int]  # size and time of change
Turn = Callable[[str, bool], int | None]


class Mirror:
    """A folder and the place it is kept in.

    ``turn`` says when a file is sent, by its name and whether the bucket has one of that name:
    low numbers first; None for what does not belong to the folder.
    """

    def __init__(self, folder: Path, storage: ObjectStorage, turn: Turn) -> None:
        self.folder, self.storage, self.turn = folder, storage, turn
        self.unsent = False  # whether the last attempt to send failed
        self._known: dict[str, Facts | None] = {}  # what the bucket holds, and that file here
        self._name: bytes | None = None

    @property
    def address(self) -> str:
        """The place, as people call it."""
        return self.storage.address

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """Bring the folder to what the bucket holds of the wanted names; return if that is any.

        A file that has the size and the time of change of its object is not fetched again.
        """
        found = self._listed()
        chosen = [name for name in found if wanted(name)]
        for name in self._local():
            if wanted(name) and name not in found:
                (self.folder / name).unlink()
        for name in chosen:
            path, size, changed = self.folder / name, found[name].size, found[name].mtime_ns
            if self._facts(name) != (size, changed):
                try:
                    self.storage.download(name, path, size)
                except FileNotFoundError:
                    raise StorageError(
                        f"{self.address}: {name} was removed while it was read; try again"
                    ) from None
                os.utime(path, ns=(changed, changed))
        self._known = {name: self._facts(name) if wanted(name) else None for name in found}
        return bool(chosen)

    def claim(self) -> None:
        """Become the one who writes there."""
        self._name = secrets.token_hex(8).encode()
        self.storage.write(WRITER, self._name)

    def send(self) -> None:
        """Bring the bucket to what the folder holds."""
        self.unsent = True
        self._check_claim()
        there = {name: self._facts(name) for name in self._local()}
        for name in self._in_turn(there):
            if self._known.get(name) != there[name]:
                self.storage.upload(name, self.folder / name)
                self._known[name] = there[name]
        held = [name for name, facts in self._known.items() if facts is not None]
        self._remove([name for name in held if name not in there])
        self.unsent = False

    def clear(self) -> None:
        """Remove what the bucket holds of the folder."""
        self._known = dict.fromkeys(self._listed())
        self._remove(list(self._known))

    def _remove(self, names: list[str]) -> None:
        for name in reversed(self._in_turn(names)):
            self.storage.remove(name)
            del self._known[name]
        for folder in sorted({name.rpartition("/")[0] for name in names} - {""}):
            if not any(name.startswith(f"{folder}/") for name in self._known):
                self.storage.remove_folder(folder)

    def _check_claim(self) -> None:
        try:
            name = self.storage.read(WRITER)
        except FileNotFoundError:
            name = b""
        if self._name is None or name != self._name:
            raise LabelwiseError(
                f"another command writes to {self.address} now, or it was removed: this one stops"
            )

    def _listed(self) -> dict[str, StoredFile]:
        return {
            name: file
            for folder, files in self.storage.folders()
            for file in files
            if self._belongs(name := f"{folder}/{file.name}" if folder else file.name)
        }

    def _local(self) -> list[str]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return [name for name in map(self._relative, paths) if self._belongs(name)]

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _belongs(self, name: str) -> bool:
        return self.turn(name, False) is not None

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: (self.turn(name, name in self._known) or 0, name))

    def _facts(self, name: str) -> Facts | None:
        try:
            facts = (self.folder / name).stat()
        except OSError:
            return None
        return facts.st_size, facts.st_mtime_ns

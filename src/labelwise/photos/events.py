"""Which folders changed, as the system tells it: inotify, for local disks on Linux.

Every folder that is looked at for photos has a watch of its own. A new or moved folder is walked
and watched with all below it. Where events were lost because there were too many, or a root itself
is gone, the answer is "everything". Disks of other machines send no events for what these machines
write, and other systems have no inotify: :func:`events_of` says why there are none.
"""

import ctypes
import errno
import os
import select
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from labelwise.photos.looking import is_passed_over, photos_below
from labelwise.system.storage import is_uri

WRITTEN, MODIFIED, ATTRIBUTES = 0x8, 0x2, 0x4
MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x40, 0x80, 0x100, 0x200
SELF_DELETED, SELF_MOVED = 0x400, 0x800
UNMOUNTED, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
IS_FOLDER, ONLY_FOLDERS = 0x40000000, 0x01000000
WANTED = (
    WRITTEN | MODIFIED | ATTRIBUTES | MOVED_FROM | MOVED_TO | CREATED | DELETED | SELF_DELETED
    | SELF_MOVED | ONLY_FOLDERS
)  # fmt: skip
HEAD = struct.Struct("iIII")
BYTES_AT_ONCE = 1 << 16
REMOTE = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "fuse", "glusterfs", "lustre", "virtiofs")

QUIET_SECONDS = 1.0  # without an event, after which a file that was written counts as whole
LONGEST_SECONDS = 30.0  # after the first event, however much still happens


class NoEventsError(Exception):
    """Events cannot be had; the message says why."""


def events_of(roots: Sequence[str], skip: Collection[str] = ()) -> "FolderEvents":
    """Return the events of all folders below the roots, or raise :class:`NoEventsError`."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
        begin = system.inotify_init1
    except (OSError, AttributeError, TypeError):
        raise NoEventsError("this system has no inotify") from None
    for root in roots:
        if is_uri(root):
            raise NoEventsError("buckets tell of no changes")
        kind = file_system(root)
        if kind.startswith(REMOTE):
            raise NoEventsError(f"{root} is on a disk that may change without telling ({kind})")
    descriptor = begin(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise NoEventsError(f"inotify cannot be used ({os.strerror(ctypes.get_errno())})")
    events = FolderEvents(system, descriptor, roots, skip)
    try:
        for root in roots:
            events.watch_below(root, "")
    except BaseException:
        events.close()
        raise
    return events


class FolderEvents:
    """Open watches of all folders below some roots; a context manager."""

    def __init__(
        self, system: Any, descriptor: int, roots: Sequence[str], skip: Collection[str]
    ) -> None:
        self._system, self._descriptor = system, descriptor
        self._roots, self._skip = tuple(roots), frozenset(skip)
        self._folders: dict[int, tuple[str, str]] = {}
        self._watches: dict[tuple[str, str], int] = {}

    def __enter__(self) -> "FolderEvents":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._folders)

    def close(self) -> None:
        """End all watches."""
        os.close(self._descriptor)

    def watch_below(self, root: str, folder: str) -> set[tuple[str, str]]:
        """Watch a folder and all below it; return those that were not watched before."""
        new = set()
        for place, _ in photos_below(root, (), self._skip, start=folder):
            number = self._system.inotify_add_watch(
                self._descriptor, os.fsencode(os.path.join(root, place)), WANTED
            )
            if number < 0:
                problem = ctypes.get_errno()
                if problem == errno.ENOSPC:
                    raise NoEventsError(
                        f"there are more folders than may be watched ({len(self):,}; "
                        "fs.inotify.max_user_watches)"
                    )
                continue  # gone since it was listed, or not to be read: the look says so
            if self._folders.get(number) != (root, place):
                new.add((root, place))
            self._forget(number)
            self._folders[number], self._watches[root, place] = (root, place), number
        return new

    def wait(self, seconds: float | None = None) -> Mapping[str, set[str]] | None:
        """Return the folders that changed, by root, once nothing has happened for a second.

        None stands for everything, an empty answer for nothing within ``seconds``.
        """
        if not self._waits(seconds):
            return {}
        changed: set[tuple[str, str]] = set()
        everything, latest = False, time.monotonic() + LONGEST_SECONDS
        while True:
            everything |= self._take_in(changed)
            if time.monotonic() >= latest or not self._waits(QUIET_SECONDS):
                break
        if everything:
            for root in self._roots:
                self.watch_below(root, "")
            return None
        by_root: dict[str, set[str]] = {}
        for root, folder in changed:
            by_root.setdefault(root, set()).add(folder)
        return by_root

    def _waits(self, seconds: float | None) -> bool:
        """Return whether there is an event, at the latest after so many seconds."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def _take_in(self, changed: set[tuple[str, str]]) -> bool:
        """Add the folders of the events that wait; return whether some were lost."""
        lost = False
        blob = os.read(self._descriptor, BYTES_AT_ONCE)
        place = 0
        while place < len(blob):
            number, mask, _, length = HEAD.unpack_from(blob, place)
            name = os.fsdecode(blob[place + HEAD.size : place + HEAD.size + length].rstrip(b"\0"))
            place += HEAD.size + length
            lost |= bool(mask & (OVERFLOW | UNMOUNTED))
            if number not in self._folders:
                continue
            root, folder = self._folders[number]
            if mask & IGNORED:
                self._forget(number)
            elif mask & (SELF_DELETED | SELF_MOVED):
                lost |= folder == ""
            else:
                changed.add((root, folder))
            if mask & IS_FOLDER and not is_passed_over(name):
                inside = os.path.join(folder, name)
                if mask & (CREATED | MOVED_TO):
                    changed |= self.watch_below(root, inside)
                elif mask & (MOVED_FROM | DELETED):
                    changed.add((root, inside))
                if mask & MOVED_FROM:  # a deleted folder was empty, and its watch has ended
                    self._leave(root, inside)
        return lost

    def _leave(self, root: str, gone: str) -> None:
        """End the watches of a folder that is not where it was, and of all below it."""
        for key, number in list(self._watches.items()):
            inside = key[1] == gone or key[1].startswith(gone + os.sep)
            if key[0] == root and inside:
                self._system.inotify_rm_watch(self._descriptor, number)
                self._forget(number)

    def _forget(self, number: int) -> None:
        key = self._folders.pop(number, None)
        if key is not None and self._watches.get(key) == number:
            del self._watches[key]


def file_system(path: str) -> str:
    """Return the kind of file system a path lies on, as /proc tells it; "" where it does not."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        point = words[4].encode().decode("unicode_escape")  # a space is \040
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind

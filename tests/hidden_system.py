"""Make this process macOS or Windows to labelwise: what these systems lack is hidden from it.

    LABELWISE_TEST_SYSTEM=macos | windows        read when this file is imported
    hidden_system.py SCRIPT ARGUMENTS            runs a script where labelwise is imported anew

Modules of labelwise see another ``sys.platform``, and ``os``, ``socket``, ``signal`` and ``ctypes``
without what the system does not have; ``/proc`` and glibc's own functions are not there; processes
are spawned. Windows also keeps its files: what is open or mapped in this process can neither be
removed, renamed nor replaced, folders cannot be opened, nor files that were opened for reading be
forced to the disk. The standard library, other packages and other processes see all of Linux.
"""

import builtins
import ctypes
import errno
import io
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import sys
from importlib import import_module
from types import ModuleType

VARIABLE = "LABELWISE_TEST_SYSTEM"
ONLY_GLIBC = ("gnu_get_libc_version", "mallopt", "malloc_trim")
ONLY_LINUX = {
    "os": "memfd_create sched_getaffinity sched_setaffinity posix_fadvise eventfd pidfd_open",
    "socket": "SOCK_SEQPACKET",
    "signal": "",
}
NOT_ON_WINDOWS = {
    "os": "fork forkpty register_at_fork geteuid getuid getgid getpgid killpg setsid chown fchown "
    "O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_DIRECTORY sysconf statvfs pread pwrite nice mkfifo "
    "wait WNOHANG waitid sendfile getloadavg uname",
    "socket": "AF_UNIX send_fds recv_fds",
    "signal": "SIGKILL SIGHUP SIGCHLD SIGUSR1 SIGUSR2 SIGALRM SIGQUIT alarm setitimer "
    "pthread_sigmask",
}
POSIX_MODULES = ("fcntl", "resource", "termios", "tty", "pwd", "grp", "pty", "posix")
REAL = {name: getattr(os, name) for name in ("open", "fsync", "unlink", "rename", "replace")}
real_import, real_open = builtins.__import__, builtins.open


class View(ModuleType):
    """A module as another system has it."""

    def __init__(self, module, lacking, **instead):
        super().__init__(module.__name__)
        vars(self).update(_module=module, _lacking=frozenset(lacking), **instead)

    def __getattr__(self, name):
        if name in self._lacking:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name, value):
        setattr(self._module, name, value)


def is_own(frame):
    name = frame.f_globals.get("__package__") or frame.f_globals.get("__name__") or ""
    return name.partition(".")[0] == "labelwise"


def used_paths():
    """Return the real paths of what this process has open or mapped."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with real_open("/proc/self/maps") as lines:
        return found | {line.split(maxsplit=5)[5].rstrip("\n") for line in lines if "/" in line}


def refuse_used(*paths):
    for path in paths:
        real = os.path.realpath(os.fsdecode(path))
        if any(used == real or used.startswith(real + "/") for used in used_paths()):
            raise PermissionError(errno.EACCES, "it is used by this process", os.fsdecode(path))


def windows_unlink(path, *, dir_fd=None):
    refuse_used(path)
    REAL["unlink"](path, dir_fd=dir_fd)


def windows_rename(source, target, **handles):
    if os.path.exists(target):
        raise FileExistsError(errno.EEXIST, "it is there already", os.fsdecode(target))
    refuse_used(source)
    REAL["rename"](source, target, **handles)


def windows_replace(source, target, **handles):
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "a folder cannot be replaced", os.fsdecode(target))
    refuse_used(source, target)
    REAL["replace"](source, target, **handles)


def windows_open(path, flags, mode=0o777, **handle):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder cannot be opened", os.fsdecode(path))
    return REAL["open"](path, flags, mode, **handle)


def windows_fsync(descriptor):
    import fcntl

    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "it was opened for reading")
    REAL["fsync"](descriptor)


def windows_locking(descriptor, mode, count):
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def system_library(system):
    """Return what stands for ``ctypes.CDLL``."""

    class Library(ctypes.CDLL):
        def __init__(self, name, *given, **named):
            if name is None and system == "windows":
                raise TypeError("bad argument type for built-in operation")
            super().__init__(name, *given, **named)

        def __getattr__(self, name):
            if name in ONLY_GLIBC:
                raise AttributeError(f"function {name!r} not found")
            return super().__getattr__(name)

    return Library


def hide(system):
    """Make this process the system named, until it ends."""
    windows = system == "windows"
    lacking = {name: words.split() for name, words in ONLY_LINUX.items()}
    if windows:
        lacking = {name: [*few, *NOT_ON_WINDOWS[name].split()] for name, few in lacking.items()}
        os.unlink = os.remove = windows_unlink
        os.rename, os.replace = windows_rename, windows_replace
        shutil._use_fd_functions = False
    own = {"name": "nt", "open": windows_open, "fsync": windows_fsync} if windows else {}
    locks = ModuleType("msvcrt")
    locks.LK_NBLCK, locks.locking = 2, windows_locking
    views = {
        "sys": View(sys, (), platform="win32" if windows else "darwin"),
        "os": View(os, lacking["os"], **own),
        "socket": View(socket, lacking["socket"]),
        "signal": View(signal, lacking["signal"]),
        "ctypes": View(ctypes, (), CDLL=system_library(system)),
    } | ({"msvcrt": locks} if windows else {})

    def imported(name, globals=None, locals=None, fromlist=(), level=0):
        caller = sys._getframe().f_back  # Python 3.14 itself imports with no frame below
        if level == 0 and globals is not None and caller is not None and is_own(caller):
            first = name.partition(".")[0]
            if windows and first in POSIX_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if first in views:
                return views[first]
        return real_import(name, globals, locals, fromlist, level)

    def opened(file, *given, **named):
        caller = sys._getframe(1)
        if str(file).startswith("/proc/") and (
            is_own(caller) or caller.f_globals.get("__name__", "").startswith("pathlib")
        ):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
        return real_open(file, *given, **named)

    builtins.__import__ = imported
    builtins.open = io.open = opened
    multiprocessing.set_start_method("spawn", force=True)


def main(script, *given):
    """Run a script in a process that may have imported labelwise before, on its real system."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "labelwise"]:
        del sys.modules[name]
    import_module("hidden_system")
    sys.argv = [script, *given]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
elif VARIABLE in os.environ:
    hide(os.environ[VARIABLE])

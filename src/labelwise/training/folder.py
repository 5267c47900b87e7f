"""The run folder: which files belong to a run, and whether a command may go on with them.

Two processes that train in one folder would write over each other's checkpoints, so the folder
itself is locked while a run has it. The lock ends with its process, however that ends.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.files import write_error
from labelwise.training.settings import Settings, differences, read_settings

if sys.platform != "win32":
    import fcntl

__all__ = ["RESULTS", "is_finished", "opened"]

RESULTS = ("evaluation.json", "model.json", "model.safetensors")
OURS = (*RESULTS, "settings.yaml", "metrics.jsonl", "report.html", "checkpoint", "predictions")


@contextmanager
def opened(folder: Path, settings: Settings, *, fresh: bool) -> Iterator[None]:
    """Have ``folder`` for a run while the block runs: new, or begun with the same settings."""
    with _locked(folder):
        _prepare(folder, settings, fresh=fresh)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":  # folders cannot be opened there
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise write_error(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabelwiseError(
                f"another process is training in {folder}; wait for it, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system that knows no locks
        yield
    finally:
        os.close(handle)


def _prepare(folder: Path, settings: Settings, *, fresh: bool) -> None:
    path = folder / "settings.yaml"
    if fresh:
        _clear(folder)
    if path.exists():
        try:
            before = read_settings(path, {})
        except SettingsError as error:
            raise CheckpointError(f"{error}; start over with --fresh") from None
        changed = differences(before, settings)
        if changed:
            raise SettingsError(
                f"{folder} was begun with other settings ({'; '.join(changed)}); "
                "choose another folder with -o, or start over with --fresh"
            )
    elif (folder / "checkpoint").exists():
        raise CheckpointError(f"{folder} has a checkpoint but no settings.yaml; use --fresh")
    settings.save(path)


def is_finished(folder: Path) -> bool:
    """Return whether a run has written all its results."""
    return all((folder / name).exists() for name in RESULTS)


def _clear(folder: Path) -> None:
    for name in OURS:
        path = folder / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise LabelwiseError(f"cannot remove {path}: {error.strerror}") from None

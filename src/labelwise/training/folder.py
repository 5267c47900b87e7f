"""The run folder: which files belong to a run, and whether a command may go on with them."""

import shutil
from pathlib import Path

from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.training.settings import Settings, differences, read_settings

__all__ = ["RESULTS", "is_finished", "prepare"]

RESULTS = ("evaluation.json", "model.json", "model.safetensors")
OURS = (*RESULTS, "settings.yaml", "metrics.jsonl", "report.html", "checkpoint", "predictions")


def prepare(folder: Path, settings: Settings, *, fresh: bool) -> None:
    """Make ``folder`` ready for a run: a new one, or one begun with the same settings."""
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

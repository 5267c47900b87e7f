"""Whether a command may go on with the run in a folder: one begun with the same settings."""

from collections.abc import Iterator
from contextlib import contextmanager

from labelwise.errors import CheckpointError, SettingsError
from labelwise.runs import RunFolder
from labelwise.training.settings import Settings, differences, read_settings

__all__ = ["opened"]


@contextmanager
def opened(run: RunFolder, settings: Settings, *, fresh: bool) -> Iterator[None]:
    """Have the folder for a run while the block runs: new, or begun with the same settings."""
    with run.lock():
        _prepare(run, settings, fresh=fresh)
        yield


def _prepare(run: RunFolder, settings: Settings, *, fresh: bool) -> None:
    path, folder = run.settings_path, run.path
    if fresh:
        run.clear()
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
    elif run.checkpoint.exists():
        raise CheckpointError(f"{folder} has a checkpoint but no settings.yaml; use --fresh")
    settings.save(path)

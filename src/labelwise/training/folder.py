"""Whether a command may go on with the run in a folder: one begun with the same settings.

The same content under another path is the same. What is fitted after training (calibrator, rule,
share of images without labels) may change: it is then fitted again, without training. So may a
taxonomy, or groups of labels that exclude each other, where no label changes by that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from labelwise.errors import CheckpointError, SettingsError
from labelwise.training import checkpoint
from labelwise.training.prepare import Training
from labelwise.training.settings import differences, read_settings

__all__ = ["opened"]

AFTERWARDS = {"calibrate", "rule", "zero_share", "confidence", "taxonomy", "attributes"}
# Settings that only say where things are or which rows are taken: their content is compared.
CONTENTS = {
    "data": ("data", "on_error", "skip_missing", "val_share"),
    "weights": ("weights",),
}


@contextmanager
def opened(training: Training, *, fresh: bool) -> Iterator[bool]:
    """Have the folder for a run while the block runs; yield whether it must be finished again.

    Settings of a finished run are written when what follows from them is: a command that is
    stopped in between finishes it again the next time.
    """
    run = training.run
    with run.lock():
        again = _finish_again(training, fresh=fresh)
        run.claim()
        finished = run.is_finished
        if not finished:
            training.settings.save(run.settings_path)
            run.publish()
        yield again
        if finished:
            training.settings.save(run.settings_path)
        run.publish()


def _finish_again(training: Training, *, fresh: bool) -> bool:
    """Return whether a finished run must be finished again; raise if it may not be resumed."""
    run, changed = training.run, {}
    if fresh:
        run.clear()
    if run.settings_path.exists():
        try:
            before = read_settings(run.settings_path, {})
        except SettingsError as error:
            raise CheckpointError(f"{error}; start over with --fresh") from None
        facts = checkpoint.latest_facts(run.checkpoint)
        same = {
            key
            for content, keys in CONTENTS.items()
            for key in keys
            if facts and facts.get(content) == training.contents[content]
        }
        changed = differences(before, training.settings)
        others = [text for key, text in changed.items() if key not in AFTERWARDS | same]
        if others:
            raise SettingsError(
                f"{run.address} was begun with other settings ({'; '.join(others)}); "
                "choose another folder with -o, or start over with --fresh"
            )
        if run.is_finished and facts and facts.get("data") != training.contents["data"]:
            since = f"the data changed since the run in {run.address} was trained"
            if changed:
                raise SettingsError(f"{since}; bring the old data back, or start over with --fresh")
            training.watch.say(
                f"{since}: its figures are of the old rows; --fresh trains on the new ones"
            )
    elif run.checkpoint.exists():
        raise CheckpointError(f"{run.address} has a checkpoint but no settings.yaml; use --fresh")
    other = run.is_finished and (_other_taxonomy(training) or _other_groups(training))
    return bool(AFTERWARDS & changed.keys()) or other


def _other_taxonomy(training: Training) -> bool:
    """Return whether a file of the same name holds another taxonomy than the run's model."""
    parents = None if training.taxonomy is None else dict(training.taxonomy.parents)
    return training.run.spec.taxonomy != parents


def _other_groups(training: Training) -> bool:
    """Return whether a file of the same name holds other groups than the run's model."""
    link = training.run.spec.made_link
    return (None if link is None else link.exclusive) != training.attributes

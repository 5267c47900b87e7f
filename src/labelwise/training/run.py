"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from.

A command goes on with the run in a folder that was begun with the same settings. The same content
under another path is the same. What is fitted after training (calibrator, rule, share of images
without labels) may change: it is then fitted again, without training. So may a taxonomy, or groups
of labels that exclude each other, where no label changes by that.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from labelwise.data import LabelTable
from labelwise.errors import CheckpointError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.models.run_folder import RunFolder
from labelwise.system.distributed import rank, value_of_first, wait_for_all
from labelwise.system.progress import Silent, Watch
from labelwise.training import checkpoint
from labelwise.training.effort import tried
from labelwise.training.execution import fastest_convolutions
from labelwise.training.finish import finish, finish_again
from labelwise.training.loggers import log_history
from labelwise.training.loop import Loop
from labelwise.training.prepare import Training, check_names, prepare
from labelwise.training.processes import errors_told_by_the_first, launch
from labelwise.training.settings import Settings, differences, read_settings
from labelwise.training.solved_head import solve_head

AFTERWARDS = {"calibrate", "rule", "zero_share", "confidence", "taxonomy", "attributes"}
# Settings that only say where things are or which rows are taken: their content is compared.
CONTENTS = {
    "data": ("data", "on_error", "skip_missing", "val_share"),
    "weights": ("weights",),
}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its evaluation, and whether this call had anything to do."""

    folder: Path
    evaluation: Evaluation
    table: LabelTable
    was_finished: bool = False


def train(
    settings: Settings,
    folder: Path | RunFolder,
    *,
    table: LabelTable | None = None,
    watch: Watch | None = None,
    fresh: bool = False,
) -> Run | None:
    """Train, or go on training, and return the finished run; None in helper processes.

    ``table`` spares reading the data. Only the first process reads and writes the folder.
    Ctrl-C stops between two steps with a checkpoint written, and raises KeyboardInterrupt.
    """
    check_names(settings)
    device = launch(settings.hardware)
    if rank() > 0 or watch is None:
        watch = Silent()
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    if settings.effort in ("good", "best"):
        return _train_with_effort(settings, run, table, watch, fresh=fresh)
    with errors_told_by_the_first():
        if rank() == 0 and not fresh:
            run.fetch()
        training = prepare(settings, run, device, watch, table=table, fresh=fresh)
        return _fit_and_finish(training, fresh=fresh)


def _fit_and_finish(training: Training, *, fresh: bool) -> Run | None:
    first = training.is_first
    with _opened(training, fresh=fresh) if first else nullcontext(False) as changed:
        wait_for_all()
        if value_of_first(training.run.is_finished, training.device):
            finished, evaluation = True, None
            if first:
                log_history(training.run, training.settings)
                evaluation = finish_again(training) if changed else training.run.evaluation
        else:
            with fastest_convolutions():
                model = None if training.frozen is None else solve_head(training)
                if model is None:
                    model = Loop(training).run()
                elif first:
                    log_history(training.run, training.settings)
                evaluation = finish(training, model)
            finished = False
    if evaluation is None:
        return None
    return Run(training.run.path, evaluation, training.table, was_finished=finished)


def _train_with_effort(
    settings: Settings,
    run: RunFolder,
    table: LabelTable | None,
    watch: Watch,
    *,
    fresh: bool,
) -> Run:
    """Train what the effort asks for, each in a folder of its own, and keep the best."""
    runs: list[Run] = []

    def begin(chosen: Settings, folder: Path, told: Watch) -> None:
        read = runs[0].table if runs else table
        done = train(chosen, folder, table=read, watch=told, fresh=fresh)
        if done is not None:
            runs.append(done)
        run.publish()

    with run.lock():
        if fresh:
            run.clear()
        else:
            run.fetch()
        if run.settings_path.exists() and not run.trials.exists():
            raise SettingsError(
                f"{run.address} was trained without this effort; choose another folder with -o, "
                "or start over with --fresh"
            )
        run.claim()
        evaluation = tried(settings, run, begin, watch)
    finished = all(one.was_finished for one in runs)
    return Run(run.path, evaluation, runs[0].table, was_finished=finished)


@contextmanager
def _opened(training: Training, *, fresh: bool) -> Iterator[bool]:
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

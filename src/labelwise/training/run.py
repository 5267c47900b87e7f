"""One run from settings to a deployable, evaluated model, in a folder it can be resumed from."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from labelwise.data import LabelTable
from labelwise.errors import SettingsError
from labelwise.evaluate import Evaluation
from labelwise.models.run_folder import RunFolder
from labelwise.system.distributed import rank, value_of_first, wait_for_all
from labelwise.system.progress import Silent, Watch
from labelwise.training.effort import tried
from labelwise.training.execution import fastest_convolutions
from labelwise.training.finish import finish, finish_again
from labelwise.training.folder import opened
from labelwise.training.loggers import log_history
from labelwise.training.loop import fit
from labelwise.training.prepare import Training, check_names, prepare
from labelwise.training.processes import errors_told_by_the_first, launch
from labelwise.training.settings import Settings
from labelwise.training.solved_head import solve_head

__all__ = ["Run", "train"]


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
    with opened(training, fresh=fresh) if first else nullcontext(False) as changed:
        wait_for_all()
        if value_of_first(training.run.is_finished, training.device):
            finished, evaluation = True, None
            if first:
                log_history(training.run, training.settings)
                evaluation = finish_again(training) if changed else training.run.evaluation
        else:
            with fastest_convolutions():
                model = solve_head(training)
                if model is None:
                    model = fit(training)
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

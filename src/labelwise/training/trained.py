"""A network, or a head that has no closed form, from its training to its evaluation, by torch."""

import os
from contextlib import nullcontext
from dataclasses import replace

from labelwise.base.arrays import to_numpy
from labelwise.base.distributed import rank, value_of_first, wait_for_all
from labelwise.base.progress import Silent, Watch
from labelwise.decide import Rule
from labelwise.evaluation import Evaluation
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Link
from labelwise.models.run_folder import RunFolder
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.training import checkpoint
from labelwise.training.data import Data
from labelwise.training.execution import errors_told_by_the_first, kernels, launch
from labelwise.training.finish import Finish, Promises, Save, finish_again_needed
from labelwise.training.loggers import log_history
from labelwise.training.loop import Loop
from labelwise.training.prepare import Training, prepare
from labelwise.training.settings import Settings
from labelwise.training.solved import contents_of, solved_run

Done = tuple[Evaluation, LabelTable, bool]


def finish(training: Training, model: Model) -> Evaluation | None:
    """Write predictions, evaluation and model to the run's folder; None in helper processes."""
    inferred = {name: training.inferred(name, model) for name in training.splits}
    if not training.is_first:
        return None
    own = training.objective.final_link(inferred["train"].logits, *training.targets("train"))
    predictions = {}
    for name, table in training.splits.items():
        labels, observed = table.targets()
        logits, names = to_numpy(inferred[name].logits), table.space.names
        predictions[name] = Predictions(
            table.ids, logits, labels, observed, names, name, own, table.group
        )
        predictions[name].save(training.run.predictions_path(name))
    looks = {
        name: split.looks.numpy() for name, split in inferred.items() if split.looks is not None
    }
    if looks:
        features = isinstance(training.splits["train"].images, FeatureRows)
        copies = (
            HeldOutCopies.among_features(looks)
            if features
            else HeldOutCopies.among(training.splits, looks)
        )
        copies.save(training.run.path)
    save = _saved(training, model.cpu())
    return Finish(training, predictions, own).measured(save)


def finish_again(training: Training) -> Evaluation:
    """Fit link and rule once more on the saved predictions, and measure again; no training."""
    run, predictions = training.run, {}
    for name in run.splits:
        rows, table = run.predictions(name), training.splits.get(name)
        if rows.group is None and table is not None and list(rows.ids) == list(table.ids):
            rows = replace(rows, group=table.group)  # runs used to save predictions without
        predictions[name] = rows
    save = _saved(training, Predictor.load(run.path).model)
    return Finish(training, predictions, predictions["train"].link).measured(save)


def _saved(training: Training, model: Model) -> Save:
    """Return what writes the model with a link and a rule."""

    def save(link: Link | None, rule: Rule, promises: Promises) -> None:
        whole = model
        if training.frozen is not None and model.backbone.name == "identity":
            whole = training.frozen.deployed(model)
        parts = (whole, training.head, training.table.space, link, rule, training.settings.method)
        Predictor(*parts, promises, training.taxonomy).save(training.run.path)

    return save


def train_network(
    settings: Settings,
    run: RunFolder,
    watch: Watch | None,
    *,
    table: LabelTable | None,
    data: Data | None,
    fresh: bool,
) -> Done | None:
    """Train, and return the figures, the table and whether the run was finished before.

    None in helper processes.
    """
    if settings.deterministic:
        # Lets cuBLAS compute the same sums each time; it reads this when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = launch(settings.hardware)
    if rank() > 0 or watch is None:
        watch = Silent()
    with errors_told_by_the_first():
        if rank() == 0 and not fresh:
            run.fetch()
        training = prepare(settings, run, device, watch, table=table, data=data, fresh=fresh)
        if isinstance(training, Training):
            return _fit_and_finish(training, fresh=fresh)
        if rank() > 0:
            return None
        facts = contents_of(run) or checkpoint.latest_facts(run.checkpoint)  # of 0.3
        with kernels(deterministic=settings.deterministic):
            return solved_run(training, facts, fresh=fresh)


def _fit_and_finish(training: Training, *, fresh: bool) -> Done | None:
    run, settings, first = training.run, training.settings, training.is_first
    changed, evaluation = False, None
    with run.lock() if first else nullcontext():
        if first:
            facts = checkpoint.latest_facts(run.checkpoint)
            changed = finish_again_needed(training, facts, fresh=fresh)
            run.claim()
            if not run.is_finished:
                settings.save(run.settings_path)
                run.publish()
        wait_for_all()
        finished = value_of_first(run.is_finished, training.device)
        if not finished:
            with kernels(deterministic=settings.deterministic):
                evaluation = finish(training, Loop(training).run())
        elif first:
            log_history(run, settings)
            evaluation = finish_again(training) if changed else run.evaluation
        if first:
            if finished:  # last: a command that is stopped before this finishes it again
                settings.save(run.settings_path)
            checkpoint.keep_newest(run.checkpoint)
            run.publish()
    if evaluation is None:
        return None
    return evaluation, training.table, finished

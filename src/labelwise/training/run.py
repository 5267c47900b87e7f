"""One run from settings to a deployable, evaluated model, in a folder that can be gone on with."""

from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.data import LabelTable, load
from labelwise.errors import SettingsError
from labelwise.evaluate import Evaluation
from labelwise.objectives import Objective
from labelwise.predictor import Model
from labelwise.training import checkpoint
from labelwise.training import folder as run_folder
from labelwise.training.build import (
    build_model,
    build_objective,
    check_names,
    divide,
    fingerprint,
    hint_at_photos,
    start_at_priors,
)
from labelwise.training.choose import with_chosen_method
from labelwise.training.ema import Average
from labelwise.training.finish import dense_targets, finish
from labelwise.training.inference import infer
from labelwise.training.launch import autocast_type, fastest_convolutions, make_fabric
from labelwise.training.loader import Loader
from labelwise.training.loop import Loop, Validation
from labelwise.training.optimizer import make_optimizer
from labelwise.training.progress import Silent, Watch
from labelwise.training.settings import Settings
from labelwise.training.start import start_from
from labelwise.training.state import Position, TrainingState
from labelwise.training.step import compiles, make_loss
from labelwise.training.validation import VALIDATION_METRICS, validation_figures

__all__ = ["Run", "train"]

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its evaluation, and whether this call had anything to do."""

    folder: Path
    evaluation: Evaluation
    table: LabelTable
    was_finished: bool = False


def train(
    settings: Settings,
    folder: Path,
    *,
    table: LabelTable | None = None,
    watch: Watch | None = None,
    fresh: bool = False,
) -> Run | None:
    """Train, or go on training, and return the finished run; None in helper processes.

    Ctrl-C stops between two steps with a checkpoint written, and raises KeyboardInterrupt.
    """
    check_names(settings)
    hardware = settings.hardware
    fabric = make_fabric(
        accelerator=hardware.accelerator, devices=hardware.devices, precision=settings.precision
    )
    if not fabric.is_global_zero or watch is None:
        watch = Silent()
    if settings.precision == "bf16" and not autocast_type("bf16", fabric.device.type):
        watch.say("this processor does not compute bf16: training in 32 bits")
    table = table or load(settings.data, **settings.data_options)
    splits = divide(table)
    settings, chosen = with_chosen_method(settings, splits["train"])
    if chosen:
        watch.say(chosen)
    torch.manual_seed(settings.seed)
    model, head = build_model(settings, table)
    hint = hint_at_photos(model.backbone, splits["train"].images)
    if hint:
        watch.say(hint)
    facts = splits["train"].facts()
    objective = build_objective(settings, facts, model, fabric.device)
    if settings.start is not None and (fresh or not checkpoint.is_there(folder / "checkpoint")):
        source = Path(settings.start)
        watch.say(start_from(source, model, objective, splits["train"], fingerprint(splits)))
    first = fabric.is_global_zero
    with run_folder.opened(folder, settings, fresh=fresh) if first else nullcontext():
        fabric.barrier()
        if run_folder.is_finished(folder):
            evaluation = Evaluation.load(folder / "evaluation.json")
            return Run(folder, evaluation, table, was_finished=True) if first else None
        if settings.start is None and settings.recipe.prior_bias:
            start_at_priors(model, objective, facts)
        with fastest_convolutions():
            trained = _fit(fabric, settings, folder, splits, model, objective, watch)
            logits = _predict_all(fabric, settings, splits, trained, watch)
        if not first:
            return None
        watch.say("fitting the calibrator and the rule on validation, measuring on test")
        evaluation = finish(settings, folder, splits, logits, trained, head, objective)
    return Run(folder, evaluation, table)


def _fit(
    fabric: Any,
    settings: Settings,
    folder: Path,
    splits: Mapping[str, LabelTable],
    model: Model,
    objective: Objective,
    watch: Watch,
) -> Model:
    recipe = settings.recipe
    model.to(device=fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective.to(fabric.device)
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    state = TrainingState(
        model,
        objective,
        make_optimizer(model, objective, recipe.optimizer),
        Average(model, recipe.ema) if recipe.ema else None,
        Position(),
        fingerprint(splits),
    )
    steps = recipe.epochs * max(1, len(splits["train"]) // settings.batch_size)
    compiled = compiles(settings.hardware, fabric.device, fabric.world_size, steps)
    if compiled:
        torch.compiler.reset()  # a process that trains many models would reach dynamo's limit
    parallel: nn.Module = fabric.strategy.setup_module(model) if fabric.world_size > 1 else model
    loss = make_loss(
        parallel,
        objective,
        precision=autocast_type(settings.precision, fabric.device.type),
        compiled=compiled,
    )
    torch.manual_seed(settings.seed + 1 + fabric.global_rank)  # dropout differs between processes
    if state.restore(folder / "checkpoint", fabric.global_rank) and not state.position.done:
        watch.say(
            f"going on from epoch {state.position.epoch + 1}, batch {state.position.batch + 1}"
        )
    validation = None
    if "val" in splits:
        validation = _validation(fabric, settings, splits["val"], model, objective)
    loop = Loop(
        fabric,
        parallel,
        loss,
        state,
        _loader(fabric, settings, splits["train"], model, train=True),
        recipe,
        folder=folder,
        watch=watch,
        validation=validation,
    )
    return loop.run()


def _validation(
    fabric: Any, settings: Settings, table: LabelTable, model: Model, objective: Objective
) -> Validation:
    metric = settings.recipe.metric
    labels, observed = dense_targets(table)
    loader = _loader(fabric, settings, table, model)

    def measure(model: Model) -> dict[str, float | None]:
        logits = infer(fabric, model, loader, len(table))
        return validation_figures(logits, labels, observed, deepcopy(objective.link))

    return Validation(measure, metric, VALIDATION_METRICS[metric])


def _predict_all(
    fabric: Any,
    settings: Settings,
    splits: Mapping[str, LabelTable],
    model: Model,
    watch: Watch,
) -> dict[str, Tensor]:
    """Return the logits of every split under the deployed weights, in full precision."""
    return {
        name: infer(
            fabric,
            model,
            _loader(fabric, settings, table, model),
            len(table),
            full_precision=True,
            watch=watch,
            task=f"predicting {name}",
        )
        for name, table in splits.items()
    }


def _loader(
    fabric: Any, settings: Settings, table: LabelTable, model: Model, *, train: bool = False
) -> Loader:
    size, world = settings.batch_size, fabric.world_size
    if size % world:
        raise SettingsError(f"batch_size must be a multiple of {world} devices, got {size}")
    return Loader(
        table,
        model.backbone.transform,
        batch_size=size // world if train else EVALUATION_BATCH,
        device=fabric.device,
        seed=settings.seed,
        augment=settings.augment if train else "none",
        shuffle=train,
        drop_last=train and len(table) >= size,
        workers=settings.hardware.workers,
        rank=fabric.global_rank,
        world=world,
    )

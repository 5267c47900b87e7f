"""What a program calls: train a model, open the run of an earlier one."""

import re
from pathlib import Path
from typing import Any, Literal

from labelwise.data import LabelTable
from labelwise.errors import CheckpointError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.pictures.shown import shown_images
from labelwise.report import choose_examples, write_report
from labelwise.report.explain import model_with_attention
from labelwise.system.progress import Silent, make_watch
from labelwise.training.run import Run
from labelwise.training.run import train as train_in
from labelwise.training.settings import SHORT_NAMES, Settings, read_settings


def train(
    data: str | Path | LabelTable,
    folder: str | Path | None = None,
    *,
    method: str = "auto",
    progress: bool = True,
    fresh: bool = False,
    engine: Literal["local", "ray"] = "local",
    **settings: Any,
) -> RunFolder:
    """Train a model, calibrate it, measure it, write its report; return the finished run.

    ``data`` is what :func:`labelwise.load` reads, or a table. ``settings`` are those of the
    command line (``epochs=10``, ``backbone="resnet18"``, ``rule="best-f"``) and of the YAML file
    (``recipe={"ema": 0.999}``). The same call on the same folder goes on where it was stopped,
    and returns at once if the run is finished. Of a run that is kept in a bucket, a copy is
    returned. ``engine="ray"`` trains by ``workers`` processes of a Ray cluster.
    """
    table = data if isinstance(data, LabelTable) else None
    flags = {SHORT_NAMES.get(name, name): value for name, value in settings.items()}
    if engine not in ("local", "ray"):
        raise SettingsError(f"engine must be 'local' or 'ray', got {engine!r}")
    if engine == "ray" and table is not None:
        raise SettingsError(
            "with engine='ray' every worker reads the data: give where they are, not a table"
        )
    on_ray = flags.pop(SHORT_NAMES["workers"], 1) if engine == "ray" else None
    source = table.name if table is not None else str(data)
    resolved = read_settings(None, flags | {"data": source, "method": method})
    place = folder if folder is not None else default_folder(resolved)
    watch = make_watch() if progress else Silent()
    with RunFolder.working_in(place) as run:
        if on_ray is None:
            done = train_in(resolved, run, table=table, watch=watch, fresh=fresh)
        else:
            from labelwise.shards.ray_training import RayTraining

            done = RayTraining(on_ray)(resolved, run, watch, fresh=fresh)
        if done is not None:  # None in the helper processes of a run on several devices
            report_run(done)
            log_trained_model(run, resolved)
            run.publish()
    return RunFolder(fetched_run(place)) if done is not None else run


def load_run(folder: str | Path) -> RunFolder:
    """Return the run in a folder or a bucket: its settings, figures, predictions and model."""
    run = RunFolder(fetched_run(folder))
    if not run.is_finished:
        begun = (
            "was not finished; train again to go on"
            if run.settings_path.exists()
            else ("is not the folder of a run")
        )
        raise CheckpointError(f"{folder} {begun}")
    return run


def report_run(run: Run, *, command: str | None = None) -> Path:
    """Write ``report.html`` into the run's folder unless it is there; return its path."""
    files = RunFolder(run.folder)
    if run.was_finished and files.report.exists():
        return files.report
    predictions = files.predictions(run.evaluation.data.split or "test")
    link = files.spec.made_link
    model = model_with_attention(files)
    examples = (
        ()
        if link is None
        else choose_examples(
            predictions,
            link,
            shown_images(run.table.images, files.spec.transform),
            predictor=model,
        )
    )
    return write_report(
        run.evaluation,
        files.report,
        title=f"{run.table.name}: {files.name}",
        examples=examples,
        history=files.journal.read(),
        origin=origin_of(files, command=command),
    )


def log_trained_model(run: RunFolder, settings: Settings) -> None:
    """Log the model of a finished run to MLflow, if that is one of its loggers."""
    if "mlflow" in settings.hardware.loggers:
        from labelwise.contrib.mlflow import log_model
        from labelwise.training.loggers import log_once

        log_once(run, log_model)


def origin_of(run: RunFolder, *, command: str | None = None) -> dict[str, str]:
    """Return what a run was made from, for its report: method, network, data and command."""
    if not run.settings_path.exists():  # a model that was copied out of its run
        return {} if command is None else {"Command": command}
    settings = read_settings(run.settings_path, {})
    options = "".join(f", {name} {value}" for name, value in settings.options.items())
    weights = f"the run {settings.start}" if settings.start else settings.weights
    origin = {
        "Method": f"{settings.method}{options}",
        "Backbone": settings.backbone,
        "Weights": weights or "none: trained from random values",
        "Data": settings.data,
        "Seed": str(settings.seed),
    }
    return origin if command is None else origin | {"Command": command}


def default_folder(settings: Settings) -> Path:
    """Return where a run is written if nothing else is said: ``runs/DATA-METHOD``."""
    stem = Path(settings.data).stem or "run"
    return Path("runs") / re.sub(r"[^\w.+-]+", "-", f"{stem}-{settings.method}")

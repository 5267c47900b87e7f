"""What a program calls: train, load_run, predict, evaluate, calibrate, export.

``evaluate`` and ``calibrate`` work on arrays and never import torch.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise import calibration
from labelwise.base.arrays import to_numpy
from labelwise.base.files import replacing
from labelwise.base.progress import Silent, Watch, make_watch
from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.evaluation import evaluate as evaluate_predictions
from labelwise.links import Link, Sigmoid
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.predictions import Predictions

if TYPE_CHECKING:
    from labelwise.models import Scored
    from labelwise.tables import LabelTable
    from labelwise.training.data import Data
    from labelwise.training.run import Run
    from labelwise.training.settings import Settings


class LoadedRun(RunFolder):
    """The folder of a run whose model can be exported."""

    def export(self, path: str | Path, **options: Any) -> Path:
        """Write the model as an ONNX file that gives the same answers; return its path."""
        if self.is_solved:
            from labelwise.models.solved import SolvedModel

            with replacing(Path(path)) as temporary:
                temporary.write_bytes(SolvedModel.load(self.path).content(**options))
            return Path(path)
        from labelwise.exports.onnx_file import export_onnx, pictures_of
        from labelwise.learn.predictor import Predictor

        data, count = options.pop("data", None), options.pop("pictures", 16)
        export_onnx(
            Predictor.load(self.path),
            self.spec,
            Path(path),
            *pictures_of(self, data, count),
            **options,
        )
        return Path(path)


def train(
    data: "str | Path | LabelTable",
    folder: str | Path | None = None,
    *,
    method: str = "auto",
    progress: bool = True,
    fresh: bool = False,
    engine: Literal["local", "ray"] = "local",
    **settings: Any,
) -> LoadedRun:
    """Train a model, calibrate it, measure it, write its report; return the finished run.

    ``data`` is what :func:`labelwise.load` reads, or a table. ``settings`` are those of the
    command line (``epochs=10``, ``backbone="resnet18"``, ``rule="best-f"``) and of the YAML file
    (``recipe={"ema": 0.999}``). The same call on the same folder goes on where it was stopped,
    and returns at once if the run is finished. Of a run that is kept in a bucket, a copy is
    returned. ``engine="ray"`` trains by ``workers`` processes of a Ray cluster.
    """
    from labelwise.tables import LabelTable
    from labelwise.training.settings import SHORT_NAMES, read_settings

    table = data if isinstance(data, LabelTable) else None
    flags = {SHORT_NAMES.get(name, name): value for name, value in settings.items()}
    if engine not in ("local", "ray"):
        raise SettingsError(f"engine must be 'local' or 'ray', got {engine!r}")
    if engine == "ray" and table is not None:
        raise SettingsError(
            "with engine='ray' every worker reads the data: give where they are, not a table"
        )
    on_ray = flags.pop(SHORT_NAMES["workers"], 1) if engine == "ray" else None
    flags |= {"data": table.name if table is not None else str(data), "method": method}
    resolved = read_settings(None, flags)
    path = folder if folder is not None else default_folder(resolved)
    watch = make_watch() if progress else Silent()
    with LoadedRun.working_in(path) as run:
        done = trained(resolved, run, watch, fresh=fresh, on_ray=on_ray, table=table)
    return LoadedRun(fetched_run(path)) if done is not None else run


def trained(
    settings: "Settings",
    run: RunFolder,
    watch: Watch,
    *,
    fresh: bool,
    on_ray: int | None = None,
    table: "LabelTable | None" = None,
    data: "Data | None" = None,
    command: str | None = None,
) -> "Run | None":
    """Train here or on a Ray cluster; report, log, publish. None in helper processes."""
    from labelwise.report.runs import report_run
    from labelwise.training.run import train as train_in

    if on_ray is None:
        done = train_in(settings, run, table=table, data=data, watch=watch, fresh=fresh)
    else:
        from labelwise.shards.ray_cluster import RayTraining

        done = RayTraining(on_ray)(settings, run, watch, fresh=fresh)
    if done is not None:
        report_run(done, command=command)
        if "mlflow" in settings.hardware.loggers:
            from labelwise.contrib.mlflow import log_model
            from labelwise.training.loggers import log_once

            log_once(run, log_model)
        run.publish()
    return done


def load_run(folder: str | Path) -> LoadedRun:
    """Return the run in a folder or a bucket: its settings, figures, predictions and model."""
    run = LoadedRun(fetched_run(folder))
    if not run.is_finished:
        unfinished = "was not finished; train again to go on"
        is_run = run.settings_path.exists()
        raise CheckpointError(f"{folder} {unfinished if is_run else 'is not the folder of a run'}")
    return run


def predict(run: "str | Path | RunFolder", pictures: Any, **options: Any) -> "Scored":
    """Return the labels and probabilities that the model of a run gives to pictures.

    ``pictures``: a folder, paths, Pillow images, uint8 arrays (N, H, W, 3) or a batch of tensors.
    """
    return (run if isinstance(run, RunFolder) else load_run(run)).predict(pictures, **options)


def export(run: "str | Path | RunFolder", path: str | Path, **options: Any) -> Path:
    """Write the model of a run as an ONNX file that gives the same answers; return its path.

    The file is compared with the model on the run's own validation pictures before it is written.
    Options are those of ``labelwise export``: ``open_thresholds=True``, ``input="pixels"``.
    """
    folder = run.path if isinstance(run, RunFolder) else fetched_run(run)
    return load_run(folder).export(path, **options)


def evaluate(
    what: Any,
    labels: Any = None,
    rule: Any = None,
    *,
    observed: Any = None,
    names: Sequence[str] | None = None,
    logits: bool = False,
    **options: Any,
) -> Evaluation:
    """Return everything that can be measured: of a run, of predictions, or of arrays.

    ``evaluate(run)`` returns what the run measured on its test photos.
    ``evaluate(probs, y)`` takes arrays or data frames (N, K); NaN in ``y`` is an unknown label.
    Say ``logits=True`` if the first array holds logits. ``evaluate(predictions, link, rule)`` takes
    :class:`Predictions`. ``rule`` is 0.5 for arrays unless given.
    """
    from labelwise.decide import Threshold

    if isinstance(what, str | Path):
        what = load_run(what)
    if isinstance(what, RunFolder):
        return what.evaluation
    if isinstance(what, Predictions):
        return evaluate_predictions(what, what.link if labels is None else labels, rule, **options)
    rows = as_predictions(what, labels, observed=observed, names=names, logits=logits)
    return evaluate_predictions(
        rows, rows.link, Threshold(0.5) if rule is None else rule, **options
    )


def as_predictions(
    scores: object,
    labels: object,
    *,
    observed: object = None,
    names: Sequence[str] | None = None,
    logits: bool = False,
) -> Predictions:
    """Return probabilities or logits (N, K) with their labels, as arrays or data frames."""
    if labels is None:
        raise DataError("Give the true labels too, as a second array of the same shape.")
    columns = names if names is not None else getattr(scores, "columns", None)
    values, truth = _matrix(scores), _matrix(labels)
    if values.shape != truth.shape:
        got = f"{values.shape} and {truth.shape}"
        raise DataError(f"Scores and labels must have the same shape, got {got}.")
    known = ~np.isnan(truth) if observed is None else _matrix(observed).astype(bool)
    if not logits:
        if values.min(initial=0.0) < 0 or values.max(initial=1.0) > 1:
            raise DataError(
                "These scores are not probabilities: some are below 0 or above 1. Say logits=True "
                "if they are logits of a sigmoid."
            )
        with np.errstate(divide="ignore"):
            values = np.log(values) - np.log1p(-values)
    index = getattr(scores, "index", None)  # of a data frame; lists have a method of that name
    rows = range(len(values)) if index is None or callable(index) else index
    return Predictions(
        ids=[str(row) for row in rows],
        logits=values,
        labels=np.where(known, truth, 0.0),
        observed=None if known.all() else known,
        names=tuple(map(str, columns if columns is not None else range(values.shape[1]))),
        split="",
        link=Sigmoid(),
    )


def _matrix(given: Any) -> np.ndarray:
    """Return an array, a tensor or a data frame as float64 (N, K); one column stays one label."""
    values = np.asarray(to_numpy(getattr(given, "to_numpy", lambda: given)()), np.float64)
    return values[:, None] if values.ndim == 1 else values


class Calibrate:
    """``calibrate(logits, labels)``; and each calibrator by name, as ``calibrate.platt(...)``."""

    def __call__(
        self,
        logits: object,
        labels: object = None,
        link: Link | None = None,
        *,
        method: str = "auto",
        observed: object = None,
    ) -> Link:
        """Return the link that turns logits into calibrated probabilities: ``link(new_logits)``.

        Logits are those of a sigmoid unless ``link`` is given. ``auto`` keeps the link where no
        calibrator is better on held-out rows.
        """
        if isinstance(logits, str | Path | RunFolder):
            raise DataError(
                "A run is calibrated when it is trained: load_run(folder).predict(photos) gives "
                "calibrated probabilities. For scores: labelwise.calibrate(logits, labels)."
            )
        own = Sigmoid() if link is None else link
        rows = as_predictions(logits, labels, observed=observed, logits=True)
        given = rows.logits, rows.labels, own, rows.observed
        fitted, _, _ = calibration.fit_calibrator(method, *given)
        return own if fitted is None else fitted

    if TYPE_CHECKING:  # else found where they are asked for
        auto = staticmethod(calibration.auto)
        beta = staticmethod(calibration.beta)
        expect_zero_share = staticmethod(calibration.expect_zero_share)
        few_labels = staticmethod(calibration.few_labels)
        histogram = staticmethod(calibration.histogram)
        isotonic = staticmethod(calibration.isotonic)
        platt = staticmethod(calibration.platt)
        temperature = staticmethod(calibration.temperature)
        within_groups = staticmethod(calibration.within_groups)
    else:

        def __getattr__(self, name: str) -> object:
            return getattr(calibration, name)

    def __dir__(self) -> list[str]:
        return calibration.__all__


calibrate = Calibrate()


def default_folder(settings: "Settings") -> Path:
    """Return where a run is written if nothing else is said: ``runs/DATA-METHOD``."""
    stem = Path(settings.data).stem or "run"
    return Path("runs") / re.sub(r"[^\w.+-]+", "-", f"{stem}-{settings.method}")

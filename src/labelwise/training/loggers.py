"""Loggers: other places that the records of a run's journal go to.

    tensorboard    RUN/tensorboard, for ``tensorboard --logdir RUN``
    wandb          Weights & Biases; WANDB_PROJECT, WANDB_MODE=offline and the like are its own
    mlflow         a run of MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME are its own

A run that goes on cuts its journal back to the checkpoint. TensorBoard's files are then written
again from the journal. Weights & Biases and MLflow take nothing back: records that they have are
not sent again.
"""

import hashlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from labelwise.base.files import replacing, write_error
from labelwise.base.text import one_line
from labelwise.errors import SettingsError, TrainingError
from labelwise.models.run_folder import RunFolder
from labelwise.training.settings import Settings, flattened

Record = Mapping[str, float | None]


class Logger(ABC):
    """Gets every record, in order, of which the first ``known`` are there already."""

    known = 0

    @abstractmethod
    def write(self, record: Record, number: int) -> None:
        """Write a record and its number in the journal."""

    @abstractmethod
    def close(self, *, whole: bool) -> None:
        """End; ``whole``: the training went to its end."""


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record by name, without its step and what is undefined."""
    numbers = {name: float(value) for name, value in record.items() if value is not None}
    return {name: value for name, value in numbers.items() if name != "step" and isfinite(value)}


LONGEST_VALUE = 500  # of a parameter; longer ones are refused by older servers
PARAMETERS_AT_ONCE = 100
NUMBER = "record"


class MLflow(Logger):
    """A run of MLflow: figures as metrics, at the step of their record, settings as parameters."""

    def __init__(self, run: RunFolder, settings: Settings) -> None:
        try:
            import mlflow
            from mlflow.exceptions import MlflowException

            self._client: Any = mlflow.MlflowClient()
            try:
                known = _id_file(run).read_text(encoding="utf-8").strip()
                self._client.update_run(known, status="RUNNING")
            except (FileNotFoundError, MlflowException):
                _id_file(run).unlink(missing_ok=True)  # of another server, or removed there
            self._id = _kept(_id_file(run), lambda: _begun(self._client, run, settings))
            self.known = len(self._client.get_metric_history(self._id, NUMBER))
        except Exception as error:  # of its own kinds, and of the network's
            raise TrainingError(
                f"MLflow could not be started ({one_line(str(error))}); set MLFLOW_TRACKING_URI to "
                "a server or a database, or leave `--log mlflow` out"
            ) from None

    def write(self, record: Record, number: int) -> None:
        from mlflow.entities import Metric

        now, numbers = int(1000 * time.time()), {**scalars(record), NUMBER: float(number)}
        metrics = [Metric(name, value, now, record["step"]) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics)

    def close(self, *, whole: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if whole else "KILLED")


def log_once(run: RunFolder, log_model: Callable[[Path], object]) -> None:
    """Log the model of a finished run to the run of MLflow that it was logged to."""
    import mlflow

    sent = run.path / "mlflow" / "model.txt"
    digest = hashlib.sha256((run.path / "model.json").read_bytes()).hexdigest()
    if sent.exists() and sent.read_text(encoding="utf-8") == digest:
        return
    with mlflow.start_run(run_id=_id_file(run).read_text(encoding="utf-8").strip()):
        log_model(run.path)
    with replacing(sent) as temporary:
        temporary.write_text(digest, encoding="utf-8")


def _id_file(run: RunFolder) -> Path:
    return run.path / "mlflow" / "id.txt"


def _begun(client: Any, run: RunFolder, settings: Settings) -> str:
    from mlflow.entities import Param

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "labelwise")
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    made: str = client.create_run(experiment, run_name=run.name).info.run_id
    values = flattened(settings.model_dump(mode="json"))
    parameters = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in values.items()]
    for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
        client.log_batch(made, params=parameters[start : start + PARAMETERS_AT_ONCE])
    return made


class TensorBoard(Logger):
    """Event files that TensorBoard shows: one scalar per name, at the step of its record."""

    def __init__(self, run: RunFolder, settings: Settings) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.path / "tensorboard"
        try:
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink()
            # A TensorBoard that is open has read the old files: purge_step lets it forget them.
            self._writer = SummaryWriter(str(folder), purge_step=0, flush_secs=10)
        except OSError as error:
            raise write_error(folder, error) from error

    def write(self, record: Record, number: int) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self, *, whole: bool) -> None:
        self._writer.close()


class WeightsAndBiases(Logger):
    """A run of Weights & Biases, whose step is the number of the record in the journal."""

    def __init__(self, run: RunFolder, settings: Settings) -> None:
        import wandb

        offline = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "labelwise"),
                id=_kept(run.path / "wandb" / "id.txt", lambda: secrets.token_hex(4)),
                name=run.name,
                dir=run.path,
                config=settings.model_dump(mode="json"),
                resume=None if offline else "allow",
                settings=wandb.Settings(console="off", silent=True),
            )
        except Exception as error:  # of its own kinds, and of the network's
            raise TrainingError(
                f"Weights & Biases could not be started ({one_line(str(error))}); "
                "log in with `wandb login`, set WANDB_MODE=offline, or leave `--log wandb` out"
            ) from None
        self.known = int(self._run.step)

    def write(self, record: Record, number: int) -> None:
        self._run.log({**scalars(record), "step": record["step"]}, step=number)

    def close(self, *, whole: bool) -> None:
        self._run.finish(exit_code=0 if whole else 1)


LOGGERS: dict[str, Callable[[RunFolder, Settings], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
NEEDED = {  # packages, and how they are installed
    "tensorboard": (("tensorboard",), "'labelwise[log]'"),
    "wandb": (("wandb",), "'labelwise[log]'"),
    "mlflow": (("mlflow", "pandas"), "mlflow"),
}


def check_loggers(names: Sequence[str]) -> None:
    """Raise if the package of a logger is not installed."""
    for name in names:
        packages, installed_by = NEEDED[name]
        for package in packages:
            if find_spec(package) is None:
                raise SettingsError(f"--log {name} needs {package}: pip install {installed_by}")


@contextmanager
def opened_loggers(
    run: RunFolder, settings: Settings, is_first: bool
) -> Iterator[Callable[[Record], None]]:
    """Yield what tells the loggers of the settings a record; they know those in the journal."""
    loggers: list[Logger] = []
    numbers, whole = count(), False

    def write(record: Record) -> None:
        number = next(numbers)
        for logger in loggers:
            if number >= logger.known:
                logger.write(record, number)

    try:
        if settings.hardware.loggers and is_first:
            history = run.journal.read()
            for name in settings.hardware.loggers:  # those that began are closed if one does not
                loggers.append(LOGGERS[name](run, settings))
            for record in history:
                write(record)
        yield write
        whole = True
    finally:
        for logger in loggers:
            logger.close(whole=whole)


def log_history(run: RunFolder, settings: Settings) -> None:
    """Tell the loggers of the settings the journal of a training that is over."""
    with opened_loggers(run, settings, is_first=True):
        pass


def _kept(file: Path, make: Callable[[], str]) -> str:
    if not file.exists():
        with replacing(file) as temporary:
            temporary.write_text(make(), encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()

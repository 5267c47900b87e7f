"""The journal of a run as metrics of MLflow, and its settings as parameters.

MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and the like are MLflow's own. The run folder keeps the
id of MLflow's run, so that a resumed run goes on there; the metric ``record`` is the number of each
record, so that none is sent twice.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labelwise.errors import TrainingError
from labelwise.models.run_folder import RunFolder
from labelwise.system.files import replacing
from labelwise.system.text import one_line
from labelwise.training.logger import Logger, Record, scalars
from labelwise.training.settings import Settings, flattened

LONGEST_VALUE = 500  # of a parameter; longer ones are refused by older servers
PARAMETERS_AT_ONCE = 100
NUMBER = "record"


class MLflow(Logger):
    """A run of MLflow: figures as metrics, at the step of their record."""

    def __init__(self, run: RunFolder, settings: Settings, history: Sequence[Record]) -> None:
        try:
            import mlflow

            self._client: Any = mlflow.MlflowClient()
            self._id = _resumed(self._client, run) or _begun(self._client, run, settings)
            self._known = len(self._client.get_metric_history(self._id, NUMBER))
        except Exception as error:  # of its own kinds, and of the network's
            raise TrainingError(
                f"MLflow could not be started ({one_line(str(error))}); set MLFLOW_TRACKING_URI to "
                "a server or a database, or leave `--log mlflow` out"
            ) from None
        self._number = 0
        for record in history:
            self.write(record)

    def write(self, record: Record) -> None:
        if self._number >= self._known:
            from mlflow.entities import Metric

            now, step = int(1000 * time.time()), record["step"]
            numbers = {**scalars(record), NUMBER: float(self._number)}
            metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
            self._client.log_batch(self._id, metrics)
        self._number += 1

    def close(self, *, whole: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if whole else "KILLED")


def log_once(run: RunFolder, log_model: Callable[[Path], Any]) -> None:
    """Log the model of a finished run to the run of MLflow that it was logged to.

    A model that stands there already, with the same weights, link and rule, is not sent again.
    """
    import mlflow

    sent = run.mlflow / "model.txt"
    digest = hashlib.sha256((run.path / "model.json").read_bytes()).hexdigest()
    if sent.exists() and sent.read_text(encoding="utf-8") == digest:
        return
    with mlflow.start_run(run_id=_id_file(run).read_text(encoding="utf-8").strip()):
        log_model(run.path)
    with replacing(sent) as temporary:
        temporary.write_text(digest, encoding="utf-8")


def _id_file(run: RunFolder) -> Path:
    return run.mlflow / "id.txt"


def _resumed(client: Any, run: RunFolder) -> str | None:
    """Return the id of MLflow's run where it is known and still there."""
    from mlflow.exceptions import MlflowException

    if not _id_file(run).exists():
        return None
    known = _id_file(run).read_text(encoding="utf-8").strip()
    try:
        client.update_run(known, status="RUNNING")
    except MlflowException:  # of another server, or removed there
        return None
    return known


def _begun(client: Any, run: RunFolder, settings: Settings) -> str:
    """Return the id of a new run of MLflow, told the settings."""
    from mlflow.entities import Param

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "labelwise")
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id
    made: str = client.create_run(experiment, run_name=run.name).info.run_id
    values = flattened(settings.model_dump(mode="json"))
    parameters = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in values.items()]
    for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
        client.log_batch(made, params=parameters[start : start + PARAMETERS_AT_ONCE])
    with replacing(_id_file(run)) as temporary:
        temporary.write_text(made, encoding="utf-8")
    return made

"""MLflow: a run's model as a ``pyfunc`` with its signature, and no pickle in it.

    labelwise.contrib.mlflow.save_model("runs/photos", "mlflow-model")
    mlflow.pyfunc.load_model("mlflow-model").predict(pandas.DataFrame({"image": [data]}))

The column ``image`` holds encoded pictures (bytes). The answer has a column of probabilities per
label, named by it, and ``decided``: the labels that the model's rule gives, as JSON. The saved
folder holds the model folder itself, which every verb of labelwise takes, and a short program that
loads it by the installed labelwise.
"""

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labelwise import __version__
from labelwise.errors import DataError, SettingsError
from labelwise.models import DeployedModel, load_model, score
from labelwise.models.loading import model_files
from labelwise.models.run_folder import fetched_run
from labelwise.models.scoring import Scored, raise_failure, require_probabilities
from labelwise.pictures import as_images

IMAGE, DECIDED = "image", "decided"
PROGRAM = """\
import labelwise.contrib.mlflow as bridge
import mlflow


class Tagger(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.model = bridge.load_model(context.artifacts["model"])

    def predict(self, context, model_input, params=None):
        return bridge.answers_of(self.model, model_input)


mlflow.models.set_model(Tagger())
"""


def save_model(run: str | Path, path: str | Path, **options: Any) -> None:
    """Write the model of a run as an MLflow model; ``options`` are those of mlflow.pyfunc."""
    pyfunc = _mlflow().pyfunc
    with TemporaryDirectory() as scratch:
        pyfunc.save_model(str(path), **_parts(run, Path(scratch)), **options)


def log_model(run: str | Path, name: str = "model", **options: Any) -> Any:
    """Log the model of a run to the active run of MLflow; return what mlflow.pyfunc returns."""
    pyfunc = _mlflow().pyfunc
    with TemporaryDirectory() as scratch:
        return pyfunc.log_model(name=name, **_parts(run, Path(scratch)), **options)


def answers_of(model: DeployedModel, table: Any) -> Any:
    """Return the answers (a pandas table) to a table with a column ``image``."""
    import pandas

    if not isinstance(table, pandas.DataFrame) or list(table.columns) != [IMAGE]:
        raise DataError(f"the input must be a pandas table with the one column {IMAGE!r}")
    parts = []
    for scored in score(model, as_images(list(table[IMAGE]))):
        raise_failure(scored)
        parts.append(scored)
    names = model.space.names
    if not parts:
        return pandas.DataFrame(columns=[*names, DECIDED])
    joined = Scored.join(parts)
    answers = pandas.DataFrame(joined.probs, table.index, list(names))
    answers[DECIDED] = [json.dumps(list(labels), ensure_ascii=False) for labels in joined.labels]
    return answers


def _parts(run: str | Path, scratch: Path) -> dict[str, object]:
    mlflow = _mlflow()
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    place = fetched_run(run, "model")
    model = load_model(place)
    require_probabilities(model)
    if DECIDED in model.space.names:
        raise SettingsError(f"a label may not be called {DECIDED!r} here: it names another column")
    if place.is_dir():
        folder = scratch / "model"
        folder.mkdir()
        for file in model_files(place):
            shutil.copy(file, folder / file.name)
        place = folder
    program = scratch / "labelwise_tagger.py"
    program.write_text(PROGRAM, encoding="utf-8")
    columns: Iterable[ColSpec] = [ColSpec(DataType.double, name) for name in model.space.names]
    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.binary, IMAGE)]),
        outputs=Schema([*columns, ColSpec(DataType.string, DECIDED)]),
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "python_model": str(program),
        "artifacts": {"model": str(place)},
        "signature": signature,
        "pip_requirements": [f"labelwise=={__version__}", f"mlflow=={mlflow.__version__}"],
        "metadata": {"labelwise": __version__, "python": version},
    }


def _mlflow() -> Any:
    try:
        import mlflow.pyfunc
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"this needs {error.name}; install it with: pip install mlflow"
        ) from None
    return mlflow

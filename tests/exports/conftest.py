"""The command line, in this process; a model and the file that was exported of it."""

import pytest
from export_samples import pictures, predictor, spec
from PIL import Image
from typed import must_run

from labelwise.decide import Threshold
from labelwise.exports.onnx_file import export_onnx
from labelwise.links import Sigmoid


@pytest.fixture
def run_verb():
    """Return a function that runs a verb that must succeed and returns what it printed."""
    return lambda *words: must_run(*words, catch_exceptions=False).output


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a model and its file, in a folder with three photos."""
    model = predictor(link=Sigmoid(), rule=Threshold((0.45, 0.5, 0.5, 0.5, 0.55)))
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    export_onnx(model, spec(model), path, pictures())
    for row, picture in enumerate(pictures(3).pixels):
        Image.fromarray(picture).save(path.parent / f"{row}.png")
    return model, path

"""Answers of a file without torch.

Oracle: the engine, which has torch, on the same file; of logits that are not finite, by hand.
"""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from export_samples import link_of_each_kind, pictures, predictor, spec
from onnx import numpy_helper
from PIL import Image
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.decide import Threshold
from labelwise.exports.onnx_file import export_onnx
from labelwise.links import Sigmoid
from labelwise.models.graph_file import sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.onnx_answers import NOT_FINITE, OnnxAnswers
from labelwise.models.scoring import score
from labelwise.pictures import PictureImages

WITHOUT_TORCH = """
import sys
for slow in ("torch", "labelwise.data", "pyarrow.compute"):
    sys.modules[slow] = None  # whoever imports it now gets an error
from labelwise.cli.app import app
app(sys.argv[1:], prog_name="labelwise")
"""


@pytest.fixture(scope="module", params=["sigmoid", "platt"])
def file(request, tmp_path_factory):
    """Return a file whose thresholds lie between its probabilities, and a folder of photos."""
    folder = tmp_path_factory.mktemp("export")
    model = predictor(link=link_of_each_kind()[request.param], rule=Threshold(0.5))
    (probs,) = (part.probs for part in score(model, pictures(6)))
    levels = probs.sort(dim=0).values[2:4].mean(dim=0)  # each label is given to some
    model = predictor(link=model.link, rule=Threshold(tuple(levels.tolist())))
    export_onnx(model, spec(model), folder / "model.onnx", pictures())
    (folder / "photos").mkdir()
    for row, picture in enumerate(pictures(6).pixels):
        Image.fromarray(picture).save(folder / "photos" / f"{row}.png")
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
    Image.fromarray(noise).save(folder / "photos" / "alpha.png")
    (folder / "photos" / "broken.jpg").write_bytes(b"no picture")
    return folder / "model.onnx", folder / "photos"


def photos_in(folder):
    return PictureImages(sorted(folder.iterdir()))


def test_answers_are_those_of_the_engine(file):
    path, photos = file
    images = photos_in(photos)
    found = list(OnnxAnswers.of(path).score(images))
    (part,) = score(OnnxModel.load(path), images)
    expected = list(part.answers())
    assert [one.error for one in found] == [one.error for one in expected]
    assert sum(one.error is not None for one in found) == 1
    assert [(one.row, one.id, one.labels) for one in found] == [
        (one.row, one.id, one.labels) for one in expected
    ]
    assert 0 < sum(len(one.labels) for one in found) < 5 * 7
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.probs, other.probs, atol=1e-6)


def test_predict_answers_without_torch_what_it_answers_with_it(file, tmp_path, monkeypatch):
    path, photos = file
    words = ["predict", str(path), str(photos)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words, "-o", str(tmp_path / "without.jsonl")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr  # one photo cannot be read
    assert "7 of 8 images predicted" in done.stdout
    monkeypatch.setattr(OnnxAnswers, "of", staticmethod(lambda path: None))
    with_torch = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "with.jsonl")])
    assert with_torch.exit_code == 1
    mine, other = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("without.jsonl", "with.jsonl")
    )
    assert [(one["path"], one.get("labels"), one.get("error")) for one in mine] == [
        (one["path"], one.get("labels"), one.get("error")) for one in other
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    model = predictor(link=Sigmoid())
    export_onnx(model, spec(model), folder / "model.onnx", pictures(1))
    return folder / "model.onnx"


def test_a_file_that_cannot_answer_so_is_left_to_the_engine(small, tmp_path):
    assert OnnxAnswers.of(small) is not None
    assert OnnxAnswers.of(tmp_path / "none.onnx") is None
    changed = tmp_path / "changed.onnx"
    changed.write_bytes(b"no model")
    assert OnnxAnswers.of(changed) is None
    content = bytearray(small.read_bytes())
    content[content.rindex(b"weights_sha256") + 20] ^= 1  # the graph still runs
    changed.write_bytes(content)
    assert OnnxAnswers.of(changed) is None
    for key, value in (("labels", '["one"]'), ("labels", "{"), ("input", "pixels")):
        model = onnx.load(small)
        for prop in model.metadata_props:
            prop.value = value if prop.key == key else prop.value
        changed.write_bytes(sealed(model))
        assert OnnxAnswers.of(changed) is None, (key, value)
    model = predictor(link=None)
    export_onnx(model, spec(model), changed, pictures(1))
    assert OnnxAnswers.of(changed) is None  # it only ranks


def test_logits_that_are_not_finite_are_an_error(small, tmp_path):
    model = onnx.load(small)
    (bias,) = [one for one in model.graph.initializer if one.name.endswith("classifier.bias")]
    values = numpy_helper.to_array(bias).copy()
    values[0] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    (tmp_path / "model.onnx").write_bytes(sealed(model))
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "photo.png")
    images = PictureImages([tmp_path / "photo.png"])
    (found,) = OnnxAnswers.of(tmp_path / "model.onnx").score(images)
    assert found.error == f"{found.id}: {NOT_FINITE}"
    assert (found.labels, found.probs) == ((), ())

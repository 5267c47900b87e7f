"""Programs of ExecuTorch. Oracle: the predictor, on the same pictures.

ExecuTorch pins packages that the development extras have in other versions, so it is not among
them; these tests run where it was installed beside (docs/export.md).
"""

import importlib.util

import numpy as np
import pytest
import torch
from export_samples import link_of_each_kind, pictures, predictor, spec
from PIL import Image

from labelwise.decide import ExpectedF, Threshold
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import torch_programs as executorch_program
from labelwise.exports.torch_programs import MOST, LoadedProgram, export_executorch
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages

LINK_SAMPLES = link_of_each_kind()
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))
needs_executorch = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="needs ExecuTorch"
)


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, run_verb, monkeypatch):
    monkeypatch.setattr(executorch_program, "find_spec", lambda name: None)
    predictor(link=Sigmoid(), rule=RULE).save(tmp_path / "run")
    call = ("export", tmp_path / "run", "--format", "executorch", "-o", tmp_path / "m.pte")
    with pytest.raises(SettingsError, match=r"needs the package 'executorch' .*docs/export\.md"):
        run_verb(*call, "--data", tmp_path)
    assert not (tmp_path / "m.pte").exists()


@needs_executorch
@pytest.mark.filterwarnings("ignore")  # of ExecuTorch, when it is imported
def test_a_program_takes_batches_and_answers_as_the_model(tmp_path):
    model = predictor(link=LINK_SAMPLES["platt"], rule=RULE, crop=None)
    path = tmp_path / "model.pte"
    size, parity = export_executorch(model, spec(model), path, pictures(3), range(3))
    assert size == path.stat().st_size
    assert (parity.pictures, parity.labels_end_to_end) == (3, 0)
    program = LoadedProgram(path.read_bytes())
    assert program.model["labels"] == list(model.space.names)
    assert program.model["link"]["kind"] == "platt"
    side = model.transform.size
    for count in (1, 5, MOST):
        pixels = np.random.default_rng(count).integers(0, 256, (count, side, side, 3), np.uint8)
        expected = model.predict(ArrayImages(pixels))
        found = program(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        torch.testing.assert_close(found["logits"], expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found["probability"].double(), expected.probs, atol=1e-6, rtol=0)
        assert torch.equal(found["label"], expected.sets)
        none = (1 - expected.probs).prod(1)
        torch.testing.assert_close(found["none"].double(), none, atol=1e-6, rtol=0)


@needs_executorch
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_kernel_is_refused_in_one_sentence(tmp_path):
    model = predictor(link=LINK_SAMPLES["isotonic"], rule=RULE)
    path = tmp_path / "model.pte"
    with pytest.raises(LabelwiseError, match=r"cannot lower .*searchsorted.*; use --format onnx"):
        export_executorch(model, spec(model), path, pictures(1), [0])
    assert not path.exists()


@needs_executorch
@pytest.mark.filterwarnings("ignore")
def test_a_program_that_differs_is_not_written(tmp_path, monkeypatch):
    model, wrong = (predictor(link=Sigmoid(), rule=RULE) for _ in range(2))
    with torch.no_grad():
        wrong.model.head.classifier.bias += 0.01
    right = executorch_program.picture_program
    monkeypatch.setattr(executorch_program, "picture_program", lambda _: right(wrong))
    path = tmp_path / "model.pte"
    with pytest.raises(LabelwiseError, match=r"logits of .* are 0\.01 apart, .*'forward'"):
        export_executorch(model, spec(model), path, pictures(1), [0])
    assert not path.exists()


@needs_executorch
@pytest.mark.filterwarnings("ignore")
def test_the_verb_writes_a_program(tmp_path, run_verb):
    model = predictor(rule=ExpectedF())  # it only ranks, so that its rule is not used
    model.save(tmp_path / "run")
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "a.png")
    call = ("export", tmp_path / "run", "--format", "executorch", "--data", tmp_path)
    printed = run_verb(*call, "-o", tmp_path / "m.pte")
    assert "agrees with the model on 1 picture:" in printed
    found = LoadedProgram((tmp_path / "m.pte").read_bytes())(torch.zeros(1, 3, 48, 48).byte())
    assert set(found) == {"logits"}
    with pytest.raises(SettingsError, match=r"ends in \.pte, got"):
        run_verb(*call, "-o", tmp_path / "m.bin")

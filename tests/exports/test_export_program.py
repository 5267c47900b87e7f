"""Programs of torch.export and of ExecuTorch. Oracle: the predictor, on the same pictures.

ExecuTorch pins other versions of our packages: its tests run where it was installed beside.
"""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from export_samples import LABELS, link_of_each_kind, pictures, predictor, rules, spec
from PIL import Image
from torch import nn

from labelwise.decide import ExpectedF, Threshold
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import torch_programs
from labelwise.exports.onnx_file import quiet
from labelwise.exports.torch_programs import MOST, LoadedProgram, captured_program
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages

LINK_SAMPLES = link_of_each_kind()
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))
WRITERS = {"pt2": torch_programs.export_program, "pte": torch_programs.export_executorch}
with_executorch = (
    pytest.mark.skipif(find_spec("executorch") is None, reason="needs ExecuTorch"),
    pytest.mark.filterwarnings("ignore"),  # of ExecuTorch, when it is imported
)
both = pytest.mark.parametrize("kind", ["pt2", pytest.param("pte", marks=with_executorch)])


def opened(path):
    """Return the program of a file, and what it says of its model."""
    if path.suffix == ".pte":
        program = LoadedProgram(path.read_bytes())
        (described,) = program.program.load_method("model").execute([])
        return program, json.loads(described)
    with quiet():
        extra = {"model.json": ""}
        return torch.export.load(path, extra_files=extra).module(), json.loads(extra["model.json"])


@both
def test_a_program_takes_batches_and_answers_as_the_model(kind, tmp_path):
    model = predictor(link=LINK_SAMPLES["platt"], rule=RULE, crop=None)
    path = tmp_path / f"model.{kind}"
    size, parity = WRITERS[kind](model, spec(model), path, pictures(2), range(2))
    assert (size, parity.pictures, parity.labels_end_to_end) == (path.stat().st_size, 2, 0)
    assert "agrees with the model on 2 pictures: logits within" in str(parity)
    program, facts = opened(path)
    assert facts["labels"] == list(model.space.names)
    assert facts["link"]["kind"] == "platt"
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


class Decisions(nn.Module):
    """Logits to what links and rules make of them."""

    def __init__(self, links, rules):
        super().__init__()
        self.links, self.rules = list(links), rules

    def forward(self, logits):
        values, probs = logits.double(), torch.sigmoid(logits.double()).float()
        of_links = [value for link in self.links for value in (link(values), link.log_none(values))]
        return (*of_links, *(rule(probs) for rule in self.rules))


def test_every_link_and_rule_is_captured_or_refused_in_one_sentence():
    captured = [rule for name, rule in rules().items() if "expected F" not in name]
    decisions = Decisions(LINK_SAMPLES.values(), captured)
    program = captured_program(decisions, torch.randn(2, LABELS)).module()
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 4, (9, LABELS))).float()
    for found, expected in zip(program(logits), decisions(logits), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)
    with pytest.raises(LabelwiseError, match=r"cannot be captured .*; use --format onnx"):
        captured_program(Decisions([], [ExpectedF()]), torch.randn(2, LABELS))  # by numpy


@both
def test_a_program_that_differs_is_not_written(kind, tmp_path, monkeypatch):
    model, wrong = (predictor(link=Sigmoid(), rule=RULE) for _ in range(2))
    with torch.no_grad():
        wrong.model.head.classifier.bias += 0.01
    right = torch_programs.picture_program
    monkeypatch.setattr(torch_programs, "picture_program", lambda _: right(wrong))
    with pytest.raises(LabelwiseError, match=r"logits of .* are 0\.01 apart, more than 0.0001$"):
        WRITERS[kind](model, spec(model), tmp_path / f"model.{kind}", pictures(1), [0])
    assert not any(tmp_path.iterdir())


@both
def test_the_verb_writes_a_program(kind, tmp_path, run_verb):
    model = predictor(rule=ExpectedF())  # it only ranks, so that its rule is not used
    model.save(tmp_path / "run")
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "a.png")
    name = {"pt2": "torch-export", "pte": "executorch"}[kind]
    call = ("export", tmp_path / "run", "--format", name, "--data", tmp_path)
    path = tmp_path / f"m.{kind}"
    assert "agrees with the model on 1 picture:" in run_verb(*call, "-o", path)
    assert set(opened(path)[0](torch.zeros(1, 3, 48, 48).byte())) == {"logits"}
    with pytest.raises(SettingsError, match=rf"ends in \.{kind}, got"):
        run_verb(*call, "-o", tmp_path / "m.bin")


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, run_verb, monkeypatch):
    monkeypatch.setattr(torch_programs, "find_spec", lambda name: None)
    predictor(link=Sigmoid(), rule=RULE).save(tmp_path / "run")
    call = ("export", tmp_path / "run", "--format", "executorch", "-o", tmp_path / "m.pte")
    with pytest.raises(SettingsError, match=r"needs the package 'executorch' .*docs/export\.md"):
        run_verb(*call, "--data", tmp_path)
    assert not (tmp_path / "m.pte").exists()


@pytest.mark.parametrize("kind", [pytest.param("pte", marks=with_executorch)])
def test_what_has_no_kernel_is_refused_in_one_sentence(kind, tmp_path):
    model = predictor(link=LINK_SAMPLES["isotonic"], rule=RULE)
    with pytest.raises(LabelwiseError, match=r"cannot lower .*searchsorted.*; use --format onnx"):
        WRITERS[kind](model, spec(model), tmp_path / "model.pte", pictures(1), [0])
    assert not any(tmp_path.iterdir())

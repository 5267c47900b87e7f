"""Programs of torch.export. Oracle: the predictor, on the same pictures."""

import json

import numpy as np
import pytest
import torch
from export_samples import LABELS, link_of_each_kind, pictures, predictor, rules, spec
from PIL import Image
from torch import nn

from labelwise.decide import ExpectedF, Threshold
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import torch_programs
from labelwise.exports.torch_programs import captured_program
from labelwise.learn.graphs import quiet
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages

LINK_SAMPLES = link_of_each_kind()
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))


def opened(path):
    """Return the program of a file, and what it says of its model."""
    with quiet():
        extra = {"model.json": ""}
        return torch.export.load(path, extra_files=extra).module(), json.loads(extra["model.json"])


def test_a_program_takes_batches_and_answers_as_the_model(tmp_path):
    model = predictor(link=LINK_SAMPLES["platt"], rule=RULE, crop=None)
    path = tmp_path / "model.pt2"
    size, parity = torch_programs.export_program(model, spec(model), path, pictures(2), range(2))
    assert (size, parity.pictures, parity.labels_end_to_end) == (path.stat().st_size, 2, 0)
    assert "agrees with the model on 2 pictures: logits within" in str(parity)
    program, facts = opened(path)
    assert facts["labels"] == list(model.space.names)
    assert facts["link"]["kind"] == "platt"
    side = model.transform.size
    for count in (1, 5, 15):
        pixels = np.random.default_rng(count).integers(0, 256, (count, side, side, 3), np.uint8)
        expected = model.predict(ArrayImages(pixels))
        outputs = program(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        found = {name: values.detach().numpy() for name, values in outputs.items()}
        np.testing.assert_allclose(found["logits"], expected.logits, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(found["probability"], expected.probs, atol=1e-6)
        assert np.array_equal(found["label"], expected.sets)
        none = (1 - expected.probs).prod(1)
        np.testing.assert_allclose(found["none"], none, atol=1e-6)


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


def test_a_program_that_differs_is_not_written(tmp_path, monkeypatch):
    model, wrong = (predictor(link=Sigmoid(), rule=RULE) for _ in range(2))
    with torch.no_grad():
        wrong.model.head.classifier.bias += 0.01
    right = torch_programs.picture_program
    monkeypatch.setattr(torch_programs, "picture_program", lambda _: right(wrong))
    with pytest.raises(LabelwiseError, match=r"logits of .* are 0\.01 apart, more than 0.0001$"):
        torch_programs.export_program(model, spec(model), tmp_path / "model.pt2", pictures(1), [0])
    assert not any(tmp_path.iterdir())


def test_the_verb_writes_a_program(tmp_path, run_verb):
    model = predictor(rule=ExpectedF())  # it only ranks, so that its rule is not used
    model.save(tmp_path / "run")
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "a.png")
    call = ("export", tmp_path / "run", "--format", "torch-export", "--data", tmp_path)
    path = tmp_path / "m.pt2"
    assert "agrees with the model on 1 picture:" in run_verb(*call, "-o", path)
    assert set(opened(path)[0](torch.zeros(1, 3, 48, 48).byte())) == {"logits"}
    with pytest.raises(SettingsError, match=r"ends in \.pt2, got"):
        run_verb(*call, "-o", tmp_path / "m.bin")


@pytest.mark.parametrize("name", ["web", "openvino", "executorch"])
def test_a_format_that_left_says_what_replaces_it(name, tmp_path, run_verb):
    predictor(link=Sigmoid(), rule=RULE).save(tmp_path / "run")
    with pytest.raises(
        SettingsError, match=rf"--format {name} is no longer written: .*\.(onnx|pt2)"
    ):
        run_verb("export", tmp_path / "run", "--format", name, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()

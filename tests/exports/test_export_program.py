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
from labelwise.exports.network import quiet
from labelwise.exports.torch_programs import captured_program, export_program
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages

LINK_SAMPLES = link_of_each_kind()
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))


def opened(path):
    with quiet():
        extra = {"model.json": ""}
        return torch.export.load(path, extra_files=extra).module(), json.loads(extra["model.json"])


def test_a_program_takes_any_batch_and_answers_as_the_model(tmp_path):
    model = predictor(link=LINK_SAMPLES["platt"], rule=RULE, crop=None)
    path = tmp_path / "model.pt2"
    size, parity = export_program(model, spec(model), path, pictures(2), range(2))
    assert size == path.stat().st_size
    assert (parity.pictures, parity.labels_end_to_end) == (2, 0)
    assert "agrees with the model on 2 pictures: logits within" in str(parity)
    program, facts = opened(path)
    assert facts["labels"] == list(model.space.names)
    assert facts["link"]["kind"] == "platt"
    side = model.transform.size
    for count in (1, 5):
        pixels = np.random.default_rng(count).integers(0, 256, (count, side, side, 3), np.uint8)
        expected = model.predict(ArrayImages(pixels))
        found = program(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        torch.testing.assert_close(found["logits"], expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found["probability"].double(), expected.probs, atol=1e-6, rtol=0)
        assert torch.equal(found["label"], expected.sets)
        none = (1 - expected.probs).prod(1)
        torch.testing.assert_close(found["none"].double(), none, atol=1e-6, rtol=0)


class Decision(nn.Module):
    """Logits to what a link and a rule make of them."""

    def __init__(self, link, rule):
        super().__init__()
        self.link, self.rule = link, rule

    def forward(self, logits):
        probs = self.link(logits.double())
        return probs, self.rule(probs.float()), self.link.log_none(logits.double())


@pytest.mark.parametrize("kind", LINK_SAMPLES)
def test_every_link_can_be_captured(kind):
    decision = Decision(LINK_SAMPLES[kind], RULE)
    program = captured_program(decision, torch.randn(2, LABELS)).module()
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 4, (9, LABELS))).float()
    for found, expected in zip(program(logits), decision(logits), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", rules())
def test_rules_are_captured_or_refused_in_one_sentence(name):
    rule = rules()[name]
    decision, example = Decision(Sigmoid(), rule), torch.randn(2, LABELS)
    if "expected F" in name:  # computed with numpy
        with pytest.raises(LabelwiseError, match=r"cannot be captured .*; use --format onnx"):
            captured_program(decision, example)
        return
    logits = torch.randn(9, LABELS, generator=torch.Generator().manual_seed(0))
    found = captured_program(decision, example).module()(logits)
    assert torch.equal(found[1], decision(logits)[1])


def test_a_program_that_differs_is_not_written(tmp_path, monkeypatch):
    model = predictor(link=Sigmoid(), rule=RULE)
    path = tmp_path / "model.pt2"
    right = torch.export.load
    wrong = predictor(link=Sigmoid(), rule=RULE)
    with torch.no_grad():
        wrong.model.head.classifier.bias += 0.01
    export_program(wrong, spec(wrong), tmp_path / "wrong.pt2", pictures(1), [0])
    monkeypatch.setattr(torch.export, "load", lambda _: right(tmp_path / "wrong.pt2"))
    with pytest.raises(
        LabelwiseError, match=r"logits of .* are 0\.01 apart, .* differs is 'linear'"
    ):
        export_program(model, spec(model), path, pictures(1), [0])
    assert not path.exists()


def test_the_verb_writes_a_program_and_none_is_run(tmp_path, run_verb):
    model = predictor(rule=ExpectedF())  # it only ranks, so that its rule is not used
    model.save(tmp_path / "run")
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "a.png")
    call = ("export", tmp_path / "run", "--format", "torch-export", "--data", tmp_path)
    printed = run_verb(*call, "-o", tmp_path / "m.pt2")
    assert "agrees with the model on 1 picture:" in printed
    assert set(opened(tmp_path / "m.pt2")[0](torch.zeros(1, 3, 48, 48).byte())) == {"logits"}
    with pytest.raises(SettingsError, match=r"ends in \.pt2, got"):
        run_verb(*call, "-o", tmp_path / "m.bin")
    for verb in (["predict", tmp_path / "m.pt2", tmp_path], ["evaluate", tmp_path / "m.pt2"]):
        with pytest.raises(SettingsError, match=r"is not run: torch loads .pt2 files by unpickl"):
            run_verb(*verb)

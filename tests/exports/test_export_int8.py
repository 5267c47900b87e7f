"""Eight-bit files. Oracles: the float32 file on the same photos; predictions of the predictor."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from export_samples import LABELS, link_of_each_kind, pictures, predictor, rules, spec
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import nn

from labelwise.decide import ExpectedF, Threshold
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import int8, torch_programs
from labelwise.exports.int8 import quantised_content
from labelwise.exports.onnx_file import facts_of
from labelwise.exports.parity import measured_predictions
from labelwise.exports.torch_programs import captured_program
from labelwise.learn.graphs import quiet
from labelwise.learn.inference import infer
from labelwise.links import Sigmoid
from labelwise.models.graph_file import features_of, read_model
from labelwise.models.graph_model import OnnxModel
from labelwise.pictures import ArrayImages
from labelwise.tables import LabelTable


def logits_of(model, images):
    parts = infer(lambda pixels: (model.logits(pixels),), images, model.transform)
    return torch.cat([part.values[0] for part in parts])


@pytest.fixture(scope="module")
def labelled():
    """Return a model and photos whose labels follow its own probabilities."""
    model = predictor(link=Sigmoid())
    images = ArrayImages(np.concatenate([pictures(60, (48, 48), seed).pixels for seed in range(2)]))
    logits = logits_of(model, images)
    with torch.no_grad():  # logits of mean 0 and deviation 2
        head, scale = model.model.head.classifier, 2 / logits.std(0)
        head.bias.copy_((head.bias - logits.mean(0)) * scale)
        head.weight.mul_(scale[:, None])
    chance = torch.special.expit(logits_of(model, images))
    labels = np.random.default_rng(0).random(chance.shape) < chance.numpy()
    return model, LabelTable.from_arrays(model.space, images, labels, name="photos")


@pytest.fixture(scope="module")
def done(labelled):
    """What comes of quantising, on the photos of ``labelled``."""
    model, table = labelled
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(int8, "MAX_ECE_GAIN", 0.02)  # 60 photos are few
        return quantised_content(model, facts_of(model, spec(model)), table)


def test_a_quantised_file_is_small_and_measured_and_answers_by_its_new_link(labelled, done):
    model, table = labelled
    assert done.photos == 60
    assert done.after.size < done.before.size / 2.2
    assert done.before.map > 0.7
    assert abs(done.after.map - done.before.map) <= 0.05
    file = OnnxModel(*read_model(done.content, "int8"))
    assert file.facts.precision == "int8"
    held_out = table.subset(np.arange(1, 120, 2))
    predictions = measured_predictions(file, held_out, "held out")
    log_p, log_q = file.link.log_probs(predictions.logits.astype(float))
    loss = -np.where(predictions.labels > 0, log_p, log_q).mean()
    assert done.after.log_loss == pytest.approx(loss, rel=1e-6)
    mine = measured_predictions(model, held_out, "held out").logits
    assert 0 < abs(predictions.logits - mine).mean() < 0.3
    assert done.lost.value == pytest.approx(done.before.map - done.after.map)
    assert done.lost.low < done.lost.value < done.lost.high
    assert "times smaller" in str(done)
    assert "too few photos to tell" in str(done)
    assert features_of(file.proto).width == model.model.backbone.channels  # as its index needs


def test_a_file_that_loses_too_much_is_written_only_where_it_is_wanted(labelled, monkeypatch):
    monkeypatch.setattr(int8, "MAX_MAP_LOSS", -1.0)
    model, table = labelled
    facts = facts_of(model, spec(model))
    few = table.subset(range(40))
    with pytest.raises(LabelwiseError, match=r"nothing was written: .*, add --int8-anyway"):
        quantised_content(model, facts, few)
    done = quantised_content(model, facts, few, anyway=True)
    said = read_model(done.content, "int8")[1].judgement
    assert said == done.judgement
    assert "beyond the limits (at most -1.0 of mAP lost" in said


def test_too_little_to_fit_on_is_refused(labelled):
    model, table = labelled
    with pytest.raises(LabelwiseError, match="four at least, got 3"):
        quantised_content(model, facts_of(model, spec(model)), table.subset(range(3)))
    bare = replace(model, link=None)
    with pytest.raises(LabelwiseError, match="only ranks labels has no calibration"):
        quantised_content(bare, facts_of(bare, spec(bare)), table)


def test_what_is_lost_has_the_interval_of_its_photos(labelled, done):
    """Oracle: draws of the held-out photos by hand; too few of them show nothing."""
    model, table = labelled
    file, held_out = OnnxModel(*read_model(done.content, "int8")), table.subset(range(1, 120, 2))
    own = measured_predictions(file, held_out, "held out")
    reference = measured_predictions(model, held_out, "held out")
    random, losses = np.random.default_rng(1), []
    for _ in range(60):
        rows = random.integers(60, size=60)
        both = (one.logits[rows] for one in (reference, own))
        losses.append(-np.subtract(*(average_precision_score(own.labels[rows], s) for s in both)))
    spread = np.subtract(*np.quantile(losses, [0.975, 0.025]))
    assert done.lost.value == pytest.approx(done.before.map - done.after.map)
    assert done.lost.high - done.lost.low == pytest.approx(spread, rel=0.4)
    assert "too few photos to tell" in str(done)
    assert features_of(file.proto).width == model.model.backbone.channels  # as its index needs


def test_evaluate_measures_an_exported_file(labelled, tmp_path, run_verb):
    model, table = labelled
    model.save(tmp_path / "run")
    lines = ["path," + ",".join(f'"{name}"' for name in model.space.names)]
    for row in range(40):
        Image.fromarray(table.images.pixels[row]).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png," + ",".join(map(str, table.targets()[0][row].astype(int))))
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    out, data = tmp_path / "m.onnx", tmp_path / "photos.csv"
    run_verb("export", tmp_path / "run", "-o", out, "--data", data, "--pictures", 4)
    options = ("--data", data, "--json", "--query-length", 0)
    found = json.loads(run_verb("evaluate", out, *options))
    expected = json.loads(run_verb("evaluate", tmp_path / "run", *options))
    assert found["ranking"]["map_class"] == pytest.approx(
        expected["ranking"]["map_class"], abs=1e-6
    )


# Programs of torch.export. Oracle: the predictor, on the same pictures.

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

"""OpenVINO folders. Oracle: the predictor on the same pictures, and its link and rule."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from export_samples import LABELS, fitted_links, link_of_each_kind, pictures, predictor, rules, spec
from PIL import Image

from labelwise.decide import Threshold
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.exports import torch_programs as openvino_folder
from labelwise.exports.onnx_file import assemble, export_network, facts_of
from labelwise.exports.parity import compare_answers
from labelwise.exports.torch_programs import export_openvino
from labelwise.learn.objectives import PhiLink
from labelwise.links import Sigmoid
from labelwise.models.graph_file import UNSEALED
from labelwise.models.graph_model import FACTS, GRAPH, OpenVinoModel, digest, openvino_runtime

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed"
)

LINK_SAMPLES = link_of_each_kind()
CI = os.environ.get("CI")
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))
LOGITS = np.random.default_rng(0).normal(0, 4, (20, LABELS)).astype(np.float32)
EXTREME = np.float32([[-1e4, -90, 0, 90, 1e4]])


def exported(folder, model, count=2):
    return export_openvino(model, spec(model), folder, pictures(count), range(count))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("openvino") / "model"
    exported(place, predictor(link=LINK_SAMPLES["platt"], rule=RULE))
    return place


def test_the_folder_alone_takes_pictures_of_any_size_and_thresholds(folder):
    model, core = predictor(link=LINK_SAMPLES["platt"], rule=RULE), openvino_runtime().Core()
    read = core.read_model(folder / "model.xml")
    named = read.get_rt_info(["model_info", "labels"]).astype(str)
    assert json.loads(named) == list(model.space.names)
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for size in [(90, 70), (48, 48), (20, 33), (1, 1), (300, 60), (10, 5000)]:
        picture = pictures(1, size).pixels[0]
        found, expected = compiled({"image": picture}), model.predict(picture)
        np.testing.assert_allclose(found["probability"], expected.probs, atol=1e-3)
        np.testing.assert_array_equal(found["label"], expected.sets)
        np.testing.assert_allclose(found["none"], (1 - found["probability"]).prod(1), rtol=1e-5)
    for value, every in ((0.0, True), (1.0, False)):
        given = compiled({"image": picture, "thresholds": np.full(LABELS, value)})
        assert (given["label"] == every).all()
    own = compiled({"image": picture, "thresholds": np.empty(0)})
    np.testing.assert_array_equal(own["label"], expected.sets)


@pytest.fixture(scope="module")
def decided():
    """Return a function from a link, a rule and logits to a model and what OpenVINO decides."""
    bare = predictor()
    network = export_network(bare.model, bare.transform.size)

    def decide(link, rule, logits):
        model = replace(bare, link=link, rule=rule)
        graph = assemble(network, facts_of(model, spec(model)))
        read = openvino_runtime().Core().read_model(graph.SerializeToString())
        return model, OpenVinoModel(read, facts_of(model, spec(model))).decided(logits)

    return decide


@pytest.mark.parametrize("kind", sorted(LINK_SAMPLES))
def test_every_link_agrees(decided, kind):
    logits = np.concatenate([LOGITS, EXTREME, 30 * LOGITS])
    model, found = decided(LINK_SAMPLES[kind], RULE, logits)
    assert compare_answers(found, model, logits, "logits") < 1e-5


@pytest.mark.parametrize("name", sorted(rules()))
def test_every_rule_agrees(decided, name):
    model, found = decided(PhiLink(), rules()[name], LOGITS)
    probs = model.link(torch.from_numpy(LOGITS).double())
    np.testing.assert_array_equal(found.label, model.rule(probs))


def test_nothing_is_written_where_openvino_computes_otherwise(tmp_path, monkeypatch):
    model = predictor(link=Sigmoid())
    wrong = export_network(model.model, model.transform.size)
    with torch.no_grad():
        model.model.head.classifier.weight.mul_(1.01)
    monkeypatch.setattr(openvino_folder, "export_network", lambda *_: wrong)
    sentence = r"nothing was written: logits of .* are .* apart, more than 0\.0001"
    with pytest.raises(LabelwiseError, match=sentence):
        exported(tmp_path / "model", model)
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_float32_changes_for_large_logits_is_refused(tmp_path):
    steep = fitted_links()["histogram of phi"]
    with pytest.raises(LabelwiseError, match=r"in which the link 'histogram' gives .* off for la"):
        exported(tmp_path / "model", predictor(link=steep, rule=RULE))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "labelwise.json"])
def test_a_flipped_bit_is_found(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "copy")
    for place in (0.1, 0.5, 0.9):
        content = bytearray((folder / name).read_bytes())
        content[int(place * len(content))] ^= 4
        (copy / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"damaged or was changed.*export it again"):
            OpenVinoModel.load(copy)


def test_predict_and_evaluate_run_the_folder(folder, tmp_path, run_verb):
    rows = ["path,labels"]
    for number, picture in enumerate(pictures(3).pixels):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'dog' if number else 'red car|e|Straße'}")
    (tmp_path / "test.csv").write_text("\n".join(rows) + "\n")
    assert "0.png" in run_verb("predict", folder, tmp_path / "0.png")
    assert "mAP" in run_verb("evaluate", folder, "--data", tmp_path / "test.csv")


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(SettingsError, match=r"pip install 'labelwise\[openvino\]'"):
        OpenVinoModel.load(folder)


def test_openvino_reports_nothing_to_its_makers(folder):
    """Imported as its own documentation has it, it sends an event by the package telemetry."""
    from openvino_telemetry import Telemetry

    assert OpenVinoModel.load(folder)
    assert not Telemetry().consent
    assert os.environ.get("CI") == CI


def test_a_graph_that_hides_its_probability_is_not_held_to_nothing(folder, tmp_path):
    """Forged and sealed anew: its link could not be compared with the one that it names."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    graph = (folder / GRAPH).read_text().replace('names="probability"', 'names="p"')
    (copy / GRAPH).write_text(graph)
    stated = json.loads((folder / FACTS).read_text()) | {"sha256": UNSEALED}
    stated["files"] = stated["files"] | {GRAPH: digest(graph.encode())}
    text = json.dumps(stated)
    (copy / FACTS).write_text(text.replace(UNSEALED, digest(text.encode()), 1))
    forged = OpenVinoModel.load(copy)
    with pytest.raises(CheckpointError, match="has no probability"):
        forged.logits(torch.from_numpy(forged.facts.blank()))

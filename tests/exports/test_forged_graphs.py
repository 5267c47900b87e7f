"""ONNX files that a stranger forged and sealed anew, and answers of a file without torch.

Oracles: the engine, which computes link and rule with torch; sentences of the facts that are wrong.
"""

import json
import math
import subprocess
import sys

import numpy as np
import onnx
import pytest
from export_samples import link_of_each_kind, pictures, predictor, spec
from onnx import helper, numpy_helper
from PIL import Image
from typed import run

from labelwise.decide import AtMost, Threshold
from labelwise.decide.rules import rule_to_spec
from labelwise.errors import CheckpointError
from labelwise.exports.onnx_file import export_onnx
from labelwise.models.answer_files import NOT_FINITE
from labelwise.models.graph_file import sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.scoring import score
from labelwise.pictures import PictureImages

PLATT = {"kind": "platt", "link": {"kind": "sigmoid"}, "slope": 1.0, "offset": 0.0, "limit": 50.0}
FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.fixture(scope="module")
def honest(written):
    return written[1]


def forged(honest, path, *, change=lambda graph: None, **facts):
    """Write the file with other facts or another graph, under a hash that is right again."""
    model = onnx.load(honest)
    change(model.graph)
    kept = {prop.key: prop.value for prop in model.metadata_props} | facts
    helper.set_model_props(model, {key: value for key, value in kept.items() if value is not None})
    path.write_bytes(sealed(model))
    return path


def predicted(path, honest, tmp_path):
    return run("predict", path, honest.parent / "0.png", "-o", tmp_path / "out.csv")


def assert_refused(path, honest, tmp_path, sentence):
    error = predicted(path, honest, tmp_path).exception
    assert isinstance(error, CheckpointError)
    assert sentence in str(error)
    assert not (tmp_path / "out.csv").exists()


REFUSED = {
    "link": [
        *(json.dumps(PLATT | {"slope": one}) for one in (math.nan, [1.0, 1.0], -1.0)),
        *(json.dumps(PLATT | {"offset": one}) for one in ("1", True)),
        *(json.dumps(PLATT | one) for one in ({"limit": "50"}, {"more": 1})),
        json.dumps(PLATT | {"slope": [1.0, 1.0, True, 1.0, 1.0]}),
        *('{"kind": "nothing"}', '{"kind": ["sigmoid"]}', "[", None),
        '{"kind": "platt", "link": null, "offset": 0, "limit": 9, "slope": ' + "9" * 400 + "}",
    ],
    "rule": [
        *(f'{{"kind": "threshold", "value": {one}}}' for one in ("NaN", "Infinity", '"1e999"')),
        '{"kind": "threshold", "value": [NaN, 0.1, 0.1, 0.1, 0.1]}',
        '{"kind": "threshold", "value": [0.5, 0.5]}',
        '{"kind": "threshold", "value": [0.5, 0.5, false, 0.5, 0.5]}',
        *('{"kind": "expected-f", "beta": NaN}', '{"kind": "top-k", "k": 0}', '{"kind": "guess"}'),
        *("[" * 100_000, None),
    ],
    "labels": [
        *(f'["a", "b", "c", "d", {one}]' for one in ('"a"', '" "', "5", '"\\ud800"', '"e", "f"')),
        *("{}", None),
    ],
    "labelwise_format": ["2"],
}


@pytest.mark.parametrize(
    ("key", "text"),
    [(key, text) for key, texts in REFUSED.items() for text in texts],
    ids=lambda one: str(one)[:40],
)
def test_facts_that_cannot_be_used_are_refused(honest, tmp_path, key, text):
    path = forged(honest, tmp_path / "forged.onnx", **{key: text})
    with pytest.raises(CheckpointError, match=r"forged\.onnx"):
        OnnxModel.load(path)


@pytest.mark.parametrize(
    "link",
    [
        PLATT | {"slope": 1.1},
        PLATT | {"offset": [0.0, 0.0, 0.0, 0.0, 0.01]},  # of one label: the others agree
        PLATT | {"limit": 1e-3},
        {"kind": "temperature", "link": None, "temperature": 0.9, "limit": 50.0},
        {"kind": "softmax", "temperature": 1.0},
    ],
)
def test_probabilities_of_another_link_than_the_stated_one(honest, tmp_path, link):
    path = forged(honest, tmp_path / "forged.onnx", link=json.dumps(link))
    assert_refused(path, honest, tmp_path, "must give the probabilities of the link in its metad")


@pytest.mark.parametrize("rule", [Threshold(0.0), Threshold(tuple(FIVE)), AtMost(Threshold(0), 2)])
def test_labels_are_those_of_the_stated_rule(honest, tmp_path, rule):
    path = forged(honest, tmp_path / "forged.onnx", rule=json.dumps(rule_to_spec(rule)))
    images = PictureImages(sorted(honest.parent.glob("*.png")))
    (part,) = score(OnnxModel.load(path), images)
    found = list(OnnxModel.load(path).written(images))
    assert [one.labels for one in found] == [one.labels for one in part.answers()]
    assert found[0].labels


def renamed(name):
    def change(graph):
        for node in graph.node:
            node.output[:] = ["other" if one == name else one for one in node.output]
            node.input[:] = ["other" if one == name else one for one in node.input]
        for output in graph.output:
            output.name = "other" if output.name == name else output.name

    return change


def answering(node, *, of):
    """Put a node between what a graph computes and one of its outputs."""

    def change(graph):
        for one in graph.node:
            one.output[:] = ["before" if name == of else name for name in one.output]
            one.input[:] = ["before" if name == of else name for name in one.input]
        huge = np.array([1 << 24, 1 << 20, 5], np.int64)
        for name, value in (("nan", np.float32("nan")), ("two", np.float32(2)), ("huge", huge)):
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        graph.node.append(helper.make_node(node[0], ["before", *node[1:]], [of], name="forged"))

    return change


@pytest.mark.parametrize("name", ["logits", "probability"])
def test_a_graph_without_an_output(honest, tmp_path, name):
    path = forged(honest, tmp_path / "forged.onnx", change=renamed(name))
    with pytest.raises(CheckpointError, match="cannot be run by onnxruntime"):
        OnnxModel.load(path)


@pytest.mark.parametrize("node", [("Mul", "nan"), ("Mul", "two"), ("Neg",)])
def test_probabilities_that_are_none(honest, tmp_path, node):
    """Logits stay finite, so these were written as they came."""
    path = forged(honest, tmp_path / "forged.onnx", change=answering(node, of="probability"))
    assert_refused(path, honest, tmp_path, "must give the probabilities")


def test_an_answer_too_large_for_any_memory(honest, tmp_path):
    huge = answering(("Expand", "huge"), of="probability")
    path = forged(honest, tmp_path / "forged.onnx", change=huge)
    assert_refused(path, honest, tmp_path, "cannot be run by onnxruntime")


def test_names_cannot_steer_the_terminal(honest, tmp_path):
    names = ["\x1b[2J", "\u202eb", "c\nd", "=1+1", "e\x00"]
    facts = {"labels": json.dumps(names), "rule": '{"kind": "threshold", "value": 0.0}'}
    path = forged(honest, tmp_path / "forged.onnx", caution="\x1b]0;owned\x07", **facts)
    done = predicted(path, honest, tmp_path)
    assert done.exit_code == 0
    assert not set(done.output) & set("\x1b\u202e\x00\x07")


# Answers of a file without torch.


WITHOUT_TORCH = """
import sys
for slow in ("torch", "labelwise.data", "pyarrow.compute"):
    sys.modules[slow] = None  # whoever imports it now gets an error
from labelwise.cli.app import app
app(sys.argv[1:], prog_name="labelwise")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return a file whose thresholds lie between its probabilities, and a folder of photos."""
    folder = tmp_path_factory.mktemp("export")
    model = predictor(link=link_of_each_kind()["platt"], rule=Threshold(0.5))
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


def test_predict_answers_without_torch_what_the_engine_answers(file, tmp_path):
    path, photos = file
    out = tmp_path / "without.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "predict", path, photos, "-o", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr  # one photo cannot be read
    assert "7 of 8 images predicted" in done.stdout
    found = [json.loads(line) for line in out.read_text().splitlines()]
    (part,) = score(OnnxModel.load(path), PictureImages(sorted(photos.iterdir())))
    for row, answer in zip(found, part.answers(), strict=True):
        assert (row["path"], row.get("error")) == (answer.id, answer.error)
        assert tuple(row.get("labels", ())) == answer.labels
        np.testing.assert_allclose(list(row.get("probs", {}).values()), answer.probs, atol=1e-6)
    assert 0 < sum(len(row.get("labels", ())) for row in found) < 5 * 7


def test_logits_that_are_not_finite_are_an_error(honest, tmp_path):
    model = onnx.load(honest)
    (bias,) = [one for one in model.graph.initializer if one.name.endswith("classifier.bias")]
    values = numpy_helper.to_array(bias).copy()
    values[0] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    (tmp_path / "model.onnx").write_bytes(sealed(model))
    Image.fromarray(pictures(1).pixels[0]).save(tmp_path / "photo.png")
    images = PictureImages([tmp_path / "photo.png"])
    (found,) = OnnxModel.load(tmp_path / "model.onnx").written(images)
    assert found.error == f"{found.id}: {NOT_FINITE}"
    assert (found.labels, found.probs) == ((), ())

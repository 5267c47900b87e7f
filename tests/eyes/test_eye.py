"""An eye gives what its network gives in torch, and a file that is not what it says is not run."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
from make_eye import write
from onnx import TensorProto, helper, numpy_helper

from labelwise.decide import Threshold
from labelwise.errors import CheckpointError, SettingsError
from labelwise.exports.hub import export_hub
from labelwise.eyes import Eye, find_eye
from labelwise.eyes.eye import BUILT_IN, BUILT_IN_FILE
from labelwise.eyes.fit import fit, fit_named
from labelwise.eyes.kinds import directions, imagenet_kinds
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones.weights import EYE, load_eye
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid
from labelwise.models.loading import load_model
from labelwise.models.solved import SolvedModel
from labelwise.pictures.transform import Transform
from labelwise.types import LabelSpace


@pytest.fixture(scope="module")
def eye():
    return Eye.open()


def pixels(count=3):
    return np.random.default_rng(0).integers(0, 256, (count, 3, 224, 224), dtype=np.uint8)


def test_the_script_writes_the_bytes_that_are_in_the_package(tmp_path):
    write(tmp_path)
    for name in ("lite0.onnx", "lite0.json"):
        assert (tmp_path / name).read_bytes() == (BUILT_IN_FILE.parent / name).read_bytes(), name


def test_torch_with_the_same_rounded_weights_is_the_oracle_of_every_output(eye):
    network = create_backbone(BUILT_IN).network.eval()
    load_eye(network, {name: torch.from_numpy(v) for name, v in eye.weights().items()})
    inputs = eye.transform.normalise(torch.from_numpy(pixels()))
    assert np.array_equal(eye.transform.normalised(pixels()), inputs.numpy())
    behind = []
    for block in (4, 6):
        network.blocks[block].register_forward_hook(lambda _m, _x, map: behind.append(map))
    with torch.no_grad():
        maps = network.forward_features(inputs)
    expected = {
        "means": maps.mean(dim=(2, 3)),
        "maxima": maps.amax(dim=(2, 3)),
        "middle": torch.cat([some.mean(dim=(2, 3)) for some in behind], dim=1),
    }
    weight, bias = map(torch.from_numpy, eye.classifier())
    expected["classes"] = expected["means"] @ weight.T + bias
    seen = eye.see(pixels())
    assert {name: values.shape[1] for name, values in seen.items()} == eye.outputs
    for name, values in expected.items():
        tolerance = {"rtol": 0, "atol": 5e-6 * float(values.abs().max())}
        np.testing.assert_allclose(seen[name], values.numpy(), **tolerance, err_msg=name)


def test_the_network_of_gpus_computes_the_features_of_the_eye_in_32_bits(eye):
    """The oracle is ONNX Runtime; TF32 of GPUs, which is .006 off, is not used, and left as set."""
    backbone, used = create_backbone(EYE).eval(), []
    load_eye(backbone.network, {name: torch.from_numpy(v) for name, v in eye.weights().items()})
    backbone.network.conv_stem.register_forward_pre_hook(
        lambda _module, _inputs: used.append(torch.backends.cudnn.allow_tf32)
    )
    with torch.no_grad():
        found = backbone(eye.transform.normalise(torch.from_numpy(pixels())))[:, :, 0, 0]
    expected = np.concatenate([eye.see(pixels())[name] for name in eye.head_features], axis=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * expected.max())
    assert used == [False]
    assert torch.backends.cudnn.allow_tf32


def test_rounded_weights_keep_the_direction_of_the_published_ones(eye):
    network = create_backbone(BUILT_IN, weights="pretrained").eval()
    with torch.no_grad():
        published = network(eye.transform.normalise(torch.from_numpy(pixels()))).mean(dim=(2, 3))
    cosines = torch.cosine_similarity(published, torch.from_numpy(eye.see(pixels())["means"]))
    assert cosines.min() > 0.99996


def test_photos_of_another_size_are_seen_and_the_transform_is_timms(eye):
    assert eye.transform == create_backbone(BUILT_IN).transform
    larger = eye.with_transform(Transform(288, (0.5,) * 3, (0.5,) * 3, "bicubic"))
    assert larger.see(np.zeros((1, 3, 288, 288), np.uint8))["means"].shape == (1, 1280)
    assert find_eye("resnet50") is None


def small(nodes=(), constants=(), *, outputs=("means",), functions=(), kind=TensorProto.FLOAT):
    """Return a model that takes the mean of each colour, with more nodes behind it."""
    axes = numpy_helper.from_array(np.array([2, 3]), "axes")
    mean = helper.make_node("ReduceMean", ["images", "axes"], ["means"], keepdims=0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [mean, *nodes],
        "small",
        [value("images", kind, ["batch", 3, 8, 8])],
        [value(name, kind, ["batch", None]) for name in outputs],
        [axes, *constants],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("here", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def saved(folder, model, **changed):
    content = model if isinstance(model, bytes) else model.SerializeToString()
    facts = {
        "format": 1,
        "name": "small",
        "sha256": hashlib.sha256(content).hexdigest(),
        "input": "images",
        "outputs": {"means": 3},
        "transform": {"size": 8},
    }
    path = folder / "small.onnx"
    path.write_bytes(content)
    path.with_suffix(".json").write_text(json.dumps(facts | changed))
    return path


def test_an_eye_of_someone_else_may_have_means_alone(tmp_path):
    eye = find_eye(str(saved(tmp_path, small())))
    white = np.full((2, 3, 8, 8), 255, np.uint8)
    np.testing.assert_allclose(eye.see(white)["means"], eye.transform.normalised(white)[..., 0, 0])
    with pytest.raises(SettingsError, match="no linear classifier"):
        eye.classifier()
    with pytest.raises(SettingsError, match="8 pixels alone, got 3 channels of 16"):
        eye.with_transform(Transform(16))


def body():
    """Return a graph that a loop or a branch could run."""
    value = helper.make_tensor_value_info
    names = [("number", TensorProto.INT64), ("goes_on", TensorProto.BOOL)]
    inputs = [value(name, kind, []) for name, kind in names]
    node = helper.make_node("Identity", ["goes_on"], ["still"])
    return helper.make_graph([node], "body", inputs, [value("still", TensorProto.BOOL, [])])


def looping():
    endless = numpy_helper.from_array(np.array(2**62), "endless")
    yes = numpy_helper.from_array(np.array(True), "yes")
    return small([helper.make_node("Loop", ["endless", "yes"], [], body=body())], [endless, yes])


def bomb():
    size = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "size")
    return small([helper.make_node("ConstantOfShape", ["size"], ["bomb"])], [size])


def doubling():
    names = ["means", *(f"twice{n}" for n in range(40))]
    pairs = pairwise(names)
    return small([helper.make_node("Concat", [a, a], [b], axis=1) for a, b in pairs])


def by_values():
    """Return a graph in which the pixels of a photo say how large an array becomes."""
    whole = helper.make_node("Cast", ["means"], ["whole"], to=TensorProto.INT64)
    flat = helper.make_node("Squeeze", ["whole"], ["flat"])
    return small([whole, flat, helper.make_node("ConstantOfShape", ["flat"], ["bomb"])])


def elsewhere():
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "far")
    onnx.external_data_helper.set_external_data(tensor, "../../../etc/passwd")
    tensor.ClearField("raw_data")
    return small([helper.make_node("Add", ["means", "far"], ["sum"])], [tensor])


def function():
    called = helper.make_node("Twice", ["means"], ["twice"], domain="here")
    inner = [helper.make_node("Add", ["x", "x"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    made = helper.make_function("here", "Twice", ["x"], ["y"], inner, opsets)
    return small([called], functions=[made])


def of_opset(version):
    model = small()
    model.opset_import[0].version = version
    return model


def many():
    """Return a graph whose arrays are each below the limit, and together far above it."""
    size = numpy_helper.from_array(np.array([1 << 27]), "size")
    nodes = [helper.make_node("ConstantOfShape", ["size"], [f"array{n}"]) for n in range(9)]
    return small(nodes, [size])


def sparse():
    node = helper.make_node("Constant", [], ["sparse"])
    values = numpy_helper.from_array(np.ones(1, np.float32))
    places = numpy_helper.from_array(np.zeros(1, np.int64))
    tensor = helper.make_sparse_tensor(values, places, [1 << 40])
    node.attribute.append(helper.make_attribute("sparse_value", tensor))
    return small([node])


HOSTILE = {
    "changed": (lambda: small(), {"sha256": "0" * 64}, "another SHA-256"),
    "no ONNX": (lambda: b"\x08\x0ahello", {}, "not a readable ONNX file|one graph"),
    "loop": (looping, {}, "operator 'Loop'"),
    "bomb": (bomb, {}, "'bomb' is not known before it is run, or is too large"),
    "doubling": (doubling, {}, "too large"),
    "by values": (by_values, {}, "'bomb' is not known"),
    "elsewhere": (elsewhere, {}, "weights lie in other files"),
    "function": (function, {}, "without functions"),
    "other's": (
        lambda: small([helper.make_node("Odd", ["means"], ["odd"], domain="here")]),
        {},
        "operator 'Odd'",
    ),
    "outputs": (lambda: small(), {"outputs": {"means": 3, "maxima": 3}}, "no output 'maxima'"),
    "width": (lambda: small(), {"outputs": {"means": 4}}, "'means' of width 4"),
    "no means": (lambda: small(outputs=()), {"outputs": {}}, "no output 'means'"),
    "input": (lambda: small(), {"input": "photos"}, "input is not 'photos'"),
    "size": (lambda: small(), {"transform": {"size": 9}}, "9 x 9 pixels"),
    "opset": (lambda: of_opset(17), {}, "operator set 18, got \\[17\\]"),
    "halves": (lambda: small(kind=TensorProto.FLOAT16), {}, "8 x 8 pixels in float32"),
    "many": (many, {}, "too large"),
    "sparse": (sparse, {}, "operator 'Constant'"),
    "facts": (lambda: small(), {"transform": {"size": 0}}, "does not describe an eye"),
    "more facts": (lambda: small(), {"run": "me"}, "does not describe an eye"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_is_not_what_its_json_says_is_not_run(case, tmp_path):
    model, changed, sentence = HOSTILE[case]
    with pytest.raises(CheckpointError, match=sentence) as caught:
        Eye.open(saved(tmp_path, model(), **changed))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_missing_json_say_what_to_do(tmp_path):
    path = saved(tmp_path, small())
    path.with_suffix(".json").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"\.json must lie beside it, with its input, its outputs and its SHA-256",
    ):
        Eye.open(path)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        Eye.open(tmp_path / "nothing.onnx")


def test_a_session_leaves_no_file_in_the_home_of_its_user(tmp_path):
    """Without ORT_DISABLE_TELEMETRY onnxruntime 1.31 leaves an id of the device there."""
    program = "import numpy as np; from labelwise.eyes import Eye; "
    program += "Eye.open().see(np.zeros((1, 3, 224, 224), np.uint8))"
    home = tmp_path / "home"
    home.mkdir()
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    places = {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", program], env=kept | places, check=True)
    assert list(Path(home).rglob("*")) == []


# A solved run by torch, as on a GPU. Oracle: the same run by ONNX Runtime, and by timm.


def test_torch_answers_as_the_solved_run_does(tmp_path):
    eye, rng = Eye.open(), np.random.default_rng(0)
    for number, outputs in enumerate((eye.head_features, ("means",))):  # the second: runs of 0.3
        width = sum(eye.outputs[name] for name in outputs)
        head = rng.normal(size=(3, width)) / 30, rng.normal(size=3)
        folder = tmp_path / str(number)
        folder.mkdir()
        space = LabelSpace(("a", "b", "c"))
        SolvedModel.of(eye, outputs, *head, space, Sigmoid(), Threshold(0.5)).save(folder)
        photos = rng.integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
        by_torch, plain = Predictor.load(folder), load_model(folder)
        for found, expected in zip(
            by_torch.embed(torch.from_numpy(photos)), plain.embed(photos), strict=True
        ):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-4)
        by_torch.save(tmp_path)  # for a hub: its name builds it again
        again = Predictor.load(tmp_path).logits(torch.from_numpy(photos))
        torch.testing.assert_close(again, by_torch.logits(torch.from_numpy(photos)))


def test_timm_loads_a_head_on_means_alone(tmp_path):
    """What `train --set means_only=true` writes; other heads on the built-in network are named."""
    eye, rng, space = Eye.open(), np.random.default_rng(0), LabelSpace(("a", "b"))
    for number, kept in enumerate((eye.of_means(), eye)):
        width = sum(kept.outputs[name] for name in kept.head_features)
        head, folder = (
            (rng.normal(size=(2, width)) / 30, rng.normal(size=2)),
            tmp_path / f"{number}",
        )
        folder.mkdir()
        parts = (kept, kept.head_features, *head, space, Sigmoid(), Threshold(0.5))
        SolvedModel.of(*parts).save(folder)
    plain, more = (Predictor.load(tmp_path / name) for name in "01")
    with pytest.raises(SettingsError, match="train with `--set means_only=true` for a folder"):
        more.model.timm_names()
    assert export_hub(plain, tmp_path / "hub", lambda folder, model: None).loads_in_timm
    photo = torch.from_numpy(rng.integers(0, 256, (1, 3, 224, 224), dtype=np.uint8))
    network = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    mean, std = (torch.tensor(values) for values in (plain.transform.mean, plain.transform.std))
    with torch.inference_mode():
        logits = network((photo / 255 - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(logits, plain.logits(photo), atol=1e-4, rtol=0)


# Label names as the beginning of a head. Oracles: the eye's own classes, a slow derivative.


def log_odds(logits, classes):
    p = np.exp(logits - logits.max(1, keepdims=True))
    share = p[:, classes].sum(1) / p.sum(1)
    return np.log(share / (1 - share))


def test_directions_are_the_mean_slope_of_the_log_odds_of_all_classes_of_a_name():
    eye, rng = Eye.open(), np.random.default_rng(0)
    weight, bias = (side.astype(float) for side in eye.classifier())
    x = rng.normal(size=(7, 2992)).astype(np.float32)
    towards = directions(eye, ["dog", "evening"], x)
    assert not towards[1].any()
    classes = list(imagenet_kinds().of(["dog"]))
    means, step = x[:, :1280].astype(float), 1e-4 * rng.normal(size=1280)
    odds = [log_odds((means + side) @ weight.T + bias, classes) for side in (step, -step)]
    np.testing.assert_allclose(towards[0, :1280] @ step, (odds[0] - odds[1]).mean() / 2, rtol=1e-4)
    assert not towards[:, 1280:].any()
    assert directions(eye, ["evening"], x) is None


def test_a_head_begins_with_names_only_where_that_helps():
    """With few rows a right direction helps; a wrong one, of noise, is left out."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 60))
    truth = rng.normal(size=(3, 60)) / 4
    y = (x @ truth.T + 0.3 * rng.normal(size=(240, 3)) > 0.5).astype(float)
    few, new = slice(0, 40), slice(40, None)
    plain = fit(x[few], y[few])
    named = fit_named(x[few], y[few], None, 5 * truth, plain)

    def loss(fitted):
        log_p, log_q = fitted.link.log_probs(fitted.logits(x[new]))
        return -(y[new] * log_p + (1 - y[new]) * log_q).mean()

    assert loss(named) < 0.75 * loss(plain)
    assert fit_named(x[few], y[few], None, rng.normal(size=(3, 60)), plain) is None


def test_names_whose_photos_are_not_there_do_not_run_away():
    """Few photos without a dog say little of how far scores of dogs reach: the mean variance of all
    names counts for 30 rows more. Oracle: a photo 100 deviations away is not sure by its name.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32) * np.array([1, 0.01], np.float32)
    y = np.stack([x[:, 0] + 0.3 * rng.normal(size=60) > 0, rng.random(60) < 0.1], 1).astype(float)
    named = fit_named(x, y, None, np.eye(2), fit(0 * x, y))
    assert named is not None
    assert abs(float(named.logits(np.array([[0, 1]], np.float32))[0, 1])) < 12

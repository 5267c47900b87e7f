"""Whole files: every head, backbone and link against the model; damage; the engine; the verb.

Oracle: the predictor in torch, on the same pictures.
"""

import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import PIL
import pytest
import torch
from export_samples import (
    BACKBONES,
    LABELS,
    base_links,
    fitted_links,
    link_of_each_kind,
    photo,
    pictures,
    predictor,
    rules,
    spec,
)
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tiny_predictor import encoded
from typed import must_run, refused

from labelwise.base.progress import Silent
from labelwise.calibration import CALIBRATORS
from labelwise.decide import AtMost, Threshold, TopK
from labelwise.decide.rules import rule_to_spec
from labelwise.errors import CheckpointError, ImageError, LabelwiseError, SettingsError
from labelwise.exports import parity
from labelwise.exports.onnx_file import export_network, export_onnx
from labelwise.exports.parity import assert_parity, compare_answers
from labelwise.eyes.session import open_session
from labelwise.learn.inference import infer
from labelwise.learn.methods import HEADS, LINKS, RULES
from labelwise.links import Sigmoid
from labelwise.models.answer_files import NOT_FINITE
from labelwise.models.graph_file import Facts, features_of, read_model, sealed
from labelwise.models.graph_links import Graph, default_thresholds, write_link, write_rule
from labelwise.models.graph_model import OnnxModel
from labelwise.models.graph_writer import assemble, write_resize
from labelwise.models.loading import caution_of
from labelwise.models.scoring import score
from labelwise.photos import Index, update_index
from labelwise.photos.query import nearest_photos, photos_like
from labelwise.pictures import BytesImages, PictureImages, Transform, labelwise_runtime
from labelwise.pictures.labelwise_runtime import Tagger, read_picture

LINK_SAMPLES, BASE_LINKS, FITTED_LINKS = link_of_each_kind(), base_links(), fitted_links()
# A head takes the map of any backbone: each is tried after one, and each backbone with one.
NETWORKS = [("small-cnn", "boostlu"), ("small-cnn", "ml-decoder"), ("test_resnet", "linear")]
NETWORKS += [("test_resnet", "query2label"), ("test_vit", "two-head")]


def test_everything_in_the_catalogues_is_tried():
    backbones, heads = map(set, zip(*NETWORKS, strict=True))
    assert (backbones, heads) == (set(BACKBONES), set(HEADS))
    for pair in (CALIBRATORS, [*BASE_LINKS, "nothing"]):
        assert all(any(name in made.split(" of ") for made in FITTED_LINKS) for name in pair)
    assert set(LINKS) == {link.kind for link in (*BASE_LINKS.values(), *FITTED_LINKS.values())}
    assert set(RULES) == {rule.kind for rule in rules().values()}


def facts(model, **change):
    given = Facts(model.space, model.link, model.rule, model.transform, "bce", "0" * 63 + "1")
    return replace(given, **change)


def opened(network, model, **change):
    return OnnxModel(*read_model(sealed(assemble(network, facts(model, **change))), "test"))


@pytest.fixture(scope="module")
def small():
    model = predictor(link=Sigmoid(), rule=Threshold((0.3, 0.4, 0.5, 0.6, 0.7)))
    return model, export_network(model.model, model.transform.size)


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_every_head_and_backbone_agrees_and_every_link_after_some_of_them(backbone, head):
    """Links take logits alone, so each is tried after one network, and each network with some."""
    bare = predictor(backbone, head, mirrored=head == "two-head")
    network, images = export_network(bare.model, bare.transform.size), pictures(2)
    parity = assert_parity(opened(network, bare), bare, images, [0, 1])
    assert 0 < parity.logit < 1e-5  # two programs, so never exactly 0
    (part,) = infer(lambda pixels: (bare.logits(pixels),), images, bare.transform)
    first = NETWORKS.index((backbone, head))
    for link in [*LINK_SAMPLES.values()][first :: len(NETWORKS)]:
        model = replace(bare, link=link)
        file = OnnxModel(assemble(network, facts(model)), facts(model))
        logits = part.values[0].numpy()
        assert compare_answers(file.decided(logits), model, logits, "picture") < 1e-6


def test_padding_that_depends_on_the_picture_is_a_number_in_the_file():
    model = predictor("tf_efficientnet_lite0")  # pads as TensorFlow does
    network = export_network(model.model, model.transform.size)
    assert not {node.op_type for node in network.graph.node} & {"Shape", "Ceil", "Div"}
    assert_parity(opened(network, model), model, pictures(1), [0])


def test_five_crops_are_in_the_file(tmp_path):
    model = predictor(link=Sigmoid(), crops=5)
    _, parity = export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    assert 0 < parity.logit < 1e-5
    once = replace(model, model=predictor().model)
    with pytest.raises(LabelwiseError):
        assert_parity(OnnxModel.load(tmp_path / "m.onnx"), once, pictures(1), [0])


def test_the_file_alone_answers_one_picture_of_any_size(written):
    model, path = written
    session = onnxruntime.InferenceSession(path)
    assert [one.name for one in session.get_inputs()] == ["image"]
    assert session.get_overridable_initializers() == []
    picture = pictures(1, (123, 217)).pixels[0]
    logits, p, label, none = session.run(None, {"image": picture})
    expected = model.predict(picture)
    np.testing.assert_allclose(p, expected.probs, atol=1e-3)  # pixels may be a level apart
    np.testing.assert_array_equal(label, p.astype(np.float64) >= model.rule.value)
    np.testing.assert_allclose(none, (1 - p.astype(np.float64)).prod(1), rtol=1e-5)
    assert logits.shape == (1, 5)


def test_the_pixels_variant_takes_batches(small):
    model, network = small
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 48, 48), np.uint8)
    content = sealed(assemble(network, facts(model, input="pixels")))
    found = onnxruntime.InferenceSession(content).run(["logits"], {"pixels": pixels})[0]
    np.testing.assert_allclose(found, model.logits(torch.from_numpy(pixels)), atol=1e-5)


def test_the_metadata_says_what_the_file_is(written):
    model, path = written
    metadata = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    assert json.loads(metadata["labels"]) == list(model.space.names)
    assert metadata["names"] == "{0: 'dog', 1: 'red car', 2: 'Straße', 3: 'a,b', 4: 'e'}"
    assert json.loads(metadata["link"]) == {"kind": "sigmoid"}
    assert json.loads(metadata["rule"])["value"] == list(model.rule.value)
    assert metadata["task"] == "classify"
    assert json.loads(metadata["imgsz"]) == [48, 48]
    assert metadata["weights_sha256"] == "0" * 63 + "1"


def test_a_model_that_only_ranks_exports_its_ranking(tmp_path):
    model = predictor(link=None)
    export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(2))
    opened = OnnxModel.load(tmp_path / "m.onnx")
    answers = opened.answers(np.stack([opened.pixels(one) for one in pictures(2).pixels]))
    assert answers.probability is None
    np.testing.assert_array_equal(answers.ranking, (-answers.logits).argsort(1, kind="stable"))


def test_a_wrong_network_is_found_and_its_node_named(small):
    """Its second convolution is changed."""
    model, wrong = small[0], onnx.ModelProto()
    wrong.CopyFrom(small[1])
    _, convolution, *_ = (node for node in wrong.graph.node if node.op_type == "Conv")
    weights = next(one for one in wrong.graph.initializer if one.name == convolution.input[1])
    changed = numpy_helper.to_array(weights) + np.float32(0.5)
    weights.CopyFrom(numpy_helper.from_array(changed, weights.name))
    with pytest.raises(LabelwiseError, match=f"first node that differs is '{convolution.name}'"):
        assert_parity(opened(wrong, model), model, pictures(1), [0])


def test_a_wrong_stage_is_found_and_named(small):
    model, network = replace(small[0], rule=Threshold(0.5)), small[1]
    other = replace(model.transform, interpolation="nearest")
    for change, message in (
        ({"link": LINK_SAMPLES["spa"]}, "probabilities of .* differs is the link 'sigmoid'"),
        ({"rule": TopK(1)}, "decided labels of .* differs is the rule 'threshold'"),
        ({"transform": other}, "levels apart after the resize, more than 1"),
    ):
        with pytest.raises(LabelwiseError, match=message):
            assert_parity(opened(network, model, **change), model, pictures(1), [0])


def test_every_flipped_bit_is_noticed(written, tmp_path):
    content = written[1].read_bytes()
    for place in np.linspace(40, len(content) - 40, 60).astype(int):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(place % 8)
        with pytest.raises(CheckpointError, match=r"damaged|not a readable|was not written|must"):
            read_model(bytes(damaged), "model.onnx")


def test_foreign_and_later_files_get_one_sentence(written, tmp_path):
    model = onnx.load(written[1])
    model.opset_import[0].version = 99
    later = model.SerializeToString()
    del model.metadata_props[:]
    for content, told in (
        (later, "must use ONNX operator set 18, got 99"),
        (model.SerializeToString(), "was not written by `labelwise export`"),
        *((content, r"m\.onnx (is not|was not)") for content in (b"", b"no model", bytes(100))),
    ):
        with pytest.raises(CheckpointError, match=told):
            read_model(content, "m.onnx")
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        OnnxModel.load(tmp_path / "none.onnx")


def test_arrays_that_are_no_pictures_get_one_sentence(written):
    file = OnnxModel.load(written[1])
    odd = [((4, 4, 4), "uint8"), ((4, 4, 3), "uint16"), ((4, 4), "uint8"), ((0, 4, 3), "uint8")]
    for shape, kind in odd:
        with pytest.raises(ImageError, match=re.escape(f"got {kind} {shape}")):
            file.pixels(np.zeros(shape, kind))


def test_what_cannot_be_exported_is_refused(tmp_path):
    model = predictor(link=Sigmoid())
    with pytest.raises(SettingsError, match="compared with its model on pictures; none were"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1), [])
    model.model.backbone.name = "identity"
    with pytest.raises(SettingsError, match="reads stored features, not pictures"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))


# Links and rules as ONNX graphs. Oracle: the links and rules themselves, in float64.

RANDOM = np.random.default_rng(1).normal(0, 4, (200, LABELS))
EXTREME = np.array([[-1e4, -90, 0, 90, 1e4], [0, 0, 0, 0, 0], [-700, -700, -700, -700, -700]])
LOGITS = np.concatenate([RANDOM, EXTREME, 30 * RANDOM[:50]]).astype(np.float32)


def session_of(graph, start, names):
    body = graph.body("test", [start], [*map(helper.make_empty_tensor_value_info, names)])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return open_session(model, threads=1)


def run(graph, values, *outputs):
    """Run a graph from the float64 input ``x`` to outputs of any kind."""
    names = [graph.named(one, f"out{at}") for at, one in enumerate(outputs)]
    start = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", values.shape[1]])
    return session_of(graph, start, names).run(names, {"x": values})


@pytest.mark.parametrize("start", range(8))
def test_probabilities_are_those_of_the_link(start):
    """Every eighth link is written into one graph."""
    names = [*BASE_LINKS, *FITTED_LINKS][start::8]
    links = [BASE_LINKS.get(name) or FITTED_LINKS[name] for name in names]
    values, graph = torch.from_numpy(LOGITS).double(), Graph()
    written = [value for link in links for value in write_link(graph, link, "x", LABELS)]
    found = iter(run(graph, values.numpy(), *written))
    for name, link, p, none in zip(names, links, found, found, strict=True):
        np.testing.assert_allclose(p, link(values), rtol=1e-9, atol=1e-12, err_msg=name)
        expected = link.log_none(values).exp()
        np.testing.assert_allclose(none, expected, rtol=1e-8, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", rules())
def test_sets_are_those_of_the_rule(name):
    rule, rng = rules()[name], np.random.default_rng(2)
    spread = rng.beta(0.3, 0.9, (300, LABELS))
    ties = rng.integers(0, 3, (100, LABELS)) / 2  # equal, zero and one
    given = [np.concatenate([spread, ties, np.zeros((1, LABELS)), np.ones((1, LABELS))])]
    thresholds = default_thresholds(rule, LABELS)
    if name == "expected F":  # of many labels it cuts its laws, without harm
        given.append(rng.beta(0.2, 4, (20, 120)))
    for probs in given:
        graph = Graph()
        levels = None if thresholds is None else graph.constant(thresholds)
        (sets,) = run(graph, probs, write_rule(graph, rule, "x", levels))
        np.testing.assert_array_equal(sets, rule(probs))


# The resize inside an exported file. Oracle: Pillow, as a model sees its pictures.

SIZES = [(64, 64), (200, 150), (150, 200), (77, 60), (1, 1), (3000, 10), (10, 900), (90, 700)]
SIZES += [(65, 64), (128, 128), (100, 301), (640, 480), (40, 48)]


def resize(transform):
    graph = Graph()
    graph.named(write_resize(graph, transform, "image"), "pixels")
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 3])
    session = session_of(graph, image, ["pixels"])
    return lambda picture: session.run(None, {"image": np.asarray(picture)})[0]


def noise(width, height):
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="another order of the sides")
@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_the_resize_of_a_file_is_pillow_to_the_bit(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    written = resize(transform)
    for size in SIZES:
        expected = transform.pixels(noise(*size)).numpy()
        np.testing.assert_array_equal(written(noise(*size)), expected, err_msg=str(size))


# Indexes by an exported file. Oracle: those of the run that it was made of.


def test_an_index_by_a_file_holds_what_one_by_its_run_does(written, tmp_path):
    model, path = written
    model.save(tmp_path / "run")
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        noise(30, 24 + number).save(photos / f"{number}.png")
    for name, given in (("own.index", tmp_path / "run"), ("file.index", path)):
        assert update_index(tmp_path / name, [photos], model=given, watch=Silent()).new == 12
    noise(30, 27).rotate(90, expand=True).save(tmp_path / "new.png")
    with Index(tmp_path / "own.index") as own, Index(tmp_path / "file.index") as exported:
        assert own.store.paths_of(range(12)) == exported.store.paths_of(range(12))
        for k in range(LABELS):
            found, expected = exported.store.column(k), own.store.column(k)
            np.testing.assert_allclose(found, expected, atol=1e-4)
        for find, what in ((photos_like, str(tmp_path / "new.png")), (nearest_photos, 3)):
            (_, hits), (_, same) = (find(index, what, 4) for index in (own, exported))
            assert [hit.paths for hit in hits] == [hit.paths for hit in same]
        assert exported.held_out is None
        assert exported.spec.backbone.name == "float32 ONNX"


def test_what_cannot_be_indexed_says_so_before_anything_is_written(written):
    boosted = predictor(head="boostlu")
    network = export_network(boosted.model, boosted.transform.size)
    network.graph.node.append(helper.make_node("Identity", ["network_logits"], ["logits"]))
    assert features_of(network) is None
    assert caution_of(written[1]) is None


# Files that a stranger forged and sealed anew. Oracles: the engine; the facts that are wrong.

PLATT = {"kind": "platt", "link": {"kind": "sigmoid"}, "slope": 1.0, "offset": 0.0, "limit": 50.0}
FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.fixture(scope="module")
def honest(written):
    return written[1]


@pytest.fixture
def forged(honest, tmp_path):
    """Return what writes the file with other facts or another graph, under a right hash."""

    def forge(*, change=lambda graph: None, **facts):
        model = onnx.load(honest)
        change(model.graph)
        kept = {prop.key: prop.value for prop in model.metadata_props} | facts
        kept = {key: value for key, value in kept.items() if value is not None}
        helper.set_model_props(model, kept)
        (tmp_path / "forged.onnx").write_bytes(sealed(model))
        return tmp_path / "forged.onnx"

    return forge


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
    "exact_resize": ["false"],  # other pixels than the model's own
}


@pytest.mark.parametrize(
    ("key", "text"),
    [(key, text) for key, texts in REFUSED.items() for text in texts],
    ids=lambda one: str(one)[:40],
)
def test_facts_that_cannot_be_used_are_refused(forged, key, text):
    path = forged(**{key: text})
    with pytest.raises(CheckpointError, match=r"forged\.onnx"):
        OnnxModel.load(path)


def answering(operator, *values):
    """Put an operator between what a graph computes and its probabilities."""

    def change(graph):
        for one in graph.node:
            one.output[:] = ["before" if name == "probability" else name for name in one.output]
            one.input[:] = ["before" if name == "probability" else name for name in one.input]
        graph.initializer.extend(numpy_helper.from_array(np.array(one), "one") for one in values)
        given = ["before", *("one" for _ in values)]
        graph.node.append(helper.make_node(operator, given, ["probability"]))

    return {"change": change}


FORGED = [
    PLATT | {"slope": 1.1},
    PLATT | {"offset": [0.0, 0.0, 0.0, 0.0, 0.01]},  # of one label: the others agree
    PLATT | {"limit": 1e-3},
    {"kind": "temperature", "link": None, "temperature": 0.9, "limit": 50.0},
    {"kind": "softmax", "temperature": 1.0},
]
FORGED = [({"link": json.dumps(link)}, "probabilities of the link in its metad") for link in FORGED]
# Logits stay finite, so these were written as they came; the last are too large for any memory.
for node in (("Mul", np.float32("nan")), ("Mul", np.float32(2)), ("Neg",)):
    FORGED.append((answering(*node), "must give the probabilities"))
FORGED.append((answering("Expand", [1 << 24, 1 << 20, 5]), "cannot be run by onnxruntime"))


@pytest.mark.parametrize(("given", "sentence"), FORGED)
def test_probabilities_of_no_link_or_another_than_the_stated_one(honest, forged, given, sentence):
    path = forged(**given)
    out = path.with_name("out.csv")
    assert sentence in refused("predict", path, honest.parent / "0.png", "-o", out)
    assert not out.exists()


@pytest.mark.parametrize("rule", [Threshold(0.0), Threshold(tuple(FIVE)), AtMost(Threshold(0), 2)])
def test_labels_are_those_of_the_stated_rule(honest, forged, rule):
    model = OnnxModel.load(forged(rule=json.dumps(rule_to_spec(rule))))
    images = PictureImages(sorted(honest.parent.glob("*.png")))
    (part,) = score(model, images)
    pictures = (np.asarray(images.read(row)) for row in range(len(images)))
    probs = np.concatenate([model.answers(model.pixels(p)[None]).probability for p in pictures])
    assert np.array_equal(part.sets, rule(probs))
    assert part.sets.any()


@pytest.mark.parametrize("name", ["logits", "probability"])
def test_a_graph_without_an_output(forged, name):
    def renamed(graph):
        for node in graph.node:
            node.output[:] = ["other" if one == name else one for one in node.output]
            node.input[:] = ["other" if one == name else one for one in node.input]
        for output in graph.output:
            output.name = "other" if output.name == name else output.name

    path = forged(change=renamed)
    with pytest.raises(CheckpointError, match="cannot be run by onnxruntime"):
        OnnxModel.load(path)


def test_names_cannot_steer_the_terminal(honest, forged):
    names = ["\x1b[2J", "\u202eb", "c\nd", "=1+1", "e\x00"]
    facts = {"labels": json.dumps(names), "rule": '{"kind": "threshold", "value": 0.0}'}
    path = forged(caution="\x1b]0;owned\x07", **facts)
    done = must_run("predict", path, honest.parent / "0.png", "-o", path.with_name("out.csv"))
    assert not set(done.output) & set("\x1b\u202e\x00\x07")


def test_logits_that_are_not_finite_are_an_error(honest, forged):
    def spoilt(graph):
        (bias,) = (one for one in graph.initializer if one.name.endswith("classifier.bias"))
        bias.CopyFrom(numpy_helper.from_array(np.full(5, np.nan, np.float32), bias.name))

    images = PictureImages([honest.parent / "0.png"])
    (part,) = score(OnnxModel.load(forged(change=spoilt)), images)
    (found,) = part.answers()
    assert found.error == f"{found.id}: {NOT_FINITE}"
    assert (found.labels, found.probs) == ((), ())


# Exported files from the bytes of photos. Oracle: what ``predict`` answers for the same files.

OLDER_PILLOW = int(PIL.__version__.split(".")[0]) < 13


def test_the_runtime_answers_as_predict_does_from_the_bytes_of_photos(written):
    model, path = written
    photos = [photo(number) for number in range(42)]
    answers = model.predict(photos)
    probs, sets = answers.probs, answers.sets
    tagger, names = Tagger(path), model.space.names
    for row, blob in enumerate(photos):
        found = tagger(blob)
        p = np.array([found.probability[name] for name in names])
        # Two versions of libjpeg round a value in a thousand differently; so does Pillow before 13
        # where it enlarges a side.
        atol = 5e-4 if OLDER_PILLOW else 2e-4 if row % 7 < 3 else 1e-5
        np.testing.assert_allclose(p, probs[row], atol=atol, err_msg=f"photo {row}")
        close = np.abs(probs[row] - np.array(model.rule.value)) < atol
        chosen = np.array([name in found.labels for name in names])
        assert not (chosen != sets[row])[~close].any()
        assert found.labels == sorted(found.labels, key=lambda name: -found.probability[name])
    assert 0 < sets.sum() < sets.size


def test_the_runtime_runs_alone_and_silently_also_on_photos_of_a_phone(written, tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs the photos extra")
    model, path = written
    shutil.copy(path, tmp_path)
    shutil.copy(labelwise_runtime.__file__, tmp_path)
    picture = Image.fromarray(pictures(1, (96, 128)).pixels[0])
    pillow_heif.from_pillow(picture).save(tmp_path / "a", quality=80)
    blob = (tmp_path / "a").read_bytes()
    program = (
        "import json, sys; from labelwise_runtime import Tagger; "
        "answer = Tagger('model.onnx')('a'); "
        "assert not {'torch', 'labelwise'} & set(sys.modules); "
        "print(json.dumps(answer._asdict()))"
    )
    options = {"env": {}, "capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, **options)
    assert done.stderr == ""  # onnxruntime warns of no part of the file
    found, expected = json.loads(done.stdout), model.predict(blob).probs[0]
    p = [found["probability"][name] for name in model.space.names]
    np.testing.assert_allclose(p, expected, atol=1e-5)
    np.testing.assert_allclose(found["none"], np.prod(1 - expected), rtol=1e-4)


def test_the_snippet_of_the_docs_reads_a_turned_photo(written, tmp_path, monkeypatch):
    model, path = written
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (snippet,) = re.findall(r"```python\n((?:(?!```).)*?exif_transpose.*?)```", page, re.S)
    shutil.copy(path, tmp_path / "model.onnx")
    (tmp_path / "pictures").mkdir()
    blob = photo(5 * 7)  # on its side
    (tmp_path / "pictures" / "0.png").write_bytes(blob)
    monkeypatch.chdir(tmp_path)
    names = {"np": np}
    exec(snippet, names)
    np.testing.assert_allclose(names["probability"], model.predict(blob).probs, atol=1e-5)
    assert names["labels"] == list(model.space.names)


def test_thresholds_are_an_input_where_they_were_asked_for(written, tmp_path):
    model, _ = written
    export_onnx(model, spec(model), tmp_path / "open.onnx", pictures(1), open_thresholds=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "open.onnx", options)
    assert [one.name for one in session.get_overridable_initializers()] == ["thresholds"]
    picture = pictures(1, (123, 217)).pixels[0]
    every = session.run(["label"], {"image": picture, "thresholds": np.zeros(5)})[0]
    own = session.run(["label"], {"image": picture})[0]
    assert every.all()
    np.testing.assert_array_equal(own, model.predict(picture).sets)


def test_a_reader_that_ignores_the_rotation_stops_the_export(written, tmp_path, monkeypatch):
    def ignorant(content):
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))

    monkeypatch.setattr(parity, "read_picture", ignorant)
    model, _ = written
    with pytest.raises(LabelwiseError, match="decodes a turned JPEG to other pixels"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    assert not (tmp_path / "m.onnx").exists()


def test_files_of_the_data_are_compared_from_their_bytes(written, tmp_path, monkeypatch):
    (model, _), seen, blobs = written, [], [photo(1), photo(4)]
    monkeypatch.setattr(
        parity, "read_picture", lambda blob: seen.append(blob) or read_picture(blob)
    )
    images = BytesImages(blobs, ["a", "b"])
    _, compared = export_onnx(model, spec(model), tmp_path / "m.onnx", images)
    assert seen[:2] == blobs
    assert len(seen) == 8
    assert "on 2 pictures and 6 test files (rotated by EXIF, " in str(compared)


def test_models_that_decode_at_a_reduced_scale_say_so_and_are_not_exported(tmp_path):
    """Oracle: Pillow's own decoding at an eighth of the size."""
    model = predictor(link=Sigmoid(), reduced_jpeg=True)
    model.save(tmp_path / "run")
    again = type(model).load(tmp_path / "run")
    assert again.transform.reduced_jpeg
    blob = encoded(Image.fromarray(pictures(1, (900, 900)).pixels[0]), "JPEG")
    with Image.open(io.BytesIO(blob)) as image:
        image.draft(None, (48, 48))
        assert image.size == (113, 113)
        small = np.asarray(image)
    found = again.predict(blob).probs
    np.testing.assert_array_equal(found, again.predict(small).probs)
    assert np.abs(found - predictor(link=Sigmoid()).predict(blob).probs).max() > 1e-4
    with pytest.raises(SettingsError, match="at a reduced scale"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    export_onnx(model, spec(model), tmp_path / "p.onnx", pictures(1), input="pixels")
    assert OnnxModel.load(tmp_path / "p.onnx").facts.transform.reduced_jpeg


def test_the_verb_writes_the_runtime_beside_the_file(written, tmp_path, run_verb):
    written[0].save(tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(photo(1))
    given = ("export", tmp_path / "run", "--data", tmp_path / "photos", "-o", tmp_path / "m.onnx")
    printed = run_verb(*given, "--with-runtime")
    assert "agrees with the model on 1 picture and 6 test files" in printed
    assert "from labelwise_runtime import Tagger; Tagger('m.onnx')(photo)" in printed
    shipped = (tmp_path / "labelwise_runtime.py").read_text()
    assert shipped == Path(labelwise_runtime.__file__).read_text()
    for odd in (("--input", "pixels"), ("--format", "hf")):
        with pytest.raises(SettingsError, match="--with-runtime"):
            run_verb(*given, "--with-runtime", *odd)
    with pytest.raises(SettingsError, match=r"must end in \.onnx, by which it is known, got 'm.b"):
        run_verb(*given[:-1], tmp_path / "m.bin")

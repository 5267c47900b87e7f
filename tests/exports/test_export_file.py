"""Whole files: every head, backbone and link against the model; damage; the engine; the verb.

Oracle: the predictor in torch, on the same pictures.
"""

import json
import re
import shutil
from dataclasses import replace

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
    pictures,
    predictor,
    rules,
    spec,
)
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from web_setup import running

from labelwise.calibration import CALIBRATORS
from labelwise.decide import Threshold, TopK
from labelwise.errors import CheckpointError, ImageError, LabelwiseError, SettingsError
from labelwise.exports.links import RULE_OPS, Graph, default_thresholds, write_link, write_rule
from labelwise.exports.onnx_file import assemble, export_network, export_onnx, write_resize
from labelwise.exports.parity import assert_parity, compare_answers
from labelwise.links import Sigmoid
from labelwise.methods import HEADS, LINKS, RULES
from labelwise.models.graph_file import (
    Facts,
    GraphFeatures,
    features_of,
    open_session,
    read_model,
    sealed,
)
from labelwise.models.graph_model import OnnxModel
from labelwise.models.loading import caution_of, spec_of
from labelwise.models.scoring import infer
from labelwise.photos import Index, update_index
from labelwise.photos.query import nearest_photos, photos_like
from labelwise.pictures import Transform
from labelwise.system.progress import Silent

LINK_SAMPLES = link_of_each_kind()
# A head takes the map of any backbone: each is tried after one, and each backbone with one.
NETWORKS = [("small-cnn", "boostlu"), ("small-cnn", "ml-decoder"), ("test_resnet", "linear")]
NETWORKS += [("test_resnet", "query2label"), ("test_vit", "two-head")]


def test_every_head_and_backbone_is_tried():
    backbones, heads = zip(*NETWORKS, strict=True)
    assert set(backbones) == set(BACKBONES)
    assert set(heads) == set(HEADS)


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
    kinds = {node.op_type for node in network.graph.node}
    assert "Conv" in kinds
    assert not kinds & {"Shape", "Ceil", "Div"}
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
    order = (-answers.logits).argsort(axis=1, kind="stable")
    np.testing.assert_array_equal(answers.ranking, order)


def test_a_wrong_network_is_found_and_its_node_named(small):
    """One number of its second convolution is changed."""
    model, wrong = small[0], onnx.ModelProto()
    wrong.CopyFrom(small[1])
    convolution = [node for node in wrong.graph.node if node.op_type == "Conv"][1]
    weights = next(one for one in wrong.graph.initializer if one.name == convolution.input[1])
    values = numpy_helper.to_array(weights).copy()
    values[0] += 0.5
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
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
    with pytest.raises(CheckpointError, match="must use ONNX operator set 18, got 99"):
        read_model(model.SerializeToString(), "m.onnx")
    del model.metadata_props[:]
    with pytest.raises(CheckpointError, match="was not written by `labelwise export`"):
        read_model(model.SerializeToString(), "m.onnx")
    for content in (b"", b"not a model at all", b"\x00" * 100):
        with pytest.raises(CheckpointError, match=r"m\.onnx (is not|was not)"):
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
    with pytest.raises(ValueError, match="must be image or pixels, got 'picture'"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1), input="picture")
    with pytest.raises(SettingsError, match="compared with its model on pictures; none were"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1), [])
    model.model.backbone.name = "identity"
    with pytest.raises(SettingsError, match="reads stored features, not pictures"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))


# Links and rules as ONNX graphs. Oracle: the links and rules themselves, in float64.


BASE_LINKS, FITTED_LINKS = base_links(), fitted_links()
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


def test_every_kind_in_the_catalogues_can_be_written():
    for pair in (CALIBRATORS, [*BASE_LINKS, "nothing"]):
        assert all(any(name in made.split(" of ") for made in FITTED_LINKS) for name in pair)
    samples = [*BASE_LINKS.values(), *FITTED_LINKS.values()]
    assert set(LINKS) == {link.kind for link in samples}
    assert set(RULE_OPS) == set(RULES) == {rule.kind for rule in rules().values()}


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
    rule = rules()[name]
    rng = np.random.default_rng(2)
    spread = rng.beta(0.3, 0.9, (300, LABELS))
    ties = rng.integers(0, 3, (100, LABELS)) / 2  # equal, zero and one
    probs = np.concatenate([spread, ties, np.zeros((1, LABELS)), np.ones((1, LABELS))])
    graph = Graph()
    thresholds = default_thresholds(rule, LABELS)
    given = None if thresholds is None else graph.constant(thresholds)
    (sets,) = run(graph, probs, write_rule(graph, rule, "x", given))
    np.testing.assert_array_equal(sets, rule(probs))


def test_expected_f_of_many_labels_cuts_its_laws_without_harm():
    rule, rng = rules()["expected F"], np.random.default_rng(3)
    probs = rng.beta(0.2, 4, (20, 120))
    graph = Graph()
    (sets,) = run(graph, probs, write_rule(graph, rule, "x", None))
    np.testing.assert_array_equal(sets, rule(probs))
    assert sets.any()


# The resize inside an exported file. Oracle: Pillow, one side after the other.


SIZES = [(64, 64), (200, 150), (150, 200), (77, 60), (1, 1), (3000, 10), (10, 900), (90, 700)]
SIZES += [(65, 64), (128, 128), (100, 301), (640, 480), (40, 48)]


def resize(transform, *, exact):
    graph = Graph()
    graph.named(write_resize(graph, transform, "image", exact=exact), "pixels")
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 3])
    session = session_of(graph, image, ["pixels"])
    return lambda picture: session.run(None, {"image": np.asarray(picture)})[0]


def noise(width, height):
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def by_pillow(transform, image):
    """Return the pixels that Transform gives with Pillow 13, with any Pillow."""
    if transform.crop is not None:  # of a thin picture the middle 16 squares are left
        (width, height), most = image.size, 16 * min(image.size)
        left, top = max(0, (width - most) // 2), max(0, (height - most) // 2)
        image = image.crop((left, top, width - left, height - top))
    (width, height), (wide, tall) = image.size, transform.scale_size(*image.size)
    height_first = height - tall > 2 * max(width - wide, 0)
    between = (width, tall) if height_first else (wide, height)
    for size in (between, (wide, tall)):
        image = image.resize(size, transform.resampling)
    return transform.pixels(image).numpy()


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="another order of the sides")
@pytest.mark.parametrize("size", SIZES)
def test_the_oracle_is_what_a_model_sees(size):
    for transform in (Transform(64, interpolation="bicubic", crop=0.875), Transform(48)):
        expected = transform.pixels(noise(*size)).numpy()
        np.testing.assert_array_equal(by_pillow(transform, noise(*size)), expected)


@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_exact_resize_is_pillow_to_the_bit(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=True)
    for size in SIZES:
        expected = by_pillow(transform, noise(*size))
        np.testing.assert_array_equal(pixels(noise(*size)), expected, err_msg=str(size))


@pytest.mark.parametrize("crop", [None, 0.875])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_quick_resize_is_a_level_away_at_most(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=False)
    for size in SIZES:
        apart = pixels(noise(*size)).astype(int) - by_pillow(transform, noise(*size))
        assert np.abs(apart).max() <= 1, size
        assert (apart != 0).mean() < 0.02, size


# Indexes and servers of an exported file. Oracle: those of the run that it was made of.


COUNT = 12


@pytest.fixture(scope="module")
def places(tmp_path_factory, written):
    """A run's model, its file, photos, and an index by each."""
    folder = tmp_path_factory.mktemp("exported")
    written[0].save(folder / "run")
    shutil.copy(written[1], folder / "model.onnx")
    (folder / "photos").mkdir()
    random = np.random.default_rng(3)
    for number in range(COUNT):
        pixels = random.integers(0, 256, (24 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    for name in ("run", "model.onnx"):
        changes = update_index(
            folder / f"{name}.index", [folder / "photos"], model=folder / name, watch=Silent()
        )
        assert changes.new == COUNT
    return folder


def logits_by_name(index):
    columns = np.stack([index.store.column(k) for k in range(len(index.space))], axis=1)
    paths = index.store.paths_of(range(len(index)))
    return {path.rpartition("/")[2]: columns[row] for row, (path,) in paths.items()}


def test_an_index_by_a_file_holds_what_one_by_its_run_does(places):
    with Index(places / "run.index") as own, Index(places / "model.onnx.index") as exported:
        expected, found = logits_by_name(own), logits_by_name(exported)
        assert found.keys() == expected.keys()
        for name, logits in expected.items():
            np.testing.assert_allclose(found[name], logits, atol=1e-4)
        row = own.store.row_of(str(places / "photos" / "3.png"))
        other = exported.store.row_of(str(places / "photos" / "3.png"))
        new = str(places / "new.png")
        Image.open(places / "photos" / "3.png").rotate(90, expand=True).save(new)
        for one, same in (
            (nearest_photos(own, row, 4), nearest_photos(exported, other, 4)),
            (photos_like(own, new, 2), photos_like(exported, new, 2)),
        ):
            assert [hit.paths for hit in one[1]] == [hit.paths for hit in same[1]]
        assert exported.held_out is None
        assert exported.spec.backbone.name == "float32 ONNX"


def test_a_server_answers_and_searches_with_a_file(places):
    photo = (places / "photos" / "5.png").read_bytes()
    answers = []
    for name in ("run", "model.onnx"):
        with running(places / name, places / f"{name}.index") as client:
            status, _, body = client.upload(("5.png", photo))
            assert status == 200, body
            (answer,) = json.loads(body)["results"]
            found = client.get("/api/v1/search?q=dog&top=3")
            probs = {one["label"]: one["probability"] for one in answer["labels"]}
            answers.append((probs, [hit["name"] for hit in found["hits"]]))
    (expected, order), (found, same) = answers
    assert found == pytest.approx(expected, abs=1e-5)
    assert same == order


def test_what_cannot_be_indexed_says_so_before_anything_is_written(places, tmp_path):
    boosted = predictor(head="boostlu")
    network = export_network(boosted.model, boosted.transform.size)
    network.graph.node.append(helper.make_node("Identity", ["network_logits"], ["logits"]))
    assert features_of(network) is None
    assert isinstance(features_of(OnnxModel.load(places / "model.onnx").proto), GraphFeatures)
    (tmp_path / "vino").mkdir()
    (tmp_path / "vino" / "model.xml").touch()
    with pytest.raises(SettingsError, match="is for OpenVINO, which predicts with it"):
        spec_of(tmp_path / "vino")
    assert caution_of(places / "model.onnx") is None

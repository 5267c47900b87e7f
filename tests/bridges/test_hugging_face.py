"""Folders for Hugging Face. Oracles: transformers and timm on the folder; the model itself."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from turned_photos import NAMES, predictor, write_turned_photos

from labelwise.calibration import CALIBRATORS, Platt, Temperature
from labelwise.exports.hub import export_hub
from labelwise.exports.onnx_file import export_onnx, folded
from labelwise.learn.objectives import QuasibinaryLink, SoftmaxOrNoneLink, SPALink, WeightedSigmoid
from labelwise.learn.predictor import Predictor
from labelwise.links import Consistent, Sigmoid, Softmax
from labelwise.pictures.labelwise_runtime import Tagger
from labelwise.pictures.memory import as_images

SLOPES, OFFSETS = [0.5, 1.0, 2.0, 0.25], [-1.0, 0.5, 0.0, 2.0]
FOLDABLE = {
    "sigmoid": Sigmoid(),
    "temperature": Temperature(Sigmoid(), 2.5, 1e4),
    "temperature of raw logits": Temperature(None, 0.4, 1e4),
    "platt": Platt(Sigmoid(), SLOPES, OFFSETS, 1e4),
    "offsets": Platt(None, 0.7, OFFSETS, 1e4),
    "platt of weights": Platt(WeightedSigmoid([0.5, 1.0, 2.0, 9.0]), SLOPES, OFFSETS, 1e4),
    "weights": WeightedSigmoid([0.5, 1.0, 2.0, 9.0]),
    "softmax": Softmax(),
    "warm softmax": Softmax(1.7),
}
EXACT = 1e-5
FUNCTIONS = {  # what transformers documents for each problem_type
    "multi_label_classification": torch.sigmoid,
    "single_label_classification": lambda logits: logits.softmax(1),
}


LOGITS, NOISE = np.random.default_rng(0).normal(0, 2, (2, 80, len(NAMES)))
OTHERS = {
    "spa": SPALink(),
    "isotonic": CALIBRATORS["isotonic"](LOGITS, (LOGITS + NOISE > 0) * 1.0, Sigmoid()),
    "beta": CALIBRATORS["beta"](LOGITS, (LOGITS + NOISE > 0) * 1.0, Sigmoid()),
    "temperature of spa": Temperature(SPALink(), 2.0, 1e4),
    "cut off early": Platt(Sigmoid(), 1.0, 0.0, 3.0),
    "softmax or none": SoftmaxOrNoneLink(),
    "quasibinary": QuasibinaryLink(0.8),
    "parents": Consistent(Sigmoid(), (1, -1, -1, 0)),
    "ranking only": None,
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_turned_photos(tmp_path_factory.mktemp("photos"), 80)


def inputs(transform, paths):
    pictures = []
    for path in paths:
        with Image.open(path) as image:
            pictures.append(transform(ImageOps.exif_transpose(image).convert("RGB")))
    return torch.stack(pictures)


def by_timm(folder, paths):
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**config, is_training=False)
    with torch.no_grad():
        return network(inputs(transform, paths))


def same_everywhere(model, folder, photos):
    """Export a model; labelwise and timm read the folder with its probabilities."""
    done = export_hub(model, folder, lambda *_: None)
    assert done.loads_in_timm
    assert (done.loads_in_transformers, done.why_not_transformers) == (True, "")
    expected = model.predict(photos).probs
    read = Predictor.load(folder)
    np.testing.assert_allclose(read.predict(photos).probs, expected, atol=EXACT)
    function = FUNCTIONS[json.loads((folder / "config.json").read_text())["problem_type"]]
    np.testing.assert_allclose(function(by_timm(folder, photos)), expected, atol=EXACT)
    return read, expected


def test_one_probability_in_timm_onnx_and_labelwise(photos, tmp_path):
    read, expected = same_everywhere(predictor(FOLDABLE["platt"]), tmp_path / "hub", photos)
    assert expected.std(axis=0).min() > 0.005  # the photos tell the labels apart
    assert np.abs(expected.sum(axis=1) - 1).min() > 1e-3  # a softmax would be seen
    images, rows = as_images(photos), list(range(8))
    export_onnx(read, read.spec("0" * 63 + "1"), tmp_path / "model.onnx", images, rows)
    tagger = Tagger(tmp_path / "model.onnx")
    answers = [tagger(path.read_bytes()).probability for path in photos]
    found = np.array([[answer[name] for name in NAMES] for answer in answers])
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("name", FOLDABLE)
def test_links_that_scale_and_shift_are_folded_into_the_classifier(name, photos, tmp_path):
    read, _ = same_everywhere(predictor(FOLDABLE[name]), tmp_path / "hub", photos[:8])
    assert type(read.link) is (Softmax if "softmax" in name else Sigmoid)


@pytest.mark.parametrize("name", FOLDABLE)
def test_transformers_takes_the_function_of_the_folder(name, photos, transformers, tmp_path):
    export_hub(predictor(FOLDABLE[name]), tmp_path / "hub", lambda *_: None)
    tagger = transformers.pipeline("image-classification", str(tmp_path / "hub"), device="cpu")
    answers = [tagger(str(path), top_k=len(NAMES)) for path in photos[:8]]
    by_name = [{one["label"]: one["score"] for one in answer} for answer in answers]
    found = np.array([[answer[name] for name in NAMES] for answer in by_name])
    expected = predictor(FOLDABLE[name]).predict(photos[:8]).probs
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("name", OTHERS)
def test_other_links_are_kept_by_labelwise(name, photos, tmp_path):
    model = predictor(OTHERS[name])
    done = export_hub(model, tmp_path / "hub", lambda *_: None)
    assert (done.loads_in_timm, done.loads_in_transformers) == (True, False)
    assert done.why_not_transformers
    read = Predictor.load(tmp_path / "hub")
    assert read.spec("0" * 64).link == model.spec("0" * 64).link
    pixels = inputs(model.transform.pixels, photos[:4])
    logits = read.logits(model.transform.normalise(pixels))
    assert torch.equal(logits, model.logits(pixels))
    timms = by_timm(tmp_path / "hub", photos[:4])
    torch.testing.assert_close(timms, logits, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("name", OTHERS)
def test_transformers_refuses_other_links(name, transformers, tmp_path):
    export_hub(predictor(OTHERS[name]), tmp_path / "hub", lambda *_: None)
    with pytest.raises(ValueError, match="model type `labelwise`"):
        transformers.pipeline("image-classification", str(tmp_path / "hub"))


def test_folding_leaves_the_model_it_was_given_alone():
    model = predictor(FOLDABLE["platt"])
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    assert folded(model)[0].model.head is not model.model.head
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name

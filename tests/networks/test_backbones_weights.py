"""Weights files and what happens without a network; transforms against timm and torchvision."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from torchvision import models

from labelwise.decide import Threshold
from labelwise.errors import SettingsError
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.networks.backbones import PRETRAINED, create_backbone, weights
from labelwise.pictures import Transform
from labelwise.types import LabelSpace


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """No host answers, and both caches are empty folders; return what was asked."""
    asked = []

    def refuse(*arguments, **options):
        asked.append(arguments)
        raise OSError("unreachable")

    monkeypatch.setattr(weights, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return asked


@pytest.mark.parametrize("name", ["resnet10t", "test_vit", "small-cnn"])
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_file_brings_its_weights(name, suffix, tmp_path):
    source = create_backbone(name, image_size=32)
    state = getattr(source, "network", source).state_dict()
    state = {
        key: value.half() if value.is_floating_point() else value for key, value in state.items()
    }
    state["fc.weight"] = torch.zeros(10, 4)  # a classifier that is not wanted
    file = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, file)
    else:
        save_file(state, file)
    loaded = create_backbone(name, image_size=32, weights=str(file))
    state = getattr(loaded, "network", loaded).state_dict()
    for key, value in getattr(source, "network", source).state_dict().items():
        assert state[key].dtype == value.dtype
        torch.testing.assert_close(state[key], value, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", ["resnet10t", "torchvision/resnet18", "small-cnn"])
def test_the_backbone_of_an_earlier_run_goes_on_with_other_labels(name, tmp_path):
    source = create_backbone(name, image_size=32)
    head = HeadSpec("linear", {})
    model = Model(source, head.make(source.channels, 3))
    space = LabelSpace(("a", "b", "c"))
    Predictor(model, head, space, Sigmoid(), Threshold(0.5)).save(tmp_path)
    loaded = create_backbone(name, image_size=32, weights=str(tmp_path))
    for key, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    with pytest.raises(SettingsError, match="must hold every tensor of the backbone"):
        create_backbone("resnet18-32", weights=str(tmp_path))


def test_position_codes_are_scaled_to_another_image_size(tmp_path):
    source = create_backbone("vit_tiny_patch16_224", image_size=64)
    save_file(source.network.state_dict(), tmp_path / "vit.safetensors")
    larger = create_backbone(
        "vit_tiny_patch16_224", image_size=96, weights=str(tmp_path / "vit.safetensors")
    )
    assert larger.network.pos_embed.shape == (1, 1 + 36, 192)
    torch.testing.assert_close(larger.network.pos_embed[:, 0], source.network.pos_embed[:, 0])


def test_files_that_do_not_fit_are_refused_by_name(tmp_path):
    torch.save({"anything": np.float64}, tmp_path / "object.pth")
    torch.save({"names": ["a"]}, tmp_path / "list.pth")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"{")
    (tmp_path / "broken.pth").write_bytes(b"no archive")
    wrong = {name: torch.zeros(2) for name in create_backbone("small-cnn").state_dict()}
    save_file(wrong, tmp_path / "wrong.safetensors")
    cases = {
        "object.pth": "must hold tensors only",
        "list.pth": "must hold named tensors",
        "other.safetensors": "got none for",
        "broken.safetensors": "cannot be read",
        "broken.pth": "(cannot be read|tensors only)",
        "wrong.safetensors": "does not fit the backbone",
        "missing.pth": "weights must be a file, the folder of a finished run",
    }
    for name, message in cases.items():
        with pytest.raises(SettingsError, match=message) as caught:
            create_backbone("small-cnn", weights=str(tmp_path / name))
        assert name in str(caught.value)
    with pytest.raises(SettingsError, match="got none for"):
        create_backbone("resnet10t", weights=str(tmp_path / "other.safetensors"))


@pytest.mark.parametrize("name", ["resnet18", "torchvision/resnet18"])
def test_without_a_network_one_sentence_comes_at_the_first_try(name, no_network):
    with pytest.raises(
        SettingsError, match=r"not in the cache .* cannot be reached .* weights=FILE"
    ):
        create_backbone(name, weights=PRETRAINED)
    assert len(no_network) == 1


def test_a_cached_file_needs_no_network(no_network, tmp_path):
    url = models.ResNet18_Weights.DEFAULT.url
    (tmp_path / "checkpoints").mkdir()
    source = models.resnet18(weights=None)
    torch.save(source.state_dict(), tmp_path / "checkpoints" / url.rpartition("/")[2])
    backbone = create_backbone("torchvision/resnet18", weights=PRETRAINED, image_size=32)
    assert torch.equal(backbone.network.conv1.weight, source.conv1.weight)


def test_backbones_without_published_weights_say_so():
    with pytest.raises(SettingsError, match="'small-cnn' has no published weights"):
        create_backbone("small-cnn", weights=PRETRAINED)


@pytest.mark.parametrize("size", [(90, 60), (50, 80), (64, 64), (300, 200)])
@pytest.mark.parametrize("name", ["resnet10t", "mixer_s32_224", "eva02_tiny_patch14_224"])
def test_a_timm_transform_is_timms_evaluation_transform(name, size):
    with torch.device("meta"):  # no number of theirs is looked at
        network = timm.create_model(name, pretrained=False, num_classes=0)
        backbone = create_backbone(name) if size == (90, 60) else None
    config = resolve_model_data_config(network)
    transform = Transform(
        config["input_size"][-1],
        config["mean"],
        config["std"],
        config["interpolation"],
        None if config["crop_mode"] == "squash" else config["crop_pct"],
    )
    if backbone is not None:
        assert backbone.transform == transform
    peer = create_transform(**config, is_training=False)
    torch.testing.assert_close(transform(picture(*size)), peer(picture(*size)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(300, 240), (200, 333)])
def test_a_torchvision_transform_is_its_recipes(size):
    backbone = create_backbone("torchvision/shufflenet_v2_x0_5")
    peer = models.ShuffleNet_V2_X0_5_Weights.DEFAULT.transforms()
    torch.testing.assert_close(
        backbone.transform(picture(*size)), peer(picture(*size)), atol=1e-5, rtol=0
    )


def test_a_squashed_picture_keeps_everything():
    transform = Transform(20, crop=None)
    expected = np.asarray(picture(60, 30).resize((20, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(transform.pixels(picture(60, 30)).permute(1, 2, 0), expected)


def test_a_transform_comes_back_from_plain_data():
    transform = Transform(20, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), "bicubic", 0.9)
    spec = transform.spec() | {"mean": list(transform.mean), "std": list(transform.std)}
    assert Transform(**spec) == transform


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": 8, "interpolation": "cubic"},
        {"size": 8, "crop": 1.5},
        {"size": 8, "std": (1.0, 0.0, 1.0)},
    ],
)
def test_impossible_transforms_are_refused(options):
    with pytest.raises(ValueError, match=r"must (be|lie)"):
        Transform(**options)


def test_other_modes_are_not_guessed():
    with pytest.raises(ValueError, match="must be RGB, got L"):
        Transform(8)(Image.new("L", (9, 9)))

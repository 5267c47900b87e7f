"""Backbones: their maps against timm, torchvision and slow references."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from tiny_predictor import make
from torch import nn
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, relu
from torchvision import models
from torchvision.models.vgg import cfgs, make_layers

from labelwise.errors import SettingsError
from labelwise.learn.backbones import (
    PRETRAINED,
    create_backbone,
    freeze,
    freeze_batch_norm,
    weights,
)
from labelwise.learn.backbones.transformers import ImageTower, TowerShape
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model
from labelwise.pictures import Transform


def images(side: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(0))


def without_numbers(name: str, **options) -> torch.nn.Module:
    """Return a backbone whose tensors have shapes alone: to draw them takes longest."""
    with torch.device("meta"):
        return create_backbone(name, **options)


def count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "parameters", "side"),
    [
        ("densenet40-12", 1_019_722 - 4_490, 8),  # the paper's 1.0M, less its classifier of ten
        ("densenet40-40", 10_535_792, 8),
        ("resnet18-32", 11_173_962 - 5_130, 4),
        ("vgg16-32", 14_718_912, 1),
    ],
)
def test_the_papers_networks_have_their_sizes(name, parameters, side):
    backbone = without_numbers(name)
    assert count(backbone) == parameters
    assert backbone(images(32).to("meta")).shape == (2, backbone.channels, side, side)
    assert backbone.transform.size == 32
    assert backbone.transform.mean == pytest.approx((0.4914, 0.4824, 0.4467), abs=1e-4)


def test_resnet_is_torchvisions_with_another_stem():
    ours = create_backbone("resnet18-32").eval()
    peer = models.resnet18(num_classes=1).eval()
    peer.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    peer.maxpool = torch.nn.Identity()
    peer.fc = torch.nn.Identity()
    peer.load_state_dict(dict(zip(peer.state_dict(), ours.state_dict().values(), strict=True)))
    torch.testing.assert_close(ours(images(32)).mean(dim=(2, 3)), peer(images(32)))


def test_vgg_is_torchvisions_features():
    ours = create_backbone("vgg16-32").eval()
    peer = make_layers(cfgs["D"], batch_norm=True).eval()
    for layer in peer:
        if isinstance(layer, nn.Conv2d):
            layer.bias = None  # ours have none
    peer.load_state_dict(dict(zip(peer.state_dict(), ours.state_dict().values(), strict=True)))
    torch.testing.assert_close(ours(images(32, rows=1)), peer(images(32, rows=1)))


def test_densenet_is_its_definition():
    ours = create_backbone("densenet40-12").eval()
    state = ours.state_dict()

    def norm(x, name):
        keys = ("running_mean", "running_var", "weight", "bias")
        return relu(batch_norm(x, *(state[f"{name}.{key}"] for key in keys)))

    x = conv2d(images(32), state["stem.weight"], padding=1)
    for block in (1, 2, 3):
        for layer in range(12):
            name = f"block{block}.{layer}"
            new = conv2d(norm(x, f"{name}.norm"), state[f"{name}.conv.weight"], padding=1)
            x = torch.cat([x, new], 1)
        if block < 3:
            name = f"transition{block}"
            x = avg_pool2d(conv2d(norm(x, f"{name}.norm"), state[f"{name}.conv.weight"]), 2)
    torch.testing.assert_close(ours(images(32)), norm(x, "norm"))


@pytest.mark.parametrize("rank", [2, 4])
def test_identity_gives_features_on_as_maps(rank):
    features = torch.randn(3, 5) if rank == 2 else torch.randn(3, 5, 2, 2)
    backbone = create_backbone("identity", channels=5)
    expected = features[:, :, None, None] if rank == 2 else features
    assert torch.equal(backbone(features), expected)
    with pytest.raises(ValueError, match=r"must be \(B, 5\)"):
        backbone(torch.randn(3, 6))


TIMM = [  # name, side, tokens before the places
    ("resnet10t", 64, None),
    ("convnext_atto", 64, None),
    ("mobilenetv3_small_050", 64, None),
    ("vit_small_patch14_reg4_dinov2", 28, 5),  # class token and registers
    ("deit_tiny_distilled_patch16_224", 32, 2),  # two class tokens
    ("vit_pwee_patch16_reg1_gap_256", 32, 1),  # register; norm of the mean of the patches
    ("vit_pe_core_tiny_patch16_384", 32, 1),  # attention pooling
    ("mixer_s32_224", None, 0),  # mean of the patches
    ("vit_small_patch16_dinov3", 32, 5),  # class token and registers, rotary positions
]


@pytest.mark.parametrize(("name", "size", "prefix"), TIMM)
def test_timm_maps_hold_timms_features(name, size, prefix):
    torch.manual_seed(0)
    backbone = create_backbone(name, image_size=size).eval()
    x = images(backbone.transform.size, rows=2)
    maps, raw = backbone(x), backbone.network.forward_features(x)
    assert maps.shape[:2] == (2, backbone.channels)
    assert maps.shape[2] == maps.shape[3]
    if prefix is None:
        assert torch.equal(maps, raw)
        return
    pooled = backbone.network.forward_head(raw, pre_logits=True)
    torch.testing.assert_close(maps.mean(dim=(2, 3)), pooled, atol=1e-5, rtol=0)
    backbone.pooling = "mean"  # as in runs of 0.2
    places = backbone(x)
    assert torch.equal(places.flatten(2).transpose(1, 2), raw[:, prefix:])
    shift = maps - places  # the same at each place
    torch.testing.assert_close(shift, shift[:, :, :1, :1].expand_as(shift), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "classify"),
    [
        ("resnet18", lambda model, maps: model.fc(maps.mean(dim=(2, 3)))),
        ("shufflenet_v2_x0_5", lambda model, maps: model.fc(maps.mean(dim=(2, 3)))),
        ("mobilenet_v3_small", lambda model, maps: model.classifier(maps.mean(dim=(2, 3)))),
        ("squeezenet1_1", lambda model, maps: model.classifier(maps).flatten(1)),
        ("vit_b_32", lambda model, maps: model.heads(maps.mean(dim=(2, 3)))),
    ],
)
def test_torchvision_maps_are_what_its_classifier_pools(name, classify):
    backbone = create_backbone(f"torchvision/{name}", image_size=64).eval()
    sized = {"image_size": 64} if name.startswith("vit") else {}
    with torch.device("meta"):  # to draw numbers that are then replaced takes longest
        model = models.get_model(name, weights=None, **sized).eval()
    own = backbone.network.state_dict()
    drawn = {k: 0.1 * torch.randn(v.shape) for k, v in model.named_parameters() if k not in own}
    model.load_state_dict(own | drawn, strict=False, assign=True)
    maps = backbone(images(64))
    assert maps.shape[:2] == (2, backbone.channels)
    expected = model(images(64))
    torch.testing.assert_close(classify(model, maps), expected, atol=1e-4, rtol=1e-4)


STAGES = [("resnet18-32", 5), ("resnet10t", 5), ("torchvision/resnet18", 5), ("small-cnn", 3)]
STAGES += [("poolformer_s12", 3)]  # timm does not say how this one is built up


@pytest.mark.parametrize(("name", "stages"), STAGES)
def test_stages_part_the_parameters_in_order(name, stages):
    backbone = without_numbers(name, image_size=32)
    groups = backbone.stages()
    assert len(groups) == stages
    assert sorted(name for group in groups for name in group) == sorted(
        name for name, _ in backbone.named_parameters()
    )


def test_frozen_stages_stay_as_they_are():
    backbone = create_backbone("resnet18-32")
    freeze(backbone, stages=2)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    backbone.train()(images(32)).square().mean().backward()
    optimizer.step()
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith(("stem", "layer1")), name


def test_layers_are_frozen_by_name_with_or_without_the_networks_own():
    backbone = without_numbers("resnet10t", image_size=32)
    freeze(backbone, prefixes=["layer1", "conv1.0"])
    frozen = {name for name, p in backbone.named_parameters() if not p.requires_grad}
    assert frozen
    assert all(name.startswith(("network.layer1.", "network.conv1.0.")) for name in frozen)
    with pytest.raises(SettingsError, match=r"no layer starts with 'layr1'; did you mean 'layer1'"):
        freeze(backbone, prefixes=["layr1"])
    with pytest.raises(SettingsError, match="has 5 stages to freeze, got 6"):
        freeze(backbone, stages=6)
    freeze(backbone, stages=-1)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_frozen_batch_norm_keeps_statistics_and_lets_the_rest_learn():
    backbone = create_backbone("resnet10t", image_size=32)
    freeze_batch_norm(backbone)
    before = backbone.network.bn1.running_mean.clone()
    backbone.train()
    backbone(images(32)).sum().backward()
    assert torch.equal(backbone.network.bn1.running_mean, before)
    assert not backbone.network.bn1.training
    assert backbone.network.layer1.training
    assert backbone.network.bn1.weight.grad is None
    assert backbone.network.layer1[0].conv1.weight.grad is not None


# Weights files and what happens without a network; transforms against timm and torchvision.


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
    own = getattr(source, "network", source).state_dict()
    state = {key: v.half() if v.is_floating_point() else v for key, v in own.items()}
    state["fc.weight"] = torch.zeros(10, 4)  # a classifier that is not wanted
    file = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, file)
    else:
        save_file(state, file)
    loaded = create_backbone(name, image_size=32, weights=str(file))
    state = getattr(loaded, "network", loaded).state_dict()
    for key, value in own.items():
        torch.testing.assert_close(state[key], value, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", ["resnet10t", "small-cnn"])
def test_the_backbone_of_an_earlier_run_goes_on_with_other_labels(name, tmp_path):
    source = create_backbone(name, image_size=32)
    replace(make(), model=Model(source, make_head(make().head, source.channels, 3))).save(tmp_path)
    loaded = create_backbone(name, image_size=32, weights=str(tmp_path))
    for key, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    with pytest.raises(SettingsError, match="must hold every tensor of the backbone"):
        create_backbone("resnet18-32", weights=str(tmp_path))


def test_files_that_do_not_fit_are_refused_by_name(tmp_path):
    torch.save({"anything": np.float64}, tmp_path / "object.pth")
    torch.save({"names": ["a"]}, tmp_path / "list.pth")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"{")
    (tmp_path / "broken.pth").write_bytes(b"no archive")
    wrong = {name: torch.zeros(2) for name in create_backbone("small-cnn").state_dict()}
    save_file(wrong, tmp_path / "wrong.safetensors")
    for name, message in (
        ("object.pth", "must hold tensors only"),
        ("list.pth", "must hold named tensors"),
        ("other.safetensors", "got none for"),
        ("broken.safetensors", "cannot be read"),
        ("broken.pth", "(cannot be read|tensors only)"),
        ("wrong.safetensors", "does not fit the backbone"),
        ("missing.pth", "weights must be a file, the folder of a finished run"),
    ):
        with pytest.raises(SettingsError, match=message) as caught:
            create_backbone("small-cnn", weights=str(tmp_path / name))
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["resnet18", "torchvision/resnet18"])
def test_without_a_network_one_sentence_comes_at_the_first_try(name, no_network):
    told = r"not in the cache .* cannot be reached .* weights=FILE"
    with pytest.raises(SettingsError, match=told):
        create_backbone(name, weights=PRETRAINED)
    assert len(no_network) == 1


def test_a_cached_file_needs_no_network(no_network, tmp_path):
    url = models.ResNet18_Weights.DEFAULT.url
    (tmp_path / "checkpoints").mkdir()
    source = models.resnet18(weights=None)
    torch.save(source.state_dict(), tmp_path / "checkpoints" / url.rpartition("/")[2])
    backbone = create_backbone("torchvision/resnet18", weights=PRETRAINED, image_size=32)
    assert torch.equal(backbone.network.conv1.weight, source.conv1.weight)


def timms_transform(name):
    with torch.device("meta"):  # no number of theirs is looked at
        network = timm.create_model(name, pretrained=False, num_classes=0)
    return create_transform(**resolve_model_data_config(network), is_training=False)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        *((name, timms_transform) for name in ("resnet10t", "mixer_s32_224")),
        ("eva02_tiny_patch14_224", timms_transform),
        ("torchvision/resnet18", lambda _: models.ResNet18_Weights.DEFAULT.transforms()),
    ],
)
def test_transforms_are_those_of_evaluation_in_timm_and_torchvision(name, theirs):
    transform, peer = without_numbers(name).transform, theirs(name)
    for size in ((90, 60), (50, 80), (64, 64), (300, 200)):
        expected = peer(picture(*size))
        torch.testing.assert_close(transform(picture(*size)), expected, atol=1e-5, rtol=0)
    assert without_numbers(name, squash=True).transform == replace(transform, crop=None)


ODD = ({"size": 0}, {"interpolation": "cubic"}, {"crop": 1.5}, {"std": (1.0, 0.0, 1.0)})
REFUSED = [
    (lambda: create_backbone("resnt50"), "'resnt50'; did you mean 'resnet50'"),
    (lambda: create_backbone("torchvision/resnet5"), "did you mean 'torchvision/resnet50'"),
    (lambda: create_backbone("resnet18.nosuchtag"), "nosuchtag"),
    (lambda: create_backbone("crossvit_9_240"), "cannot be used: features must form one map"),
    (lambda: create_backbone("resnet18", image_size=0), "image_size must be positive, got 0"),
    (lambda: create_backbone("identity"), "'identity' needs channels"),
    (lambda: create_backbone("small-cnn", weights=PRETRAINED), "has no published weights"),
    *((lambda given=given: Transform(**{"size": 8} | given), "must (be|lie)") for given in ODD),
    (lambda: Transform(8)(Image.new("L", (9, 9))), "must be RGB, got L"),
]


@pytest.mark.parametrize(("make", "rule"), REFUSED)
def test_what_cannot_be_is_refused(make, rule):
    with pytest.raises((SettingsError, ValueError), match=rule):
        make()


# Image halves of text-image models. Oracle: torch's own attention.


def shape(kind):
    return TowerShape(kind, 16, 2, 4, 24, 8, 16, 12 if kind == "clip" else 16, "gelu", 1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_name_builds_the_same_network(kind):
    torch.manual_seed(0)
    tower = ImageTower(shape(kind)).eval()
    again = create_backbone(tower.name).eval()
    again.load_state_dict(tower.state_dict())
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        features = tower(images)
        torch.testing.assert_close(again(images), features)
    assert features.shape == (2, tower.channels, 1, 1)
    torch.testing.assert_close(features[:, :, 0, 0].norm(dim=1), torch.ones(2))


def test_the_probe_attends_as_torchs_attention_does():
    torch.manual_seed(1)
    pool = ImageTower(shape("siglip")).pool
    other = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        other.in_proj_weight.copy_(pool.attention.qkv.weight)
        other.in_proj_bias.copy_(pool.attention.qkv.bias)
        other.out_proj.load_state_dict(pool.attention.out.state_dict())
        probe, tokens = torch.randn(2, 1, 16), torch.randn(2, 5, 16)
        expected, _ = other(probe, tokens, tokens)
        torch.testing.assert_close(pool.attention.asked(probe, tokens), expected)


def test_what_a_tower_cannot_be_is_refused():
    name = shape("clip").name
    assert TowerShape.parse(name) == shape("clip")
    for given, options, told in (
        (name, {"image_size": 32}, "positions for pictures of 16 pixels, got image_size"),
        (name, {"weights": "pretrained"}, "weights from the folder of its model"),
        ("tower/clip-16", {}, "is not the name of an image tower"),
        (name.replace("16x2x4", "18x2x4"), {}, "a multiple of its heads"),
    ):
        with pytest.raises(SettingsError, match=told):
            create_backbone(given, **options)

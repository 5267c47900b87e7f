"""Backbones: their maps against timm, torchvision and slow references."""

import math
from dataclasses import replace

import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, relu
from torchvision import models
from torchvision.models.vgg import cfgs, make_layers

from labelwise.errors import SettingsError
from labelwise.models.predictor import fused
from labelwise.networks.backbones import (
    backbone_names,
    create_backbone,
    freeze,
    freeze_batch_norm,
    timm_models,
)
from labelwise.networks.backbones.base import Layout, find_layout, fold
from labelwise.networks.backbones.zoo import SMALL_BACKBONES


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
    peer.load_state_dict(
        dict(zip(peer.state_dict(), ours.state_dict().values(), strict=True)), strict=True
    )
    torch.testing.assert_close(ours(images(32)).mean(dim=(2, 3)), peer(images(32)))


def test_vgg_is_torchvisions_features():
    ours = create_backbone("vgg16-32").eval()
    peer = make_layers(cfgs["D"], batch_norm=True).eval()
    state = {}
    values = iter(ours.state_dict().values())
    for name, value in peer.state_dict().items():
        is_conv_bias = name.endswith("bias") and f"{name[:-4]}running_mean" not in peer.state_dict()
        state[name] = torch.zeros_like(value) if is_conv_bias else next(values)
    peer.load_state_dict(state)
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


def test_he_initialisation_has_its_spread():
    weight = create_backbone("resnet18-32").layer3[1].conv1.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)


@pytest.mark.parametrize("size", [48, 64])
def test_the_small_network_is_small(size):
    backbone = create_backbone("small-cnn", image_size=size)
    features = backbone(images(size))
    assert features.shape[:2] == (2, backbone.channels)
    assert count(backbone) < 500_000


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
    ("vit_tiny_patch16_224", 64, 1),  # class token
    ("vit_small_patch14_reg4_dinov2", 28, 5),  # class token and registers
    ("deit_tiny_distilled_patch16_224", 32, 2),  # two class tokens
    ("vit_pwee_patch16_reg1_gap_256", 32, 1),  # register; norm of the mean of the patches
    ("vit_pe_core_tiny_patch16_384", 32, 1),  # attention pooling
    ("mixer_s32_224", None, 0),  # mean of the patches
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
        ("resnet18", lambda model, pooled: model.fc(pooled)),
        ("shufflenet_v2_x0_5", lambda model, pooled: model.fc(pooled)),
        ("mobilenet_v3_small", lambda model, pooled: model.classifier(pooled)),
        ("squeezenet1_1", None),
        ("vit_b_32", lambda model, pooled: model.heads(pooled)),
    ],
)
def test_torchvision_maps_are_what_its_classifier_pools(name, classify):
    backbone = create_backbone(f"torchvision/{name}", image_size=64).eval()
    sized = {"image_size": 64} if name.startswith("vit") else {}
    model = models.get_model(name, weights=None, **sized).eval()
    model.load_state_dict(backbone.network.state_dict(), strict=False)
    maps = backbone(images(64))
    assert maps.shape[:2] == (2, backbone.channels)
    expected = model(images(64))
    ours = (
        model.classifier(maps).flatten(1)
        if classify is None
        else classify(model, maps.mean(dim=(2, 3)))
    )
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_tokens_are_folded_after_the_prefix():
    tokens = torch.arange(2 * 6 * 3.0).view(2, 6, 3)
    maps = fold(tokens, Layout("tokens", prefix=2))
    assert maps.shape == (2, 3, 2, 2)
    assert torch.equal(maps[1, :, 1, 0], tokens[1, 2 + 2])
    assert find_layout(tokens, 3) == Layout("tokens", prefix=2)
    assert find_layout(torch.zeros(1, 7, 7, 5), 5) == Layout("maps-last")
    assert fold(torch.zeros(4, 9), find_layout(torch.zeros(4, 9), 9)).shape == (4, 9, 1, 1)
    for odd in ([tokens, tokens], torch.zeros(1, 7, 3), torch.zeros(1, 4, 4, 4)):
        with pytest.raises(ValueError, match="must form one map"):
            find_layout(odd, 3, prefix=0)


def test_an_unknown_name_tells_the_nearest():
    with pytest.raises(SettingsError, match="'resnt50'; did you mean 'resnet50'"):
        create_backbone("resnt50")
    with pytest.raises(SettingsError, match="did you mean 'torchvision/resnet50'"):
        create_backbone("torchvision/resnet5")
    with pytest.raises(SettingsError, match="nosuchtag"):
        create_backbone("resnet18.nosuchtag")
    with pytest.raises(SettingsError, match="cannot be used: features must form one map"):
        create_backbone("crossvit_9_240")
    with pytest.raises(SettingsError, match="image_size must be positive, got 0"):
        create_backbone("resnet18", image_size=0)
    with pytest.raises(SettingsError, match="'identity' needs channels"):
        create_backbone("identity")


@pytest.mark.parametrize("name", ["resnet10t", "torchvision/resnet18"])
def test_squashing_keeps_what_the_own_transform_cuts_off(name):
    edge = Image.new("RGB", (64, 32))
    edge.putpixel((0, 16), (255, 255, 255))
    own = without_numbers(name, image_size=64).transform
    squashed = without_numbers(name, image_size=64, squash=True).transform
    assert own.pixels(edge).max() == 0
    assert squashed.pixels(edge).max() > 0
    assert replace(squashed, crop=own.crop) == own


def test_every_name_is_listed():
    names = backbone_names()
    assert {"identity", *SMALL_BACKBONES, "torchvision/vit_b_16", "resnet50"} <= set(names)
    assert set(timm.list_models()) <= set(names)


STAGES = [
    ("resnet18-32", 5),
    ("resnet10t", 5),
    ("torchvision/resnet18", 5),
    ("small-cnn", 3),
    ("poolformer_s12", 3),  # timm does not say how this one is built up
]


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
    backbone.train()
    backbone(images(32)).square().mean().backward()
    optimizer.step()
    for name, value in backbone.state_dict().items():
        frozen = name.startswith(("stem", "layer1"))
        moved = not torch.equal(value, before[name])
        assert moved != frozen, name


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


def test_the_shapes_of_packaged_weights_are_read_without_random_numbers():
    before = torch.random.get_rng_state()
    assert timm_models._shapes("tf_efficientnet_lite0")["classifier.weight"] == (1000, 1280)
    assert torch.equal(torch.random.get_rng_state(), before)


class _Twice(nn.Module):
    """The output of the convolution goes into the norm and around it."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images):
        features = self.convolution(images)
        return self.norm(features) + features


def _with_statistics(network):
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_var, module.weight.data):
                values.uniform_(0.5, 1.5)
            for values in (module.running_mean, module.bias.data):
                values.normal_()
    return network.eval()


@pytest.mark.parametrize("name", ["small-cnn", "resnet10t", "tf_efficientnet_lite0"])
def test_fused_networks_answer_alike_without_norms(name):
    network = _with_statistics(create_backbone(name, image_size=64))
    images = torch.randn(2, 3, 64, 64)
    quick = fused(network, torch.randn(1, 3, 64, 64))
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())
    with torch.no_grad():
        expected = network(images)
        torch.testing.assert_close(
            quick(images), expected, rtol=0, atol=1e-4 * expected.abs().max()
        )


def test_what_is_used_twice_is_not_fused():
    network = _with_statistics(_Twice())
    assert fused(network, torch.randn(1, 3, 8, 8)) is network
    plain = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    assert fused(plain, torch.randn(1, 3, 8, 8)) is plain

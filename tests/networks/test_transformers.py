"""Vision transformers that timm lacks. Oracles: the papers' formulas, and transformers' models."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.nn.functional import conv2d

from labelwise.errors import SettingsError
from labelwise.networks.backbones import backbone_names, create_backbone
from labelwise.networks.backbones.transformers import CVT, ImageTower, Stage, TowerShape

HEADS = {"stage0": 1, "stage1": 3, "stage2": 6}  # of cvt-13


def shaken(backbone):
    """Return a network in which no tensor is at a value that hides it, such as a mean of 0."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in backbone.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn_like(tensor))
    return backbone.eval()


def layer_norm(state, name, rows):
    return functional.layer_norm(
        rows, rows.shape[1:], state[f"{name}.weight"], state[f"{name}.bias"]
    )


def linear(state, name, rows):
    return rows @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def projected(state, name, letter, rows, shape, stride):
    """Return the queries, keys or values of tokens, the first of which may be the class token."""
    spare, image = rows.tensor_split([len(rows) - shape[0] * shape[1]])
    image, name = image.T.reshape(1, -1, *shape), f"{name}.{{}}_{letter}"
    conv, bn = state[f"{name.format('conv_proj')}.conv.weight"], f"{name.format('conv_proj')}.bn"
    image = conv2d(image, conv, stride=stride, padding=1, groups=image.shape[1])
    norm = (state[f"{bn}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    image = functional.batch_norm(image, *norm)[0]
    return linear(state, name.format("proj"), torch.cat([spare, image.flatten(1).T]))


def attention(state, name, rows, shape, heads):
    queries = projected(state, name, "q", rows, shape, 1)
    keys, values = (projected(state, name, letter, rows, shape, 2) for letter in "kv")
    seen, width = [], queries.shape[1]
    for part in torch.arange(width).chunk(heads):
        scores = queries[:, part] @ keys[:, part].T / width**0.5  # not the width of one head
        seen.append(scores.softmax(dim=1) @ values[:, part])
    return linear(state, f"{name}.proj", torch.cat(seen, dim=1))


def published_map(state, image):
    """Return the feature map (D, h, w) of one image, by the formulas, tensor by tensor."""
    features = image
    for stage, heads in HEADS.items():
        weight, bias = (state[f"{stage}.patch_embed.proj.{part}"] for part in ("weight", "bias"))
        stride, padding = (4, 2) if stage == "stage0" else (2, 1)
        features = conv2d(features[None], weight, bias, stride, padding)[0]
        shape = features.shape[1:]
        rows = layer_norm(state, f"{stage}.patch_embed.norm", features.flatten(1).T)
        if stage == "stage2":
            rows = torch.cat([state["stage2.cls_token"][0], rows])
        depth = len({name.split(".")[2] for name in state if name.startswith(f"{stage}.blocks.")})
        for number in range(depth):
            block = f"{stage}.blocks.{number}"
            seen = layer_norm(state, f"{block}.norm1", rows)
            rows = rows + attention(state, f"{block}.attn", seen, shape, heads)
            hidden = linear(state, f"{block}.mlp.fc1", layer_norm(state, f"{block}.norm2", rows))
            hidden = hidden / (1 + torch.exp(-1.702 * hidden))
            rows = rows + linear(state, f"{block}.mlp.fc2", hidden)
        features = rows[len(rows) - shape[0] * shape[1] :].T.reshape(-1, *shape)
    return layer_norm(state, "norm", features.flatten(1).T).T.reshape(features.shape)


@pytest.fixture
def small_cvt(monkeypatch):
    """Make a CvT-13 narrow and short; its size is that of a test of its own."""
    sizes = (Stage(8, 1, 1), Stage(24, 2, 3), Stage(48, 2, 6))
    monkeypatch.setitem(CVT, "cvt-13", sizes)


@pytest.mark.usefixtures("small_cvt")
def test_the_map_is_that_of_the_formulas_by_published_names():
    backbone = shaken(create_backbone("cvt-13", image_size=48)).double()
    images = torch.randn(2, 3, 48, 40, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([published_map(backbone.state_dict(), image) for image in images])
        found = backbone(images)
    assert found.shape == (2, backbone.channels, 3, 3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cvt-13", 19_997_480), ("cvt-21", 31_622_696), ("cvt-w24", 277_196_392)],
)
def test_a_cvt_has_the_published_size(name, parameters):
    with torch.device("meta"):
        backbone = create_backbone(name)
    classifier = 1000 * (backbone.channels + 1)
    assert sum(tensor.numel() for tensor in backbone.parameters()) == parameters - classifier
    assert name in backbone_names()


@pytest.mark.usefixtures("small_cvt")
def test_weights_of_a_cvt_come_from_a_file(tmp_path):
    whole = shaken(create_backbone("cvt-13", image_size=32))
    state = {**whole.state_dict(), "head.weight": torch.zeros(1000, 48)}
    save_file(state, tmp_path / "cvt.safetensors")
    again = create_backbone("cvt-13", weights=str(tmp_path / "cvt.safetensors"), image_size=32)
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(images), whole(images), rtol=0, atol=0)
    with pytest.raises(SettingsError, match="published weights of 'cvt-13' are in no hub"):
        create_backbone("cvt-13", weights="pretrained")


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

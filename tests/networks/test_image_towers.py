"""Image towers by their names. Oracles: the same weights in a tower built anew, torch's attention.

Parity with transformers and open_clip: tests/bridges/test_towers.py."""

import pytest
import torch
from torch import nn

from labelwise.errors import SettingsError
from labelwise.networks.backbones import create_backbone
from labelwise.networks.backbones.towers import ImageTower, TowerShape


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
    with pytest.raises(SettingsError, match="positions for pictures of 16 pixels, got image_size"):
        create_backbone(name, image_size=32)
    with pytest.raises(SettingsError, match="weights from the folder of its model"):
        create_backbone(name, weights="pretrained")
    with pytest.raises(SettingsError, match="is not the name of an image tower"):
        create_backbone("tower/clip-16")
    with pytest.raises(SettingsError, match="a multiple of its heads"):
        create_backbone(name.replace("16x2x4", "18x2x4"))

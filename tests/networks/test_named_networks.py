"""DINOv3 and SigLIP 2 by name, with the command of the guide, on random weights of their shapes."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.models import Predictor


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vit_small_patch16_dinov3", 32),  # published as .lvd1689m
        ("vit_base_patch32_siglip_256", 64),  # published as .v2_webli
    ],
)
def test_a_head_is_trained_on_the_features_that_timm_itself_pools(name, side, tmp_path):
    torch.manual_seed(0)
    weights = timm.create_model(name, num_classes=0).state_dict()
    save_file(weights, tmp_path / "weights.safetensors")
    random, rows = np.random.default_rng(0), ["path,labels"]
    for n in range(20):
        pixels = random.integers(0, 60, (32, 32, 3)) + 180 * (n % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{n}.png")
        rows.append(f"{n}.png,{'light' if n % 2 else 'dark'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    command = ["train", str(tmp_path / "labels.csv"), "--features", name]
    command += ["--weights", str(tmp_path / "weights.safetensors"), "--image-size", str(side)]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    backbone = Predictor.load(tmp_path / "run").model.backbone.eval()
    assert backbone.name == name
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        raw = backbone.network.forward_features(images)
        expected = backbone.network.forward_head(raw, pre_logits=True)
        torch.testing.assert_close(backbone(images).mean((2, 3)), expected, atol=1e-5, rtol=0)

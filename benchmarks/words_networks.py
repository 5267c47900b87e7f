"""Are the features of a network those that timm's own classifier would see?

    python benchmarks/words_networks.py

Ten randomly initialised networks of each family: the mean of our feature map is compared with
timm's ``forward_head(pre_logits=True)`` on two random pictures. No weights are needed.
"""

import gc
import json
from pathlib import Path

import torch

from labelwise.learn.backbones import create_backbone

RESULTS = Path(__file__).parent / "results" / "words_networks.json"
FAMILIES = {
    "class token": (
        *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_small_patch32_224"),
        *("deit_tiny_patch16_224", "deit_small_patch16_224", "vit_small_patch14_dinov2"),
        *("vit_xsmall_patch16_clip_224", "vit_medium_patch16_clip_224"),
        *("vit_medium_patch32_clip_224", "vit_base_patch32_clip_224"),
    ),
    "mean of patches": (
        *("mixer_s32_224", "mixer_s16_224", "gmlp_s16_224", "resmlp_12_224"),
        *("vit_medium_patch16_gap_240", "vit_medium_patch16_gap_256"),
        *("vit_betwixt_patch16_gap_256", "vit_base_patch16_gap_224"),
        *("vit_base_patch32_siglip_gap_256", "vit_base_patch16_siglip_gap_224"),
    ),
    "attention pooling": (
        *("vit_pe_core_tiny_patch16_384", "vit_pe_core_small_patch16_384"),
        *("vit_pe_core_base_patch16_224", "vit_base_patch32_siglip_256"),
        *("vit_base_patch16_siglip_224", "vit_base_patch16_siglip_256"),
        *("vit_base_patch16_siglip_384", "vit_base_patch16_siglip_512"),
        *("vit_so150m_patch16_reg4_map_256", "vit_large_patch16_siglip_256"),
    ),
    "registers": (
        *("vit_tiny_patch16_dinov3_qkvb", "vit_small_patch16_dinov3"),
        *("vit_small_plus_patch16_dinov3", "vit_base_patch16_dinov3"),
        *("vit_small_patch14_reg4_dinov2", "vit_pwee_patch16_reg1_gap_256"),
        *("vit_wee_patch16_reg1_gap_256", "vit_dwee_patch16_reg1_gap_256"),
        *("vit_little_patch16_reg1_gap_256", "vit_medium_patch16_reg4_gap_256"),
    ),
}
FIXED = ("mixer", "gmlp", "resmlp")  # take one size only


@torch.no_grad()
def apart(name: str) -> tuple[float, str]:
    """Return the greatest difference of a feature, and how the network pools."""
    size = None if name.startswith(FIXED) else 64
    size = 56 if "patch14" in name else size
    torch.manual_seed(0)
    backbone = create_backbone(name, image_size=size).eval()
    side = backbone.transform.size
    images = torch.randn(2, 3, side, side)
    network = backbone.network
    expected = network.forward_head(network.forward_features(images), pre_logits=True)
    return float((backbone(images).mean(dim=(2, 3)) - expected).abs().max()), backbone.pooling


def main() -> None:
    found = {}
    for family, names in FAMILIES.items():
        each = {}
        for name in names:
            each[name], pooling = apart(name)
            print(f"{family}: {name} {each[name]:.1e} ({pooling})", flush=True)
            gc.collect()
        found[family] = {"networks": len(each), "greatest": max(each.values()), "each": each}
        facts = {"command": "python benchmarks/words_networks.py", "seed": 0, "figures": found}
        RESULTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

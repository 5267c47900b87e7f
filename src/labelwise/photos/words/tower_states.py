"""The tensors of text-image models under our names: those of transformers, and open_clip's.

Every tensor of a file must find its place in a tower; :meth:`ReadState.require_all_read` says so.
"""

from pathlib import Path

import torch
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.networks.backbones.towers import TowerKind

State = dict[str, Tensor]
NOT_WEIGHTS = ("position_ids", "attn_mask")


class ReadState(dict[str, Tensor]):
    """Named tensors that remember which of them were read."""

    def __init__(self, tensors: State) -> None:
        super().__init__(tensors)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        tensor = super().__getitem__(name)
        self.read.add(name)
        return tensor

    def require_all_read(self, folder: Path) -> None:
        """Raise if a tensor has found no place."""
        left = [
            name
            for name in sorted(set(self) - self.read)
            if name not in ("logit_scale", "logit_bias") and not name.endswith(NOT_WEIGHTS)
        ]
        if left:
            raise SettingsError(
                f"{folder}: {len(left)} tensors of the model have no place in the towers that are "
                f"read here, such as {left[0]!r}; take a vision transformer of CLIP, SigLIP or "
                "SigLIP 2"
            )


def depth_of(state: State, blocks: str = "blocks.") -> int:
    """Return how many blocks a tower has."""
    numbers = {
        name.removeprefix(blocks).partition(".")[0] for name in state if name.startswith(blocks)
    }
    return len(numbers)


def _renamed(state: State, before: str, after: str, *, bias: bool = True) -> State:
    parts = ("weight", "bias") if bias else ("weight",)
    return {f"{after}.{part}": state[f"{before}.{part}"] for part in parts}


def image_state(state: State, kind: TowerKind) -> State:
    """Return the image half of a model of transformers under our names."""
    old = "vision_model."
    found = {
        "patches.weight": state[f"{old}embeddings.patch_embedding.weight"],
        "positions": state[f"{old}embeddings.position_embedding.weight"],
        **_renamed(state, f"{old}post_layernorm", "after"),
        **_blocks(state, f"{old}encoder.layers."),
    }
    if kind == "clip":
        found["token"] = state[f"{old}embeddings.class_embedding"]
        found |= _renamed(state, f"{old}pre_layrnorm", "before")
        found |= _renamed(state, "visual_projection", "projection", bias=False)
        return found
    if found["patches.weight"].ndim == 2:  # SigLIP 2 flattens a patch by row, column, colour
        width, numbers = found["patches.weight"].shape
        side = round((numbers / 3) ** 0.5)
        flat = found["patches.weight"].reshape(width, side, side, 3)
        found["patches.weight"] = flat.permute(0, 3, 1, 2).contiguous()
    found["patches.bias"] = state[f"{old}embeddings.patch_embedding.bias"]
    found["pool.probe"] = state[f"{old}head.probe"]
    found["pool.attention.qkv.weight"] = state[f"{old}head.attention.in_proj_weight"]
    found["pool.attention.qkv.bias"] = state[f"{old}head.attention.in_proj_bias"]
    for before, after in (
        ("attention.out_proj", "attention.out"),
        ("layernorm", "norm"),
        ("mlp.fc1", "mlp.fc1"),
        ("mlp.fc2", "mlp.fc2"),
    ):
        found |= _renamed(state, f"{old}head.{before}", f"pool.{after}")
    return found


def text_state(state: State) -> State:
    """Return the text half of a model of transformers under our names."""
    old = "text_model."
    head = f"{old}head" if f"{old}head.weight" in state else "text_projection"
    return {
        "tokens.weight": state[f"{old}embeddings.token_embedding.weight"],
        "positions": state[f"{old}embeddings.position_embedding.weight"],
        **_blocks(state, f"{old}encoder.layers."),
        **_renamed(state, f"{old}final_layer_norm", "after"),
        **_renamed(state, head, "projection", bias=head != "text_projection"),
    }


def _blocks(state: State, old: str) -> State:
    """Return the blocks of a transformer of transformers under our names."""
    found: State = {}
    depth = depth_of(state, old)
    for number in range(depth):
        own, new = f"{old}{number}.", f"blocks.{number}."
        for part in ("weight", "bias"):
            rows = [state[f"{own}self_attn.{name}_proj.{part}"] for name in "qkv"]
            found[f"{new}attention.qkv.{part}"] = torch.cat(rows)
        for before, after in (
            ("layer_norm1", "norm1"),
            ("layer_norm2", "norm2"),
            ("self_attn.out_proj", "attention.out"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
        ):
            found |= _renamed(state, own + before, new + after)
    return found


def open_image_state(state: State) -> State:
    """Return the image half of a model of open_clip under our names."""
    return {
        "patches.weight": state["visual.conv1.weight"],
        "positions": state["visual.positional_embedding"],
        "token": state["visual.class_embedding"],
        **_renamed(state, "visual.ln_pre", "before"),
        **_renamed(state, "visual.ln_post", "after"),
        "projection.weight": state["visual.proj"].T.contiguous(),
        **_open_blocks(state, "visual.transformer.resblocks."),
    }


def open_text_state(state: State) -> State:
    """Return the text half of a model of open_clip under our names."""
    return {
        "tokens.weight": state["token_embedding.weight"],
        "positions": state["positional_embedding"],
        **_renamed(state, "ln_final", "after"),
        "projection.weight": state["text_projection"].T.contiguous(),
        **_open_blocks(state, "transformer.resblocks."),
    }


def _open_blocks(state: State, old: str) -> State:
    found: State = {}
    for number in range(depth_of(state, old)):
        own, new = f"{old}{number}.", f"blocks.{number}."
        for part in ("weight", "bias"):
            found[f"{new}attention.qkv.{part}"] = state[f"{own}attn.in_proj_{part}"]
        for before, after in (
            ("ln_1", "norm1"),
            ("ln_2", "norm2"),
            ("attn.out_proj", "attention.out"),
            ("mlp.c_fc", "mlp.fc1"),
            ("mlp.c_proj", "mlp.fc2"),
        ):
            found |= _renamed(state, own + before, new + after)
    return found

"""A small text-image model of CLIP's kind, of random numbers, in the files of transformers."""

import json
from functools import cache

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, models, pre_tokenizers

WIDTH, TOKENS = 8, 6


def _linear(name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(len(name))
    weight = torch.randn(rows, columns, generator=made)
    return {f"{name}.weight": weight, f"{name}.bias": torch.randn(rows, generator=made)}


def _norm(name: str) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)}


def _layer(name: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for part in ("q", "k", "v", "out"):
        found |= _linear(f"{name}.self_attn.{part}_proj", WIDTH, WIDTH)
    found |= _linear(f"{name}.mlp.fc1", 12, WIDTH) | _linear(f"{name}.mlp.fc2", WIDTH, 12)
    return found | _norm(f"{name}.layer_norm1") | _norm(f"{name}.layer_norm2")


@cache
def clip_folder() -> dict[str, bytes]:
    """Return the files of the model."""
    vision, text = "vision_model.", "text_model."
    state = {
        f"{vision}embeddings.patch_embedding.weight": torch.ones(WIDTH, 3, 4, 4),
        f"{vision}embeddings.position_embedding.weight": torch.ones(5, WIDTH),
        f"{vision}embeddings.class_embedding": torch.ones(WIDTH),
        "visual_projection.weight": torch.eye(WIDTH),
        f"{text}embeddings.token_embedding.weight": torch.eye(TOKENS, WIDTH),
        f"{text}embeddings.position_embedding.weight": torch.ones(7, WIDTH),
        "text_projection.weight": torch.eye(WIDTH),
        "logit_scale": torch.tensor(1.0),
    }
    for name in (f"{vision}pre_layrnorm", f"{vision}post_layernorm", f"{text}final_layer_norm"):
        state |= _norm(name)
    for half in (vision, text):
        state |= _layer(f"{half}encoder.layers.0")
    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2, "dog": 3, "b": 4, "c": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    heads = {"num_attention_heads": 2}
    config = {"model_type": "clip", "vision_config": heads, "text_config": dict(heads)}
    size = {"size": {"shortest_edge": 8}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(state),
        "tokenizer.json": tokenizer.to_str().encode(),
        "preprocessor_config.json": json.dumps(size).encode(),
    }

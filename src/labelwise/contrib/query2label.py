"""Checkpoints of the published Query2Label models, read as predictors.

    predictor = load_query2label("checkpoint.pth", "torchvision/resnet101", names, image_size=448)
    predictor.save("q2l-r101")            # then: labelwise predict q2l-r101 photos/

The backbone is a ResNet of torchvision or a Swin of timm. The file is a safetensors file, or
a state dict that is read without running any code. What the head looks like (labels, width, layers,
feed-forward net, self-attention, projection) is read off its tensors; the number of attention heads
is not in them. A tensor that is missing, unknown or of another shape is an error that names it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from labelwise.decide import Threshold
from labelwise.errors import SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones.weights import read_state, require_tensors
from labelwise.learn.methods import make_head, make_objective
from labelwise.learn.predictor import Model, Predictor
from labelwise.models import HeadSpec
from labelwise.types import DatasetFacts, LabelSpace

BACKBONE = "backbone.0."
BODY = "body."  # ResNets are wrapped once more
POSITIONS = "backbone.1."  # the position code is computed, not learned
LOSS = {"gamma_neg": 2.0, "gamma_pos": 0.0, "margin": 0.0, "weight_grad": "detached"}
PARTS = {  # of a layer: their names, ours in the encoder, ours in the decoder
    "self_attn": ("attention", "self_attention"),
    "multihead_attn": (None, "attention"),
    "linear1": ("expand", "expand"),
    "linear2": ("contract", "contract"),
    "norm1": ("norm_attention", "norm_self"),
    "norm2": ("norm_feedforward", "norm_attention"),
    "norm3": (None, "norm_feedforward"),
}
COMPUTED = ("relative_position_index", "attn_mask")  # of a Swin, from sizes alone
MERGING = re.compile(r"layers\.(\d+)\.downsample\.")
LAYER = re.compile(r"transformer\.(encoder|decoder)\.layers\.(\d+)\.(\w+)\.(.+)")
SINGLE = {
    "transformer.decoder.norm.weight": "norm.weight",
    "transformer.decoder.norm.bias": "norm.bias",
    "query_embed.weight": "queries",
    "input_proj.weight": "project.weight",
    "input_proj.bias": "project.bias",
    "fc.W": "classifier.weight",
    "fc.b": "classifier.bias",
}


def load_query2label(
    path: str | Path,
    backbone: str,
    names: Sequence[str],
    *,
    image_size: int = 448,
    attention_heads: int = 4,
) -> Predictor:
    """Return the predictor of a released checkpoint, for these label names in order.

    Its link is the proper one of the loss it was trained with (asymmetric, detached weights); a
    label is given from p = 0.5 on. Pictures are squashed to ``image_size``.
    """
    state = read_state(path)
    options = {**head_options(state, str(path)), "attention_heads": attention_heads}
    labels = int(state["query_embed.weight"].shape[0])
    if len(names) != labels:
        raise SettingsError(f"{path} answers {labels} labels, got {len(names)} names")
    network = create_backbone(backbone, image_size=image_size, squash=True)
    own = {}
    for name, value in state.items():
        if name.startswith(BACKBONE) and not name.endswith(COMPUTED):
            ours = name.removeprefix(BACKBONE).removeprefix(BODY)  # a stage is merged earlier there
            own[MERGING.sub(lambda at: f"layers.{int(at[1]) + 1}.downsample.", ours)] = value
    inner = getattr(network, "network", network)
    require_tensors(inner, own, str(path))
    _load(inner, own, str(path))
    spec = HeadSpec("query2label", options)
    head = make_head(spec, network.channels, labels)
    _load(head, head_state(state, str(path)), str(path))
    link = make_objective("asl+phi", DatasetFacts(1, labels, 1.0, (0.5,) * labels), **LOSS).link
    model = Model(network, head).eval()
    return Predictor(model, spec, LabelSpace(tuple(names)), link, Threshold(0.5), "asl+phi")


def head_options(state: Mapping[str, Tensor], source: str = "the checkpoint") -> dict[str, object]:
    """Return the options of a query decoder that these tensors fit."""
    for needed in ("query_embed.weight", "transformer.decoder.layers.0.linear1.weight"):
        if needed not in state:
            raise SettingsError(f"{source} is not a Query2Label checkpoint: it has no {needed!r}")
    parts = {match.group(1, 2, 3) for match in map(LAYER.fullmatch, state) if match}
    encoder, decoder = (
        {int(number) for kind, number, _ in parts if kind == half}
        for half in ("encoder", "decoder")
    )
    around = {int(at) for kind, at, part in parts if (kind, part) == ("decoder", "self_attn")}
    kinds = {frozenset[int](): "none", frozenset(decoder): "all"}
    kinds.setdefault(frozenset(decoder - {0}), "later")
    kinds.setdefault(frozenset({0}), "first")
    if frozenset(around) not in kinds:
        raise SettingsError(f"{source}: self-attention in the decoder layers {sorted(around)} only")
    return {
        "width": int(state["query_embed.weight"].shape[1]),
        "feedforward": int(state["transformer.decoder.layers.0.linear1.weight"].shape[0]),
        "encoder_layers": len(encoder),
        "decoder_layers": len(decoder),
        "self_attention": kinds[frozenset(around)],
    }


def head_state(state: Mapping[str, Tensor], source: str = "the checkpoint") -> dict[str, Tensor]:
    """Return the head's tensors under our names; one without a place is an error."""
    weights = {}
    for name, value in state.items():
        if name.startswith((BACKBONE, POSITIONS)):
            continue
        layer = LAYER.fullmatch(name)
        ours = None if layer is None else PARTS.get(layer[3], (None, None))[layer[1] == "decoder"]
        if layer is not None and ours is not None:
            weights[f"{layer[1]}.{layer[2]}.{ours}.{layer[4]}"] = value
        elif name in SINGLE:
            if name == "fc.W":  # theirs has one row of weights for all labels
                value = value.transpose(0, 1)  # (1, K, D) -> (K, 1, D)
            weights[SINGLE[name]] = value[0] if name == "fc.b" else value
        else:
            raise SettingsError(f"{source}: a query decoder has no place for {name!r}")
    return weights


def _load(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    for name, value in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        if name not in state:
            raise SettingsError(f"{source} has no tensor for {name!r}")
        if state[name].shape != value.shape:
            shapes = f"{tuple(value.shape)}, got {tuple(state[name].shape)}"
            raise SettingsError(f"{source}: {name!r} must have the shape {shapes}")
    module.load_state_dict(dict(state), strict=False)

"""Any torchvision classification model as ``torchvision/NAME``, such as ``torchvision/resnet50``.

torchvision has no common name for the features before the classifier. They are the input of the
last pooling over places in the traced graph; a ViT pools nothing, there they are its encoder's
output, and SqueezeNet classifies before it pools, there they are ``features``.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import adaptive_avg_pool2d
from torchvision import models
from torchvision.models.feature_extraction import (
    NodePathTracer,
    create_feature_extractor,
    get_graph_node_names,
)

from labelwise.errors import SettingsError
from labelwise.networks.backbones.base import Backbone, find_layout, fold
from labelwise.networks.backbones.weights import PRETRAINED, fetch_url, load_state
from labelwise.pictures.transform import Transform

PREFIX = "torchvision/"


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classification models, each after ``torchvision/``."""
    return [PREFIX + name for name in models.list_models(module=models)]


class TorchvisionBackbone(Backbone):
    """A torchvision model up to the features its classifier pools."""

    def __init__(self, name: str, weights: str | None = None, image_size: int | None = None):
        tags = models.get_model_weights(name.removeprefix(PREFIX))
        published = tags[weights] if weights in tags.__members__ else tags.DEFAULT
        transform = Transform.of_recipe(published.transforms(), image_size)
        size = transform.size
        network = _network(name.removeprefix(PREFIX), size)
        with torch.no_grad():
            features = network.eval()(torch.zeros(1, 3, size, size))["features"]
        network.train()
        channels = features.shape[2] if features.ndim == 3 else features.shape[1]
        super().__init__(name, channels, transform)
        self.network, self.layout = network, find_layout(features, channels)
        self.pooling = "own" if self.layout.prefix == 1 else "mean"  # a ViT's class token
        if weights is not None:
            path = fetch_url(published.url) if weights in (PRETRAINED, published.name) else weights
            load_state(network, path)

    def stages(self) -> list[list[str]]:
        # Whatever comes before the first numbered or nested part is the stem.
        stages: dict[str, list[str]] = {"": []}
        for name, _ in self.named_parameters():
            parts = name.split(".")[1:]
            nested = parts[0] in ("blocks", "encoder", "features", "trunk_output")
            stage = ".".join(parts[: 1 + nested]) if len(parts) > 2 or nested else ""
            stages.setdefault(stage, []).append(name)
        return [names for names in stages.values() if names]

    def forward(self, images: Tensor) -> Tensor:
        features = self.network(images)["features"]
        return fold(features, self.layout, features[:, 0] if self.pooling == "own" else None)


def _network(name: str, size: int) -> Any:
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
        options["aux_logits"] = False
    if name.startswith("vit_"):
        options["image_size"] = size
    model = builder(**options)
    return create_feature_extractor(model, {_features_node(model): "features"})


def _features_node(model: nn.Module) -> str:
    if isinstance(model, models.SqueezeNet):
        return "features"
    if isinstance(model, models.VisionTransformer):
        return "encoder.ln"
    tracer = NodePathTracer()
    for node in reversed(tracer.trace(model.eval()).nodes):
        if _pools(model, node):
            return _known_name(model, str(tracer.node_to_qualname[node.args[0]]))
    raise SettingsError(f"backbone {type(model).__name__} has no feature map: it pools nothing")


def _known_name(model: nn.Module, name: str) -> str:
    """Return the extractor's name of a node: it does not look inside torchvision's own blocks."""
    known = get_graph_node_names(model)[1]
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def _pools(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), nn.AdaptiveAvgPool2d)
    return node.target in (adaptive_avg_pool2d, "mean")

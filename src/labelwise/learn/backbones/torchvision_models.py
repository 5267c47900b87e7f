"""Any torchvision classification model, as ``torchvision/resnet50``."""

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torchvision import models
from torchvision.models.feature_extraction import (
    NodePathTracer,
    create_feature_extractor,
    get_graph_node_names,
)

from labelwise.errors import SettingsError
from labelwise.learn.backbones.base import Backbone, find_layout, fold
from labelwise.learn.backbones.weights import PRETRAINED, fetch_url, load_state
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


def _network(name: str, size: int) -> nn.Module:
    options: dict[str, bool | int] = {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": False, "aux_logits": False}
    elif name.startswith("vit_"):
        options = {"image_size": size}
    model = models.get_model(name, weights=None, **options)
    network: nn.Module = create_feature_extractor(model, {_features_node(model): "features"})
    return network


def _features_node(model: nn.Module) -> str:
    if isinstance(model, models.SqueezeNet):
        return "features"
    if isinstance(model, models.VisionTransformer):
        return "encoder.ln"
    tracer = NodePathTracer()
    known = get_graph_node_names(model)[1]
    for node in reversed(tracer.trace(model.eval()).nodes):
        if node.op == "call_module":
            pools = isinstance(model.get_submodule(str(node.target)), nn.AdaptiveAvgPool2d)
        else:
            pools = node.target in (adaptive_avg_pool2d, "mean")
        if pools:
            name = str(tracer.node_to_qualname[node.args[0]])
            while name not in known:  # the extractor does not look inside torchvision's own blocks
                name = name.rpartition(".")[0]
            return name
    raise SettingsError(f"backbone {type(model).__name__} has no feature map: it pools nothing")

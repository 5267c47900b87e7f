"""Photos by a network of torch: on a GPU, of two towers, or of a classifier in a folder."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.decide import Rule
from labelwise.eyes import Eye
from labelwise.eyes.eye import BUILT_IN, PRETRAINED
from labelwise.learn.backbones import Backbone
from labelwise.learn.heads import LinearHead
from labelwise.learn.inference import Inferred, infer
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Link
from labelwise.models import HeadSpec
from labelwise.photos.words.text_image import TextHead
from labelwise.pictures import ImageSource
from labelwise.training.features import frozen_backbone
from labelwise.types import LabelSpace


def means_by_torch(
    network: Eye | Backbone, images: ImageSource, rows: list[int], batch_size: int, device: str
) -> Iterator[Inferred]:
    """Yield the pooled features of rows, computed on a device."""
    transform = network.transform
    if isinstance(network, Eye):
        network = frozen_backbone(BUILT_IN, weights=PRETRAINED)  # with the weights of the eye
    backbone, home = network.eval(), next(network.parameters()).device

    def means(values: Tensor) -> tuple[Tensor, ...]:
        return (backbone(transform.inputs(values)).float().mean(dim=(2, 3)),)

    backbone.to(device)
    try:
        yield from infer(
            means, images, transform, rows=rows, batch_size=batch_size, device=torch.device(device)
        )
    finally:
        backbone.to(home)


def torch_model(
    backbone: Backbone,
    weight: NDArray[np.float64],
    bias: NDArray[np.float64],
    space: LabelSpace,
    link: Link,
    rule: Rule,
) -> Predictor:
    """Return the model of a network and a linear head: weights (K, D) and biases (K,)."""
    linear = LinearHead(backbone.channels, len(space))
    with torch.no_grad():
        linear.classifier.weight.copy_(torch.from_numpy(weight))
        linear.classifier.bias.copy_(torch.from_numpy(bias))
    network = Model(backbone, linear).eval()
    return Predictor(network, HeadSpec("linear"), space, link, rule, "words")


def network_and_head(run: Path) -> tuple[Backbone, TextHead]:
    """Return the network of a run, and its linear head."""
    model = Predictor.load(run).model
    layer = {name: tensor.numpy() for name, tensor in model.head.state_dict().items()}
    return model.backbone, TextHead(layer["classifier.weight"].T, layer["classifier.bias"])

"""VGG16 for 32-pixel pictures, and the published one with its dense layers fc6 and fc7.

The small one has the thirteen 3x3 convolutions, with batch norm, and no dense layers: widths
64 x 2, 128 x 2, 256 x 3, 512 x 3, 512 x 3 with 2x2 max pooling between the groups and after the
last; 32 x 32 -> 1 x 1.
"""

import torch
from torch import Tensor, nn

from labelwise.networks.backbones.base import Backbone, he_init
from labelwise.networks.backbones.imports import without_compiler
from labelwise.networks.backbones.weights import PRETRAINED, fetch_url, load_state
from labelwise.pictures.transform import CIFAR_MEAN, CIFAR_STD, Transform


class VGG16Small(Backbone):
    """The VGG16 the papers train on CIFAR."""

    def __init__(self, image_size: int = 32, in_chans: int = 3) -> None:
        super().__init__("vgg16-32", 512, Transform(image_size, CIFAR_MEAN, CIFAR_STD))
        self.group1 = _group(in_chans, 64, depth=2)
        self.group2 = _group(64, 128, depth=2)
        self.group3 = _group(128, 256, depth=3)
        self.group4 = _group(256, 512, depth=3)
        self.group5 = _group(512, 512, depth=3)
        he_init(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.group3(self.group2(self.group1(images)))
        features = self.group5(self.group4(features))
        return torch.as_tensor(features)


class VGG16Dense(Backbone):
    """torchvision's VGG16 up to fc7: 4,096 features of one place, dropout in front of the head."""

    def __init__(self, weights: str | None = None, image_size: int | None = None) -> None:
        with without_compiler():
            from torchvision import models  # slow to import, and seldom needed

        published = models.VGG16_Weights.IMAGENET1K_V1
        transform = Transform.of_recipe(published.transforms(), image_size)
        super().__init__("vgg16-fc7", 4096, transform)
        self.network = models.vgg16(weights=None)
        del self.network.classifier[6]  # fc8, the classifier of ImageNet
        if weights is not None:
            load_state(self.network, fetch_url(published.url) if weights == PRETRAINED else weights)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        return features[:, :, None, None]


def _group(width_in: int, width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [
            nn.Conv2d(width_in, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        width_in = width
    return nn.Sequential(*layers, nn.MaxPool2d(2))

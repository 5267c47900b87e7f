"""DenseNet-40 for 32-pixel pictures: Huang et al. 2017, without bottleneck or compression.

    3x3 stem to 16 channels; three blocks of (40 - 4) / 3 = 12 layers bn-relu-conv3x3, each adding
    ``growth`` channels to what it reads; between blocks bn-relu-conv1x1 and 2x2 mean pooling.

The last block's batch norm and ReLU end the map: 16 + 36 growth channels, 32 x 32 -> 8 x 8.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from labelwise.networks.backbones.base import Backbone, he_init
from labelwise.pictures.transform import CIFAR_MEAN, CIFAR_STD, Transform

LAYERS = 12
STEM = 16


class DenseNet40(Backbone):
    """DenseNet-40-``growth``: 40-12 of the DenseNet paper, 40-40 of the average-K paper."""

    def __init__(self, growth: int, image_size: int = 32, in_chans: int = 3) -> None:
        widths = [STEM + block * LAYERS * growth for block in range(4)]
        transform = Transform(image_size, CIFAR_MEAN, CIFAR_STD)
        super().__init__(f"densenet40-{growth}", widths[3], transform)
        self.stem = nn.Conv2d(in_chans, STEM, 3, 1, 1, bias=False)
        self.block1 = _block(widths[0], growth)
        self.transition1 = Transition(widths[1])
        self.block2 = _block(widths[1], growth)
        self.transition2 = Transition(widths[2])
        self.block3 = _block(widths[2], growth)
        self.norm = nn.BatchNorm2d(widths[3])
        he_init(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.transition1(self.block1(self.stem(images)))
        features = self.block3(self.transition2(self.block2(features)))
        return relu(self.norm(features))


class DenseLayer(nn.Module):
    """``[x, conv3x3(relu(bn(x)))]``."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(relu(self.norm(x)))], dim=1)


class Transition(nn.Module):
    """Halve the side: bn, relu, 1x1 convolution, mean pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.conv(relu(self.norm(x))), 2)


def _block(width: int, growth: int) -> nn.Sequential:
    return nn.Sequential(*(DenseLayer(width + layer * growth, growth) for layer in range(LAYERS)))

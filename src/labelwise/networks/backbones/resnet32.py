"""ResNet-18 for 32-pixel pictures: 3x3 stem of stride 1 and no pooling, He initialisation.

Four stages of two basic blocks, widths 64-128-256-512; 32 x 32 -> 4 x 4.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from labelwise.networks.backbones.base import Backbone, he_init
from labelwise.pictures.transform import CIFAR_MEAN, CIFAR_STD, Transform


class ResNet18Small(Backbone):
    """The ResNet-18 the papers train on CIFAR."""

    def __init__(self, image_size: int = 32, in_chans: int = 3) -> None:
        super().__init__("resnet18-32", 512, Transform(image_size, CIFAR_MEAN, CIFAR_STD))
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        )
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        he_init(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layer1(self.stem(images))
        features = self.layer4(self.layer3(self.layer2(features)))
        return torch.as_tensor(features)


class BasicBlock(nn.Module):
    """``relu(x + conv(relu(conv(x))))``, each convolution with batch norm."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(branch + self.shortcut(x))


def _stage(width_in: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(width_in, width, stride), BasicBlock(width, width, 1))

"""A backbone by its name: the only place where a backbone's name becomes a network.

``small-cnn``, ``resnet18-32``, ``densenet40-12``, ``densenet40-40`` and ``vgg16-32`` are made
here for small pictures, ``vgg16-fc7`` is VGG16 with its dense layers; ``torchvision/NAME`` is
looked up in torchvision, every other name in timm; ``identity`` stands for stored features, and
``tower/...`` is the image half of a text-image model
(:mod:`labelwise.learn.backbones.transformers`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, relu

from labelwise.errors import SettingsError
from labelwise.eyes.eye import BUILT_IN
from labelwise.learn.backbones.base import Backbone, Identity, he_init
from labelwise.learn.backbones.transformers import TOWER, ImageTower, TowerShape
from labelwise.learn.backbones.weights import EYE, PRETRAINED, fetch_url, load_state
from labelwise.pictures.transform import CIFAR_MEAN, CIFAR_STD, BandScale, Transform
from labelwise.types import nearest

# A small network for small pictures on a CPU: three 3x3 convolutions after halving the picture.
#
#     halve -> conv 24, | |, max pool -> conv 64, relu, max pool -> conv 128, relu -> max of places
#
# The first layer keeps magnitudes: light and dark strokes look the same to the next.


class SmallCNN(Backbone):
    """89,000 weights, 128 channels; 48 x 48 -> 1 x 1."""

    def __init__(self, image_size: int = 48, in_chans: int = 3) -> None:
        transform = Transform(image_size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        super().__init__("small-cnn", 128, transform)
        self.stem = _convolution(in_chans, 24)
        self.middle = _convolution(24, 64)
        self.top = _convolution(64, 128)

    def forward(self, images: Tensor) -> Tensor:
        strokes = max_pool2d(torch.abs(self.stem(avg_pool2d(images, 2))), 2, 2)
        parts = max_pool2d(relu(self.middle(strokes)), 2, 2)
        return relu(self.top(parts)).amax(dim=(2, 3), keepdim=True)


def _in_order(network: Backbone, images: Tensor) -> Tensor:
    for part in network.children():
        images = part(images)
    return images


def _convolution(width_in: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width_in, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
    )


# ResNet-18 for 32-pixel pictures: 3x3 stem of stride 1 and no pooling, He initialisation.
#
# Four stages of two basic blocks, widths 64-128-256-512; 32 x 32 -> 4 x 4.


class ResNet18Small(Backbone):
    """The ResNet-18 the papers train on CIFAR."""

    forward = _in_order

    def __init__(self, image_size: int = 32, in_chans: int = 3) -> None:
        super().__init__("resnet18-32", 512, Transform(image_size, CIFAR_MEAN, CIFAR_STD))
        self.stem = nn.Sequential(*_convolution(in_chans, 64), nn.ReLU(inplace=True))
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        he_init(self)


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
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def _stage(width_in: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(width_in, width, stride), BasicBlock(width, width, 1))


# DenseNet-40 for 32-pixel pictures: Huang et al. 2017, without bottleneck or compression.
#
#     3x3 stem to 16 channels; three blocks of (40 - 4) / 3 = 12 layers bn-relu-conv3x3, each adding
#     ``growth`` channels to what it reads; between blocks bn-relu-conv1x1 and 2x2 mean pooling.
#
# The last block's batch norm and ReLU end the map: 16 + 36 growth channels, 32 x 32 -> 8 x 8.

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
        return relu(_in_order(self, images))


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


# VGG16 for 32-pixel pictures, and the published one with its dense layers fc6 and fc7.
#
# The small one has the thirteen 3x3 convolutions, with batch norm, and no dense layers: widths 64 x
# 2, 128 x 2, 256 x 3, 512 x 3, 512 x 3 with 2x2 max pooling between the groups and after the last;
# 32 x 32 -> 1 x 1.


class VGG16Small(Backbone):
    """The VGG16 the papers train on CIFAR."""

    forward = _in_order

    def __init__(self, image_size: int = 32, in_chans: int = 3) -> None:
        super().__init__("vgg16-32", 512, Transform(image_size, CIFAR_MEAN, CIFAR_STD))
        self.group1 = _group(in_chans, 64, depth=2)
        self.group2 = _group(64, 128, depth=2)
        self.group3 = _group(128, 256, depth=3)
        self.group4 = _group(256, 512, depth=3)
        self.group5 = _group(512, 512, depth=3)
        he_init(self)


class VGG16Dense(Backbone):
    """torchvision's VGG16 up to fc7: 4,096 features of one place, dropout in front of the head."""

    def __init__(self, weights: str | None = None, image_size: int | None = None) -> None:
        from torchvision import models  # slow to import, and seldom needed

        published = models.VGG16_Weights.IMAGENET1K_V1
        transform = Transform.of_recipe(published.transforms(), image_size)
        super().__init__("vgg16-fc7", 4096, transform)
        self.network = models.vgg16(weights=None)
        del self.network.classifier[6]  # fc8, the classifier of ImageNet
        if weights is not None:
            load_state(self.network, fetch_url(published.url) if weights == PRETRAINED else weights)

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.network(images))[:, :, None, None]


def _group(width_in: int, width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [*_convolution(width_in, width), nn.ReLU(inplace=True)]
        width_in = width
    return nn.Sequential(*layers, nn.MaxPool2d(2))


SMALL_BACKBONES: dict[str, Callable[..., Backbone]] = {
    "densenet40-12": partial(DenseNet40, 12),
    "densenet40-40": partial(DenseNet40, 40),
    "resnet18-32": ResNet18Small,
    "small-cnn": SmallCNN,
    "vgg16-32": VGG16Small,
}

VGG16_DENSE = "vgg16-fc7"


def create_backbone(
    name: str,
    *,
    weights: str | None = None,
    image_size: int | None = None,
    squash: bool = False,
    reduced_jpeg: bool = False,
    channels: int | None = None,
    bands: BandScale | None = None,
) -> Backbone:
    """Return the backbone of a name, with random weights unless ``weights`` says otherwise.

    ``weights`` is a file (safetensors, or ``.pth`` with tensors only), the folder of an earlier
    run, a folder as timm writes them for a hub, or ``"pretrained"`` for the published ones, taken
    from the cache or the network; of torchvision's also a tag such as ``"IMAGENET1K_V1"``.
    ``image_size`` overrides the side of the input. ``squash`` scales whole pictures to the input
    where the backbone's own transform would cut off their edges. ``reduced_jpeg`` decodes large
    JPEGs at a fraction of their size. ``channels`` is for ``identity`` alone: the number of
    features of a row. ``bands`` are what its pictures hold instead of RGB; published weights are
    adapted to them as timm does.
    """
    if image_size is not None and image_size < 1:
        raise SettingsError(f"image_size must be positive, got {image_size}")
    in_chans = 3 if bands is None else len(bands.bands)
    backbone = _create(name, weights, image_size, channels, in_chans)
    if bands is not None:
        backbone.transform = backbone.transform.with_bands(bands)
    if squash:
        backbone.transform = replace(backbone.transform, crop=None)
    if reduced_jpeg:
        backbone.transform = replace(backbone.transform, reduced_jpeg=True)
    return backbone


def create_classifier(
    name: str, *, weights: str = PRETRAINED, image_size: int | None = None, squash: bool = False
) -> tuple[Backbone, Tensor, Tensor]:
    """Return a network of timm without its classifier, and that classifier: W (C, D) and b (C,)."""
    import timm

    from labelwise.learn.backbones.timm_models import read_classifier

    if not timm.is_model(name):
        raise SettingsError(f"unknown classifier {name!r}{nearest(name, timm.list_models())}")
    backbone, weight, bias = read_classifier(name, weights, image_size)
    if squash:
        backbone.transform = replace(backbone.transform, crop=None)
    return backbone, weight, bias


def _create(
    name: str, weights: str | None, image_size: int | None, channels: int | None, in_chans: int
) -> Backbone:
    if in_chans != 3 and (name in ("identity", VGG16_DENSE) or name.startswith("torchvision/")):
        raise SettingsError(
            f"backbone {name!r} takes three channels, and the pictures have {in_chans} bands; take "
            "small-cnn or a network of timm, such as resnet18"
        )
    if name == "identity":
        if channels is None:
            raise SettingsError(
                "backbone 'identity' needs channels, the number of features per row"
            )
        return Identity(channels)
    build: Callable[[], Backbone]
    if name in SMALL_BACKBONES:
        sized = {} if image_size is None else {"image_size": image_size}
        build = partial(SMALL_BACKBONES[name], **sized, in_chans=in_chans)
        unpublished = f"backbone {name!r} has no published weights; give a file or none"
    elif name.startswith(TOWER):
        shape = TowerShape.parse(name)
        if image_size not in (None, shape.side):
            raise SettingsError(
                f"the tower {shape.name} has positions for pictures of {shape.side} pixels, got "
                f"image_size {image_size}; leave it out"
            )
        build = partial(ImageTower, shape)
        unpublished = (
            f"the tower {shape.name} gets its weights from the folder of its model; name that "
            "folder: `labelwise train PHOTOS --words WORDS --model FOLDER`"
        )
    elif name == VGG16_DENSE:
        return VGG16Dense(weights, image_size)
    elif name.startswith("torchvision/"):
        from labelwise.learn.backbones import torchvision_models as peers

        if name not in peers.torchvision_names():
            raise SettingsError(f"unknown backbone {name!r}{nearest(name, backbone_names())}")
        return peers.TorchvisionBackbone(name, weights, image_size)
    else:
        import timm

        from labelwise.learn.backbones.timm_models import EyeBackbone, TimmBackbone

        if name == EYE:
            return EyeBackbone(TimmBackbone(BUILT_IN, weights, image_size))
        if not timm.is_model(name):
            raise SettingsError(f"unknown backbone {name!r}{nearest(name, backbone_names())}")
        return TimmBackbone(name, weights, image_size, in_chans)
    if weights == PRETRAINED:
        raise SettingsError(unpublished)
    backbone = build()
    if weights is not None:
        load_state(backbone, weights)
    return backbone


def backbone_names() -> list[str]:
    """Return every name: those made here, torchvision's and timm's."""
    import timm

    from labelwise.learn.backbones.torchvision_models import torchvision_names

    ours = ["identity", *SMALL_BACKBONES, VGG16_DENSE]
    return [*ours, *torchvision_names(), *timm.list_models()]

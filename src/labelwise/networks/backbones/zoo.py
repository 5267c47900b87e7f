"""A backbone by its name: the only place where a backbone's name becomes a network.

``small-cnn``, ``resnet18-32``, ``densenet40-12``, ``densenet40-40`` and ``vgg16-32`` are made
here for small pictures, ``vgg16-fc7`` is VGG16 with its dense layers, ``cvt-13``, ``cvt-21`` and
``cvt-w24`` are CvTs, which timm lacks; ``torchvision/NAME`` is looked up in torchvision, every
other name in timm; ``identity`` stands for stored features, and ``tower/...`` is the image half of
a text-image model (:mod:`labelwise.networks.backbones.transformers`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.networks.backbones.base import Backbone, Identity
from labelwise.networks.backbones.small_networks import (
    DenseNet40,
    ResNet18Small,
    SmallCNN,
    VGG16Dense,
    VGG16Small,
)
from labelwise.networks.backbones.transformers import CVT, TOWER, CvT, ImageTower, TowerShape
from labelwise.networks.backbones.weights import PRETRAINED, load_state
from labelwise.pictures.transform import BandScale
from labelwise.types import nearest

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
    name: str,
    *,
    weights: str = PRETRAINED,
    image_size: int | None = None,
    squash: bool = False,
) -> tuple[Backbone, Tensor, Tensor]:
    """Return a network of timm without its classifier, and that classifier: W (C, D) and b (C,).

    W mean_places(features) + b are then the logits of the network as it was trained.
    """
    import timm

    from labelwise.networks.backbones.timm_models import read_classifier

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
    if name in SMALL_BACKBONES:
        build = SMALL_BACKBONES[name]
        sized = {} if image_size is None else {"image_size": image_size}
        backbone = build(**sized, in_chans=in_chans)
        if weights == PRETRAINED:
            raise SettingsError(f"backbone {name!r} has no published weights; give a file or none")
        if weights is not None:
            load_state(backbone, weights)
        return backbone
    if name.startswith(TOWER):
        return _tower(TowerShape.parse(name), weights, image_size)
    if name == VGG16_DENSE:
        return VGG16Dense(weights, image_size)
    if name in CVT:
        return _cvt(name, weights, image_size, in_chans)
    if name.startswith("torchvision/"):
        from labelwise.networks.backbones.torchvision_models import (
            TorchvisionBackbone,
            torchvision_names,
        )

        if name in torchvision_names():
            return TorchvisionBackbone(name, weights, image_size)
    else:
        import timm

        if timm.is_model(name):
            from labelwise.networks.backbones.timm_models import TimmBackbone

            return TimmBackbone(name, weights, image_size, in_chans)
    raise SettingsError(f"unknown backbone {name!r}{nearest(name, backbone_names())}")


def _tower(shape: TowerShape, weights: str | None, image_size: int | None) -> Backbone:
    if image_size not in (None, shape.side):
        raise SettingsError(
            f"the tower {shape.name} has positions for pictures of {shape.side} pixels, got "
            f"image_size {image_size}; leave it out"
        )
    if weights == PRETRAINED:
        raise SettingsError(
            f"the tower {shape.name} gets its weights from the folder of its model; name that "
            "folder: `labelwise train PHOTOS --words WORDS --model FOLDER`"
        )
    tower = ImageTower(shape)
    if weights is not None:
        load_state(tower, weights)
    return tower


def _cvt(name: str, weights: str | None, image_size: int | None, in_chans: int) -> Backbone:
    if weights == PRETRAINED:
        raise SettingsError(
            f"the published weights of {name!r} are in no hub; fetch their file and give its path"
        )
    backbone = CvT(name, image_size, in_chans)
    if weights is not None:
        load_state(backbone, weights)
    return backbone


def backbone_names() -> list[str]:
    """Return every name: those made here, torchvision's and timm's."""
    import timm

    from labelwise.networks.backbones.torchvision_models import torchvision_names

    ours = ["identity", *SMALL_BACKBONES, VGG16_DENSE, *CVT]
    return [*ours, *torchvision_names(), *timm.list_models()]

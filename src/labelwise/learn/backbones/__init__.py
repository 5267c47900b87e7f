"""Backbones: from images to a feature map, by name."""

from labelwise.learn.backbones.base import Backbone, freeze, freeze_batch_norm
from labelwise.learn.backbones.weights import PRETRAINED
from labelwise.learn.backbones.zoo import (
    SMALL_BACKBONES,
    backbone_names,
    create_backbone,
    create_classifier,
)
from labelwise.pictures.transform import Transform

__all__ = [
    "PRETRAINED",
    "SMALL_BACKBONES",
    "Backbone",
    "Transform",
    "backbone_names",
    "create_backbone",
    "create_classifier",
    "freeze",
    "freeze_batch_norm",
]

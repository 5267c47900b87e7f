"""Photos of many sizes, turned in every way that a camera notes, and a model for them."""

import numpy as np
import torch
from PIL import Image

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.models import HeadSpec
from labelwise.types import LabelSpace

NAMES = ("dog", "red car", "Straße", "a,b")


def write_turned_photos(folder, count):
    """Write photos to a folder, a quarter as PNG and the rest as JPEG; return their paths."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        size = tuple(int(side) for side in rng.integers(40, 160, 2))
        small = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        if number % 10 == 9:
            image = image.convert("L")
        exif = Image.Exif()
        exif[0x0112] = number % 8 + 1
        paths.append(folder / f"{number:03d}.{'png' if number % 4 == 3 else 'jpg'}")
        image.save(paths[-1], exif=exif)
    return paths


def predictor(link, *, mirrored=False):
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", image_size=64)
    head = HeadSpec("linear", {})
    model = Model(
        backbone, make_head(head, backbone.channels, len(NAMES)), mirrored=mirrored
    ).eval()
    torch.nn.init.normal_(model.head.classifier.weight, std=6.0)
    return Predictor(model, head, LabelSpace(NAMES), link, Threshold(0.5), "bce")

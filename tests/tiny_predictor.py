"""A predictor of random weights for three labels, and pictures for it."""

import io

import numpy as np
import torch
from PIL import Image

from labelwise.calibration import Platt
from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.types import LabelSpace

NAMES = ("dog", "cat", 'odd, "name"|x')


def make(link=None, rule=None):
    torch.manual_seed(0)
    backbone = create_backbone("small-cnn", image_size=32)
    head = HeadSpec("linear", {})
    model = Model(backbone, make_head(head, backbone.channels, len(NAMES))).eval()
    return Predictor(
        model,
        head,
        LabelSpace(NAMES),
        link or Platt(Sigmoid(), [1.0, 2.0, 3.0], [0.5, 0.0, -0.5], 30.0),
        rule or Threshold((0.5, 0.6, 0.4)),
        "bce",
    )


def pictures(count=3):
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (40 + n, 50, 3), dtype=np.uint8)) for n in range(count)
    ]


def encoded(picture, kind="JPEG", **options):
    """Return the bytes of the file of a picture."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()

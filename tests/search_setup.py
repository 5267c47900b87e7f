"""A model of random weights with held-out predictions, and folders of small pictures."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from labelwise.decide import Threshold
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.predictions import Predictions
from labelwise.types import LabelSpace

LABELS = ("beach", "cat", "dog", "row")


def save_model(folder: Path, seed: int = 0, labels=LABELS, spread: float = 1) -> Path:
    """Write a random model; with more ``spread`` its answers about photos differ by more."""
    torch.manual_seed(seed)
    backbone = create_backbone("small-cnn", image_size=16)
    head = HeadSpec("linear", {})
    model = Model(backbone, make_head(head, backbone.channels, len(labels))).eval()
    with torch.no_grad():
        for weight in model.head.parameters():
            weight *= spread
    space = LabelSpace(labels)
    Predictor(model, head, space, Sigmoid(), Threshold(0.5), "bce").save(folder)
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(-1, 2, (400, len(labels))).astype(np.float32))
    truth = torch.from_numpy((random.random(logits.shape) < Sigmoid()(logits.numpy())).astype("f4"))
    ids = [f"{row}" for row in range(400)]
    made = Predictions(ids, logits, truth, None, labels, "test", Sigmoid())
    made.save(folder / "predictions" / "test.parquet")
    return folder


def picture(path: Path, seed: int) -> Path:
    """Write a small picture with much of one colour, so that pictures differ."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 60, (24, 32, 3)) + random.integers(0, 190, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def twelve_photos(root: Path) -> Path:
    """Write twelve photos in three folders."""
    for number in range(12):
        picture(root / ("", "2023", "2024/may")[number % 3] / f"{number}.png", number)
    return root

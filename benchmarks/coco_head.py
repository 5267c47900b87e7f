"""A linear head on features of COCO photos, for the benchmarks that need a real model.

Features of a pretrained network are written once, to $COCO_FEATURES; the head is trained on the
training photos and calibrated on the validation photos.
"""

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from labelwise.calibration import platt
from labelwise.links import Link, Sigmoid

FEATURES = Path(os.environ.get("COCO_FEATURES", "coco_features.npz"))
WEIGHTS = "weights/tf_efficientnet_lite0_fp16.safetensors"


def linear_head(features, labels, decay):
    """Return weights of a logistic regression per label, by L-BFGS."""
    x = torch.from_numpy(features).double()
    y = torch.from_numpy(labels).double()
    weights = torch.zeros(x.shape[1] + 1, y.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=150, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        (loss + decay * weights[:-1].square().sum()).backward()
        return loss

    optimizer.step(closure)
    fitted = weights.detach().numpy()
    return lambda part: part @ fitted[:-1] + fitted[-1]


@dataclass(frozen=True)
class CocoModel:
    """A linear head on features of a pretrained network, and the photos it came from."""

    raw: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    logits: Callable[[np.ndarray], np.ndarray]
    link: Link

    def log_probs(self, features):
        """Return log p and log 1 - p (N, K) of photos with these features (N, D)."""
        both = self.link.log_probs(torch.from_numpy(self.logits(features)))
        return tuple(one.numpy() for one in both)


@cache
def coco_model(folder):
    """Return the model, trained on the training photos and calibrated on validation photos."""
    if not FEATURES.is_file():
        write_coco_features(folder)
    with np.load(FEATURES) as file:
        features, labels = file["features"].astype(np.float64), file["labels"]
        split = file["split"]
    train, val = split == "train", split == "val"
    middle, spread = features[train].mean(0), features[train].std(0) + 1e-6
    head = linear_head((features[train] - middle) / spread, labels[train], 2e-4)

    def logits(some):
        return head((some - middle) / spread)

    known = torch.from_numpy(labels[val]).float()
    link = platt(torch.from_numpy(logits(features[val])), known, Sigmoid(), scope="shared")
    return CocoModel(features, labels, split, logits, link)


def features_of(photos, folder):
    """Return the features (N, D) of a pretrained network for pictures of one size."""
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    model.load_state_dict({key: one.float() for key, one in load_file(folder / WEIGHTS).items()})
    middle, spread = (torch.tensor(model.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    features = []
    for some in batched(photos, 64):
        arrays = [torch.from_numpy(np.array(one)).permute(2, 0, 1) / 255 for one in some]
        with torch.inference_mode():
            maps = model.forward_features((torch.stack(arrays) - middle) / spread)
            features.append(model.forward_head(maps, pre_logits=True).numpy())
    return np.concatenate(features).astype(np.float16)


def batched(items, size):
    """Yield lists of so many items."""
    items = iter(items)
    while some := list(islice(items, size)):
        yield some


def write_coco_features(folder):
    """Write features of the COCO photos, which takes minutes on one core."""
    import pyarrow.parquet as pq
    from PIL import Image

    tables = [
        pq.read_table(folder / f"coco80-{part}.parquet")
        for part in ("train-a", "train-b", "val-test", "zero-label")
    ]
    names = json.loads(tables[0].schema.metadata[b"classes"])
    rows = [row for table in tables for row in table.to_pylist()]
    photos = (Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows)
    temporary = FEATURES.with_name(f"{FEATURES.name}.part.npz")
    np.savez(
        temporary,
        features=features_of(photos, folder),
        labels=np.array([[name in row["labels"] for name in names] for row in rows], bool),
        split=np.array([row["split"] for row in rows]),
        id=np.array([str(row["id"]) for row in rows]),
        names=np.array(names),
    )
    temporary.replace(FEATURES)

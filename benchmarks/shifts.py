"""Real photos that a model was not tested on, with their truth: blur, another data set, shares.

    calm      COCO photos of the test split
    blur      the same photos, blurred (Gaussian, radius 3 of 192 pixels)
    cifar     CIFAR-100 test photos: 25 classes that COCO names too, and five without its labels
    three     COCO test photos, drawn so that a label has three times its share

The model is a linear head on features of a pretrained network, trained on COCO's training photos
and calibrated on its validation photos (:func:`coco_head.coco_model`). Features are made once
and kept in the file that the variable SHIFT_FEATURES names.
"""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from coco_head import coco_model, features_of
from PIL import Image, ImageFilter

FEATURES = Path(os.environ.get("SHIFT_FEATURES", "shift_features.npz"))
BLUR = 3
CIFAR_OF = {  # the COCO label of CIFAR-100 classes
    **{name: name for name in ("apple", "orange", "bear", "bicycle", "bottle", "bowl", "bus")},
    **{name: name for name in ("chair", "clock", "couch", "cup", "elephant", "keyboard")},
    **{name: name for name in ("motorcycle", "train")},
    **dict.fromkeys(("baby", "boy", "girl", "man", "woman"), "person"),
    "cattle": "cow",
    "bed": "bed",
    "table": "dining table",
    "television": "tv",
    "pickup_truck": "truck",
    **dict.fromkeys(("castle", "mountain", "sea", "rose", "crab"), None),
}


@dataclass(frozen=True)
class Photos:
    """Features (N, D), log p and log 1 - p of the model (N, K), and labels (N, K)."""

    features: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray
    labels: np.ndarray

    def rows(self, rows):
        """Return some of the photos."""
        return Photos(self.features[rows], self.log_p[rows], self.log_q[rows], self.labels[rows])


def photos_of(name, folder):
    """Return all photos of a world, or of a split of COCO (train, val, test)."""
    model = coco_model(folder)
    if name in ("train", "val", "test", "calm"):
        own = model.split == ("test" if name == "calm" else name)
        return Photos(model.raw[own], *model.log_probs(model.raw[own]), model.labels[own])
    if not FEATURES.is_file():
        write_shift_features(folder)
    with np.load(FEATURES) as file:
        features = file[f"{name}_features"].astype(np.float64)
        labels = file[f"{name}_labels"]
    return Photos(features, *model.log_probs(features), labels)


def three_times(photos, label, size, random):
    """Return photos drawn so that a label has three times its share, at most 0.9."""
    has = photos.labels[:, label]
    share = min(3 * has.mean(), 0.9)
    wanted = random.random(size) < share
    with_label, without = np.flatnonzero(has), np.flatnonzero(~has)
    rows = np.where(wanted, random.choice(with_label, size), random.choice(without, size))
    return photos.rows(rows)


def write_shift_features(folder):
    """Write features of the blurred COCO photos and of CIFAR-100, which takes minutes."""
    table = pq.read_table(folder / "coco80-val-test.parquet")
    names = json.loads(table.schema.metadata[b"classes"])
    tests = [row for row in table.to_pylist() if row["split"] == "test"]
    blur = ImageFilter.GaussianBlur(BLUR)
    blurred = (_photo(row["image"]).filter(blur) for row in tests)
    found = {
        "blur_features": features_of(blurred, folder),
        "blur_labels": [[name in row["labels"] for name in names] for row in tests],
    }
    table = pq.read_table(folder / "cifar100-test.parquet")
    fine = json.loads(table.schema.metadata[b"fine_names"])
    rows = [row for row in table.to_pylist() if fine[row["fine"]] in CIFAR_OF]
    large = (_photo(row["image"]).resize((192, 192), Image.Resampling.BICUBIC) for row in rows)
    labels = [CIFAR_OF[fine[row["fine"]]] for row in rows]
    found |= {
        "cifar_features": features_of(large, folder),
        "cifar_labels": [[name == label for name in names] for label in labels],
    }
    temporary = FEATURES.with_name(f"{FEATURES.name}.part.npz")
    np.savez(
        temporary,
        **{key: np.asarray(one, bool if "labels" in key else np.float16)
           for key, one in found.items()},
    )  # fmt: skip
    temporary.replace(FEATURES)


def _photo(image):
    return Image.open(io.BytesIO(image)).convert("RGB")

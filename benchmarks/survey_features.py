"""Features for the survey, as files that `--source NAME=features:FILE` reads.

    python benchmarks/survey_features.py DATA FOLDER
    python benchmarks/survey_features.py DATA FOLDER photos     for networks that are fine-tuned

DATA holds Parquet files of photos (COCO, CIFAR-100, CIFAR-10H), of captions with the features of
their photos, and Mulan's scene.npz, and ``weights``. Photos go through EfficientNet-Lite0: 3,600 of
COCO at 128 pixels, 4,000 of CIFAR-100 (fine and coarse labels) and of CIFAR-10H (votes as soft
labels) at 64. The 40 commonest words of four letters or more are the labels of 4,000 captions. Each
file keeps the first 128 principal components. ``photos`` are 5,000 of COCO at 128 pixels and 5,000
of CIFAR-100 at 32 in one file.
"""

import io
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

COMPONENTS, CAPTIONS, WORDS = 128, 4000, 40
SKIPPED = {"with", "that", "some", "there", "this", "from", "into", "over", "very", "while", "next"}


def looked_at(photos: Iterable[bytes], size: int, weights: Path) -> np.ndarray:
    """Return the pooled features of encoded photos by EfficientNet-Lite0."""
    network = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    stored = {name: value.float() for name, value in load_file(weights).items()}
    network.load_state_dict(stored, strict=False)
    images = [Image.open(io.BytesIO(photo)).convert("RGB") for photo in photos]
    resized = [image.resize((size, size), Image.Resampling.BICUBIC) for image in images]
    found = []
    with torch.inference_mode():
        for start in range(0, len(resized), 100):
            batch = np.stack([np.asarray(image) for image in resized[start : start + 100]])
            pixels = torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 127.5 - 1
            found.append(network.eval()(pixels).numpy())
    return np.concatenate(found)


def save(folder: Path, name: str, features: np.ndarray, labels: np.ndarray, names: list) -> None:
    """Write the first principal components with the labels."""
    centred = features.astype(np.float64) - features.mean(0)
    basis = np.linalg.svd(centred, full_matrices=False)[2][:COMPONENTS]
    used = labels.sum(0) > 0
    np.savez_compressed(
        folder / f"{name}.npz",
        features=(centred @ basis.T).astype(np.float32),
        labels=labels[:, used],
        label_names=np.array(names)[used],
    )


def coco(data: Path, half: str, count: int) -> tuple[list[bytes], list[list[str]]]:
    table = pq.read_table(data / f"coco80-train-{half}.parquet").slice(0, count).to_pydict()
    return table["image"], table["labels"]


def cifar100(data: Path, count: int) -> tuple[list[bytes], np.ndarray, list[str]]:
    table = pq.read_table(data / "cifar100-train-a.parquet")  # in the order of its classes
    drawn = np.sort(np.random.default_rng(0).permutation(len(table))[:count])
    table = table.take(drawn).to_pydict()
    fine, coarse = (np.array(table[kind]) for kind in ("fine", "coarse"))
    labels = np.concatenate([np.eye(100, dtype=bool)[fine], np.eye(20, dtype=bool)[coarse]], 1)
    names = [f"fine {k}" for k in range(100)] + [f"coarse {k}" for k in range(20)]
    return table["image"], labels, names


def known(tags: list[list[str]]) -> tuple[np.ndarray, list[str]]:
    names = sorted({label for labels in tags for label in labels})
    return np.array([[name in own for name in names] for own in tags]), names


def photos(data: Path, folder: Path) -> None:
    """Write the photos that networks are fine-tuned on, small and encoded, with their labels."""
    small, tags = [], []
    for half, count in (("a", 3750), ("b", 1250)):
        images, labels = coco(data, half, count)
        tags += labels
        for image in images:
            with io.BytesIO() as file:
                shown = Image.open(io.BytesIO(image)).convert("RGB")
                shown.resize((128, 128), Image.Resampling.BICUBIC).save(file, "WEBP", quality=70)
                small.append(file.getvalue())
    sets = {"coco": (small, *known(tags)), "cifar100": cifar100(data, 5000)}
    arrays = {}
    for name, (images, labels, names) in sets.items():
        arrays[f"{name} photos"] = np.frombuffer(b"".join(images), np.uint8)
        arrays[f"{name} offsets"] = np.cumsum([0, *map(len, images)])
        arrays |= {f"{name} labels": labels, f"{name} names": np.array(names)}
    np.savez(folder / "photos.npz", **arrays)


def main(data: Path, folder: Path) -> None:
    weights = data / "weights" / "tf_efficientnet_lite0_fp16.safetensors"
    images, tags = coco(data, "a", 3600)
    save(folder, "coco", looked_at(images, 128, weights), *known(tags))
    images, labels, names = cifar100(data, 4000)
    save(folder, "cifar100", looked_at(images, 64, weights), labels, names)
    table = pq.read_table(data / "cifar10h-test.parquet").slice(0, 4000).to_pydict()
    votes = np.array(table["votes"], np.float32)
    names = [f"kind {k}" for k in range(10)]
    features = looked_at(table["image"], 64, weights)
    save(folder, "cifar10h", features, votes / votes.sum(1, keepdims=True), names)
    stored = pq.read_table(data / "captions-10k.parquet").slice(0, CAPTIONS)
    said = [set(re.findall(r"[a-z]{4,}", text.lower())) for text in stored["caption"].to_pylist()]
    common = Counter(word for words in said for word in sorted(words) if word not in SKIPPED)
    names = [word for word, _ in common.most_common(WORDS)]
    labels = np.array([[name in words for name in names] for words in said])
    raw = np.array([list(row) for row in stored["feature"].to_pylist()], np.float32)
    save(folder, "words", raw, labels, names)
    with np.load(data / "mulan_scene.npz") as scene:
        print({name: scene[name].shape for name in scene.files})
        arrays = {name: scene[name] for name in scene.files}
    labels = next(a for a in arrays.values() if a.ndim == 2 and a.shape[1] == 6)
    features = next(a for a in arrays.values() if a.ndim == 2 and a.shape[1] == 294)
    save(folder, "scene", features, labels > 0, [f"scene {k}" for k in range(6)])


if __name__ == "__main__":
    data, folder = map(Path, sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    (photos if sys.argv[3:] == ["photos"] else main)(data, folder)

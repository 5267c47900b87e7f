"""Make what the package knows about words: WordNet's kinds of things, and maps from captions.

    apt-get download wordnet-base && dpkg-deb -x wordnet-base_*.deb wordnet
    python benchmarks/words_data.py synsets wordnet/usr/share/wordnet
    python benchmarks/words_data.py maps DATA --cache FOLDER

``synsets`` reads data.noun and index.noun of WordNet 3.0, whose offsets are ImageNet's names; the
Debian package wordnet-base holds them as Princeton published them. ``maps`` reads captions-10k,
coco80-val-test and the sentence encoder of DATA. A caption whose photo may be one of
coco80-val-test (cosine of the features above .7) is left out.

The maps are the canonical correlations of standardised features and text vectors, with ridges:

    A = S^p U' (C_x + a)^(-1/2),  B = S^p V' (C_t + b)^(-1/2),   U S V' = whitened covariance

What the routes count is a logistic regression on the split val of COCO, pooled over words.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from labelwise.photos.embeddings import MAPS_FILE
from labelwise.photos.words import ClassesAndWords, WordList, classes
from labelwise.photos.words.classes import PROBE, SYNSETS_FILE, CaptionMaps
from labelwise.photos.words.start import features_of
from labelwise.pictures.memory import BytesImages

HOME = Path(classes.__file__).parent
ENCODER = Path("weights") / "all-MiniLM-L6-v2"
RIDGES, POWER, WIDTH = (3.0, 3e-4), 0.75, 256
SAME_PHOTO = 0.7
LICENCE = """\
# WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved.
# Permission to use, copy, modify and distribute this software and database and its documentation
# for any purpose and without fee or royalty is hereby granted, provided that you agree to comply
# with the following copyright notice and statements, including the disclaimer, and that the same
# appear on ALL copies of the software, database and documentation, including modifications that
# you make for internal use or for distribution.
# THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS
# OR WARRANTIES, EXPRESS OR IMPLIED. BY WAY OF EXAMPLE, BUT NOT LIMITATION, PRINCETON UNIVERSITY
# MAKES NO REPRESENTATIONS OR WARRANTIES OF MERCHANTABILITY OR FITNESS FOR ANY PARTICULAR PURPOSE OR
# THAT THE USE OF THE LICENSED SOFTWARE, DATABASE OR DOCUMENTATION WILL NOT INFRINGE ANY THIRD PARTY
# PATENTS, COPYRIGHTS, TRADEMARKS OR OTHER RIGHTS.
# The name of Princeton University or Princeton may not be used in advertising or publicity
# pertaining to distribution of the software and/or database. Title to copyright in this software,
# database and any associated documentation shall at all times remain with Princeton University and
# LICENSEE agrees to preserve same.
# An extract: synset, its names (%n: not the first sense of that name), the synsets it is a kind of.
"""


def synsets(wordnet: Path) -> str:
    """Return ImageNet's synsets in the order of its classes, then all that they are kinds of."""
    import timm

    listed = Path(timm.__file__).parent / "data" / "_info" / "imagenet_synsets.txt"
    classes = [name.removeprefix("n") for name in listed.read_text().split()]
    names: dict[str, list[str]] = {}
    above: dict[str, list[str]] = {}
    for line in (wordnet / "data.noun").read_text().splitlines():
        if line.startswith(" "):
            continue
        offset, _, _, count, *rest = line.partition("|")[0].split()
        words = int(count, 16)
        names[offset] = [word.replace("_", " ") for word in rest[: 2 * words : 2]]
        pointers = rest[2 * words + 1 :]
        above[offset] = [
            pointers[place + 1] for place in range(0, len(pointers), 4) if pointers[place][0] == "@"
        ]
    senses: dict[str, list[str]] = {}
    for line in (wordnet / "index.noun").read_text().splitlines():
        if not line.startswith(" "):
            parts = line.split()
            senses[parts[0].replace("_", " ")] = parts[-int(parts[2]) :]
    known, todo = set(classes), list(classes)
    while todo:
        new = set(above[todo.pop()]) - known
        known |= new
        todo += new
    lines = []
    for offset in (*classes, *sorted(known.difference(classes))):
        numbers = [senses[name.lower()].index(offset) + 1 for name in names[offset]]
        written = [
            name + (f"%{number}" if number > 1 else "")
            for name, number in zip(names[offset], numbers, strict=True)
        ]
        lines.append(f"{offset}\t{'|'.join(written)}\t{' '.join(above[offset])}\n")
    return LICENCE + "".join(lines)


def learn(features: NDArray, texts: NDArray) -> tuple[NDArray, NDArray]:
    """Return the maps of standardised features (n, D) and centred text vectors (n, E)."""
    halves = []
    for values, ridge in zip((features, texts), RIDGES, strict=True):
        own = values.T @ values / len(values) + ridge * np.eye(values.shape[1])
        halves.append(np.linalg.cholesky(own))
    both = features.T @ texts / len(texts)
    whitened = np.linalg.solve(halves[1], np.linalg.solve(halves[0], both).T).T
    left, strength, right = np.linalg.svd(whitened, full_matrices=False)
    scale = strength[:WIDTH] ** POWER
    return (
        (np.linalg.solve(halves[0].T, left[:, :WIDTH]) * scale).T,
        (np.linalg.solve(halves[1].T, right[:WIDTH].T) * scale).T,
    )


def captions(data: Path, model: ClassesAndWords, cache: Path) -> tuple[NDArray, NDArray]:
    """Return features (n, D) and text vectors (n, E) of the captions; the latter are kept."""
    table = pq.read_table(data / "captions-10k.parquet")
    stored = table["feature"].combine_chunks().values.to_numpy(zero_copy_only=False)
    scale = np.array(json.loads(table.schema.metadata[b"scale"]), np.float32)
    features = stored.reshape(len(table), -1).astype(np.float32) * scale
    kept = cache / "captions.npy"
    if not kept.is_file():
        texts = [caption.strip() for caption in table["caption"].to_pylist()]
        np.save(kept, model.encoder.encode(texts))
    return features, np.load(kept)


def photos(
    data: Path, model: ClassesAndWords, cache: Path
) -> tuple[NDArray, NDArray, list[str], NDArray]:
    """Return features, labels (n, 80), their names and the splits of coco80-val-test."""
    table = pq.read_table(data / "coco80-val-test.parquet")
    images = BytesImages(table["image"].to_pylist(), list(map(str, range(len(table)))))
    found = features_of(images, model.backbone, cache)
    x = found.of([found.digests[row] for row in range(len(table))]).numpy()
    names = json.loads(table.schema.metadata[b"classes"])
    labels = np.array([[name in own for name in names] for own in table["labels"].to_pylist()])
    return x, labels, names, np.array(table["split"].to_pylist())


def maps(data: Path, cache: Path) -> None:
    """Learn the maps and what routes count, and write them."""
    model = ClassesAndWords(data / ENCODER, cache=cache)
    features, texts = captions(data, model, cache)
    x, labels, names, split = photos(data, model, cache)
    deviation = features.std(0) + 1e-6
    standard = (features - features.mean(0)) / deviation
    near = (x - x.mean(0)) / deviation
    cosines = _unit(standard) @ _unit(near).T
    kept = cosines.max(1) <= SAME_PHOTO
    print(f"{(~kept).sum()} captions are left out: their photos may be in coco80-val-test")
    text_mean = texts[kept].mean(0)
    image, text = learn(standard[kept], texts[kept] - text_mean)
    arrays = {
        "image": image, "text": text, "deviation": deviation, "text_mean": text_mean,
        "weights": np.ones((2, 3)), "row": model.weight[0].numpy(),
        "probe": model.encoder.encode([PROBE])[0],
    }  # fmt: skip
    made = CaptionMaps(**{name: np.float32(value) for name, value in arrays.items()})
    val = split == "val"
    words = [word.texts for word in WordList.of(*names).words]
    routes, agree = model.routes(words, x[val], made)
    arrays["weights"] = np.stack([counted(routes, agree == has, labels[val]) for has in (0, 1)])
    print("class names, kinds, captions:", arrays["weights"].round(3).tolist())
    rounded = {name: np.asarray(value, np.float16) for name, value in arrays.items()}
    np.savez_compressed(MAPS_FILE, **rounded)


def counted(routes: NDArray, own: NDArray, labels: NDArray) -> NDArray:
    """Return what routes (3, n, K) count for some words, by a regression with a level per word."""
    x, y = routes[:, :, own], labels[:, own]
    some = y.any(0)
    x, y = x[:, :, some], y[:, some]

    def loss(values: NDArray) -> tuple[float, NDArray]:
        logits = np.tensordot(values[:3], x, 1) + values[3:]
        wrong = (expit(logits) - y) / y.size
        slope = np.concatenate([np.tensordot(x, wrong, 2), wrong.sum(0)])
        return float(np.mean(np.logaddexp(0, logits) - y * logits)), slope

    start = np.concatenate([np.ones(3), np.full(y.shape[1], -4.0)])
    bounds = [(0, None)] * 3 + [(None, None)] * y.shape[1]
    weights = minimize(loss, start, jac=True, bounds=bounds).x[:3]
    weights = weights * x.any(axis=(1, 2))  # of words that are no kind of class: none for kinds
    return weights / weights.sum()


def _unit(vectors: NDArray) -> NDArray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["synsets", "maps"])
    parser.add_argument("folder", type=Path, help="WordNet's folder, or that of the data")
    parser.add_argument("--cache", type=Path, default=Path("runs") / "words", help="for features")
    given = parser.parse_args()
    if given.what == "synsets":
        (HOME / SYNSETS_FILE).write_text(synsets(given.folder), encoding="utf-8")
    else:
        given.cache.mkdir(parents=True, exist_ok=True)
        maps(given.folder, given.cache)


if __name__ == "__main__":
    main()

"""How many near copies are found, and how many photos are taken for copies: COCO photos.

    python benchmarks/near_copies.py --data DIR [--photos 3000] [--vectors 100000]
    python benchmarks/near_copies.py --data DIR --photos 1500 --vectors 0 --backbone NAME

Copies of photos are made by another size, another quality, and by trimming; found are those whose
fingerprint has a cosine of at least NEAR with the photo's own. False are pairs of different photos
that have, as a share of all pairs and of photos. ``--vectors`` times the search for pairs among so
many vectors, in units of comparing a twentieth of the pairs, and counts what it misses there.
``--backbone`` compares the pooled features of a pretrained network as well, at several cosines.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from labelwise.pictures.decode import decode
from labelwise.pictures.duplicates import NEAR, WIDTH, fingerprint, first_near, near_pairs
from labelwise.training.features import frozen_backbone


def encoded(picture, quality=90):
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def trimmed(picture, left, top, right, bottom):
    width, height = picture.size
    return picture.crop(
        (left * width, top * height, width - right * width, height - bottom * height)
    )


COPIES = {
    "half the size": lambda one: encoded(one.resize((96, 96))),
    "quality 40": lambda one: encoded(one, 40),
    "trimmed by 5 %, all sides": lambda one: encoded(trimmed(one, *[0.025] * 4)),
    "trimmed by 5 %, two sides": lambda one: encoded(trimmed(one, 0.05, 0.05, 0, 0)),
    "mirrored": lambda one: encoded(one.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "shifted by 15 %": lambda one: encoded(trimmed(one, 0.15, 0, 0, 0)),
    "nearer by 1.3": lambda one: encoded(trimmed(one, *[0.115] * 4)),
    "darker by 0.6": lambda one: encoded(Image.eval(one, lambda level: int(0.6 * level))),
    "grey": lambda one: encoded(one.convert("L").convert("RGB")),
}
COSINES = (0.7, 0.8, 0.85, 0.9, 0.95)


def timed(count):
    """Print how long pairs among many vectors take, and which share of the copies it finds."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((count, WIDTH)).astype(np.float32)
    vectors *= np.arange(1, WIDTH + 1) ** -0.6  # as of photos, whose low frequencies are strong
    copies = random.permutation(count)[: count // 50]
    vectors[copies[::2]] = vectors[copies[1::2]] + 0.01 * random.standard_normal(
        (len(copies) // 2, WIDTH)
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    start = time.perf_counter()
    pairs = near_pairs(vectors, NEAR)
    taken = time.perf_counter() - start
    made = {tuple(sorted(pair)) for pair in zip(copies[::2], copies[1::2], strict=True)}
    made = {pair for pair in made if vectors[pair[0]] @ vectors[pair[1]] >= NEAR}
    found = len(made & {tuple(pair) for pair in pairs.tolist()}) / len(made)
    start = time.perf_counter()
    for part in np.array_split(vectors[: count // 20], max(1, count // 20 // 2048)):
        (part @ vectors.T >= NEAR).sum()
    whole = time.perf_counter() - start
    print(
        f"{count:,} vectors: {taken / whole:.2f} of comparing a twentieth of the pairs, "
        f"{taken:.1f} s; {found:.3f} of {len(made):,} copies found, {len(pairs):,} pairs"
    )
    grouped("the same, put together as an index does", vectors)
    frames = vectors[random.integers(0, 100, count)] + 0.01 * random.standard_normal((count, WIDTH))
    frames /= np.linalg.norm(frames, axis=1, keepdims=True)
    grouped("frames of 100 fixed cameras", frames.astype(np.float32))


def grouped(what, vectors):
    """Print in how much processor time vectors find their first one, and how many have none."""
    start = time.process_time()
    firsts = first_near(vectors, NEAR)
    alone = int((firsts == np.arange(len(firsts))).sum())
    print(f"{what}: {time.process_time() - start:.1f} s, {alone:,} pictures", flush=True)


def compared_by_network(name, blobs, copied):
    """Print what cosines of a network find, of changed photos and of others."""
    backbone = frozen_backbone(name, weights="pretrained").eval()

    def unit_features(contents):
        found = []
        for at in range(0, len(contents), 32):
            some = [backbone.transform.pixels(decode(one, "")) for one in contents[at : at + 32]]
            with torch.inference_mode():
                maps = backbone(backbone.transform.inputs(torch.stack(some)))
            found.append(maps.mean((2, 3)).numpy())
        values = np.concatenate(found)
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    own = unit_features(blobs)
    cosines = (own @ own.T)[np.triu_indices(len(own), 1)]
    first, second = np.triu_indices(len(own), 1)
    print(f"{name}: pairs of different photos have a cosine of {cosines.mean():.2f} on average")
    for least in COSINES:
        near = cosines >= least
        photos = len(np.union1d(first[near], second[near])) / len(own)
        print(f"at {least}: {near.sum()} of {len(cosines):,} pairs, {photos:.4f} of the photos")
    for change, contents in copied.items():
        same = np.einsum("ij,ij->i", unit_features(contents), own[: len(contents)])
        shares = ", ".join(f"{least} {(same >= least).mean():.3f}" for least in COSINES)
        print(f"{change:28} found at {shares}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of COCO photos")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--copies", type=int, default=500)
    parser.add_argument("--backbone", help="a network with pretrained weights")
    arguments = parser.parse_args()
    if arguments.vectors:
        timed(arguments.vectors)
    if arguments.data is None:
        return
    table = pq.read_table(arguments.data / "coco80-val-test.parquet", columns=["image"])
    blobs = table["image"].to_pylist()[: arguments.photos]
    looks = np.stack([fingerprint(one, "") for one in blobs])
    pairs = near_pairs(looks, NEAR)
    print(f"{len(pairs)} of {len(looks) * (len(looks) - 1) // 2:,} pairs of different photos, "
          f"{len(np.unique(pairs)) / len(looks):.4f} of the photos")  # fmt: skip
    copied = {}
    for name, change in COPIES.items():
        copied[name] = [
            change(Image.open(io.BytesIO(blob)).convert("RGB"))
            for blob in blobs[: arguments.copies]
        ]
        looked = np.stack([fingerprint(copy, "") for copy in copied[name]])
        found = np.einsum("ij,ij->i", looked, looks[: len(looked)]) >= NEAR
        print(f"{name:28} {found.mean():.3f} found")
    if arguments.backbone is not None:
        compared_by_network(arguments.backbone, blobs, copied)


if __name__ == "__main__":
    main()

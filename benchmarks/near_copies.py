"""How many near copies are found, and how many photos are taken for copies: COCO photos.

    python benchmarks/near_copies.py --data DIR [--photos 3000] [--vectors 100000]

Copies of photos are made by another size, another quality, and by trimming; found are those whose
fingerprint has a cosine of at least NEAR with the photo's own. False are pairs of different photos
that have, as a share of all pairs and of photos. ``--vectors`` times the search for pairs among so
many vectors, in units of comparing a twentieth of the pairs, and counts what it misses there.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from labelwise.numeric.near_pairs import first_near, near_pairs
from labelwise.pictures.fingerprint import NEAR, WIDTH, fingerprint


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
}


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of COCO photos")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--vectors", type=int, default=100_000)
    arguments = parser.parse_args()
    timed(arguments.vectors)
    if arguments.data is None:
        return
    table = pq.read_table(arguments.data / "coco80-val-test.parquet", columns=["image"])
    blobs = table["image"].to_pylist()[: arguments.photos]
    looks = np.stack([fingerprint(one, "") for one in blobs])
    pairs = near_pairs(looks, NEAR)
    print(f"{len(pairs)} of {len(looks) * (len(looks) - 1) // 2:,} pairs of different photos, "
          f"{len(np.unique(pairs)) / len(looks):.4f} of the photos")  # fmt: skip
    for name, change in COPIES.items():
        found = 0
        for row, blob in enumerate(blobs[:500]):
            with Image.open(io.BytesIO(blob)) as picture:
                copy = change(picture.convert("RGB"))
            found += fingerprint(copy, "") @ looks[row] >= NEAR
        print(f"{name:28} {found / len(blobs[:500]):.3f} found")


if __name__ == "__main__":
    main()

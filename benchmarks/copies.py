"""Which copies of photos are found, what a comparison costs, and how alike different photos get.

    python benchmarks/copies.py PHOTOS_FOLDER [--coco TABLE.parquet --photos 2000]

Of each photo of the folder copies are made; each is compared with all photos as the verbs do it:
the three nearest by features, then `labelwise.pictures.copies`. A parquet table with a column
``image`` of encoded photos tells how alike different photos get: nearest pairs of all its pairs.
"""

import argparse
import io
import json
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageEnhance

from labelwise.eyes import Eye, features
from labelwise.pictures.copies import LINE, Pattern, evidence
from labelwise.pictures.sources import FileImages

NEAREST, SIDE = 3, 512


def crop(picture: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    width, height = (max(8, round(side * share)) for side in picture.size)
    x = int(rng.integers(0, picture.width - width + 1))
    y = int(rng.integers(0, picture.height - height + 1))
    return picture.crop((x, y, x + width, y + height))


def recoloured(picture: Image.Image) -> Image.Image:
    bright = ImageEnhance.Color(ImageEnhance.Brightness(picture).enhance(1.25)).enhance(0.5)
    warm = np.asarray(bright, np.float32) * np.float32([1.12, 1.0, 0.82])
    return Image.fromarray(np.clip(warm, 0, 255).astype(np.uint8))


def turned(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    width, height = picture.size
    picture = picture.rotate(5 * rng.choice([-1, 1]), Image.Resampling.BICUBIC)
    return picture.crop(
        (round(0.07 * width), round(0.07 * height), round(0.93 * width), round(0.93 * height))
    )


MIRROR = Image.Transpose.FLIP_LEFT_RIGHT
KINDS = {
    "recompressed, quality 30": lambda im, rng: im,
    "half the size": lambda im, rng: im.resize((im.width // 2, im.height // 2)),
    "other colours": lambda im, rng: recoloured(im),
    "mirrored": lambda im, rng: im.transpose(MIRROR),
    "90 % of the sides": lambda im, rng: crop(im, 0.9, rng),
    "70 % of the sides": lambda im, rng: crop(im, 0.7, rng),
    "50 % of the sides": lambda im, rng: crop(im, 0.5, rng),
    "mirrored, 70 %": lambda im, rng: crop(im.transpose(MIRROR), 0.7, rng),
    "turned by 5 degrees": lambda im, rng: turned(im, rng),
}


def encoded(picture: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return file.getvalue()


def unit_features(contents: list[bytes], folder: Path) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.jpg" for number in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    values = np.asarray(features(Eye.open(), FileImages(folder, names))[:], np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


def planted(photos: Path, work: Path, most: int) -> dict:
    pictures = []
    for path in sorted(photos.glob("*.jpg"))[:most]:
        picture = Image.open(path).convert("RGB")
        picture.thumbnail((SIDE, SIDE))
        pictures.append(picture)
    rng = np.random.default_rng(0)
    base = unit_features([encoded(picture, 95) for picture in pictures], work / "base")
    begun = time.process_time()
    patterns = [Pattern.of(picture) for picture in pictures]
    prepared = (time.process_time() - begun) / len(pictures)
    found, seconds, pairs, others = {}, 0.0, 0, []
    for kind, make in KINDS.items():
        quality = 30 if "quality" in kind else 90
        copies = [encoded(make(picture, rng), quality) for picture in pictures]
        values = unit_features(copies, work / kind)
        right = []
        for number, copy in enumerate(copies):
            pattern = Pattern.of(opened(copy))
            nearest = np.argsort(-(base @ values[number]))[:NEAREST].tolist()
            begun = time.process_time()
            told = {other: evidence(pattern, patterns[other]) for other in nearest}
            seconds, pairs = seconds + time.process_time() - begun, pairs + NEAREST
            right.append((number in told, told.get(number, 0.0) >= LINE))
            others += [value for other, value in told.items() if other != number]
        near, sure = np.mean(right, 0).round(3).tolist()
        found[kind] = {"among the nearest": near, "found": sure}
        print(kind, found[kind], flush=True)
    return {
        "photos": len(pictures),
        "found": found,
        "ms a photo prepared": round(1000 * prepared, 2),
        "ms a pair": round(1000 * seconds / pairs, 2),
        "other photos, largest": np.sort(others)[::-1][:5].round(2).tolist(),
    }


def different(table: Path, count: int, work: Path) -> dict:
    contents = pq.read_table(table, columns=["image"])["image"].slice(0, count).to_pylist()
    contents = [c["bytes"] if isinstance(c, dict) else c for c in contents]
    values = unit_features(contents, work / "coco")
    patterns = [Pattern.of(opened(content)) for content in contents]
    pairs = set()
    for row in range(len(values)):
        alike = values @ values[row]
        alike[row] = -1
        pairs |= {tuple(sorted((row, int(other)))) for other in np.argsort(-alike)[:NEAREST]}
    told = sorted(((evidence(patterns[a], patterns[b]), a, b) for a, b in pairs), reverse=True)
    return {
        "photos": len(values),
        "pairs": len(values) * (len(values) - 1) // 2,
        "looked at": len(told),
        "at the line": sum(value >= LINE for value, *_ in told),
        "largest": [[round(value, 2), a, b] for value, a, b in told[:10]],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--coco", type=Path)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path("copies-work"))
    asked = parser.parse_args()
    results = Path(__file__).parent / "results" / "copies.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    known["planted"] = planted(asked.folder, asked.work, asked.planted)
    results.write_text(json.dumps(known, indent=1) + "\n")
    if asked.coco is not None:
        known["different"] = different(asked.coco, asked.photos, asked.work)
        results.write_text(json.dumps(known, indent=1) + "\n")
        print(known["different"])

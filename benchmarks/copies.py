"""Which copies of photos are found, what a comparison costs, and how alike different photos get.

    python benchmarks/copies.py FOLDER_OF_PHOTOS [--different photos.npz] [--jobs 15] [-o FILE]

Of each photo of the folder copies are made. Each is compared with all photos as the verbs do it:
those that are alike by features, then `labelwise.pictures.copies`. A file .npz with grey photos
``greys`` (n, 96, 96) and their ``features`` (n, D) tells how alike different photos get.
"""

import argparse
import io
import json
import tempfile
import time
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from labelwise.eyes import Eye, features
from labelwise.pictures.copies import LINE, Pattern, alike_by_features, evidence
from labelwise.pictures.sources import FileImages

SIDE = 512


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


def seen_by_network(contents: list[bytes], folder: Path) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.jpg" for number in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    return np.asarray(features(Eye.open(), FileImages(folder, names), outputs=("means",))[:])


def opened(content: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(content))
    picture.draft("L", (96, 96))
    return picture


def told(pair: tuple[Image.Image, Image.Image]) -> tuple[float, float, float]:
    """Return the evidence of a pair, and the seconds to prepare both and to compare them."""
    begun = time.process_time()
    one, other = map(Pattern.of, pair)
    prepared = time.process_time()
    value = evidence(one, other)
    return value, (prepared - begun) / 2, time.process_time() - prepared


def planted(folder: Path, count: int, pool: "Pool") -> dict:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    pictures = []
    for path in paths[:count]:
        picture = Image.open(path).convert("RGB")
        picture.thumbnail((SIDE, SIDE))
        pictures.append(picture)
    rng, rows, others = np.random.default_rng(0), {}, []
    base = [encoded(picture, 95) for picture in pictures]
    with tempfile.TemporaryDirectory() as work:
        of_base = seen_by_network(base, Path(work) / "base")
        for number, (kind, make) in enumerate(KINDS.items()):
            quality = 30 if "quality" in kind else 90
            made = [encoded(make(picture, rng), quality) for picture in pictures]
            both = np.concatenate([of_base, seen_by_network(made, Path(work) / str(number))])
            pairs = alike_by_features(both, len(base)).tolist()
            sides = [(opened(base[a]), opened(made[b - len(base)])) for a, b in pairs]
            values = pool.map(told, sides, chunksize=8)
            right = {b: v[0] for (a, b), v in zip(pairs, values, strict=True) if b - a == len(base)}
            others += [v[0] for (a, b), v in zip(pairs, values, strict=True) if b - a != len(base)]
            rows[kind] = {
                "compared": round(len(right) / len(base), 3),
                "found": round(sum(value >= LINE for value in right.values()) / len(base), 3),
                "ms a pair": round(1000 * np.mean([v[2] for v in values]), 2),
                "ms a photo": round(1000 * np.mean([v[1] for v in values]), 2),
            }
            print(kind, rows[kind], flush=True)
    return {
        "photos": len(base),
        "found": rows,
        "other photos compared": len(others),
        "other photos, largest": np.sort(others)[::-1][:12].round(2).tolist(),
    }


def different(file: Path, pool: "Pool") -> dict:
    known = np.load(file)
    pairs, count = alike_by_features(known["features"].astype(np.float32)), len(known["greys"])
    greys = [Image.fromarray(grey) for grey in known["greys"]]
    values = pool.map(told, [(greys[a], greys[b]) for a, b in pairs.tolist()], chunksize=8)
    rows = sorted(((v[0], *pair) for v, pair in zip(values, pairs.tolist(), strict=True)))[::-1]
    return {
        "photos": count,
        "pairs": count * (count - 1) // 2,
        "compared": len(rows),
        "at the line": sum(row[0] >= LINE for row in rows),
        "largest": [[round(value, 2), a, b] for value, a, b in rows[:10]],
        "ms a pair": round(1000 * np.mean([v[2] for v in values]), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--different", type=Path)
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    with Pool(asked.jobs) as pool:
        results = {"planted": planted(asked.folder, asked.photos, pool)}
        if asked.different is not None:
            results["different"] = different(asked.different, pool)
    print(results)
    out = asked.out or Path(__file__).parent / "results" / "copies.json"
    out.write_text(json.dumps(results, indent=1) + "\n")

"""Photos for tests: windows of the two real ones that scikit-learn ships."""

import csv

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

LABELS = {"temple": "china.jpg", "flower": "flower.jpg"}


def write_photos(folder, count=48, side=96, seed=0, *, divided=True):
    """Write ``photos/*.jpg`` and ``photos.csv``, ``divided`` into splits; return the table's path.

    A quarter show a temple, a quarter a flower, a quarter both, a quarter neither, which is noise.
    """
    rng = np.random.default_rng(seed)
    pictures = {name: load_sample_image(file) for name, file in LABELS.items()}
    (folder / "photos").mkdir(parents=True)
    with (folder / "photos.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["path", "labels", "split"][: 2 + divided])
        for number in range(count):
            shown = [name for bit, name in enumerate(LABELS) if number >> bit & 1]
            pixels = rng.integers(0, 255, (side, side, 3), dtype=np.uint8)
            for place, name in enumerate(shown):
                width = side // len(shown)
                pixels[:, place * width : (place + 1) * width] = _window(
                    pictures[name], side, width, rng
                )
            path = f"photos/{number:03d}.jpg"
            Image.fromarray(pixels).save(folder / path, quality=90)
            split = ("train", "train", "val", "test")[number // 4 % 4]
            table.writerow([path, "|".join(shown), split][: 2 + divided])
    return folder / "photos.csv"


def _window(picture, height, width, rng):
    """Return a window of the middle of a picture, scaled."""
    tall, wide = picture.shape[:2]
    top, left = rng.integers(0, tall // 4), rng.integers(0, wide // 4)
    part = Image.fromarray(picture[top : top + tall * 3 // 4, left : left + wide * 3 // 4])
    return np.asarray(part.resize((width, height)))

"""Draw the quickstart's 48 pictures: windows of ten real photos, one or two to a picture.

    python docs/photos/make_photos.py SCIKIT_IMAGE_DATA    # the folder skimage/data of its wheel

``SOURCES.md`` names each photo's author and licence.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

LABELS = {"cat": "chelsea.png", "coffee": "coffee.png", "person": "astronaut.png"}
LABELS |= {"rocket": "rocket.jpg", "flower": "flower.jpg", "temple": "china.jpg"}
NONE = ("grass.png", "gravel.png", "brick.png", "hubble_deep_field.jpg")
SIZE = (224, 168)


def window(photo, size, rng):
    """Return a random window of the middle of a photo, at times mirrored, lighter or darker."""
    share = rng.uniform(0.7, 0.95)
    wide, tall = round(photo.width * share), round(photo.height * share)
    left, top = rng.integers(photo.width - wide + 1), rng.integers(photo.height - tall + 1)
    picture = photo.crop((left, top, left + wide, top + tall))
    if rng.random() < 0.5:
        picture = ImageOps.mirror(picture)
    picture = ImageEnhance.Brightness(picture).enhance(rng.uniform(0.7, 1.3))
    return ImageOps.fit(picture, size)


def main(folder):
    """Write the pictures and their table beside this file."""
    here, rng = Path(__file__).parent, np.random.default_rng(0)
    photos = {}
    for name in (*LABELS.values(), *NONE):
        given = name in ("flower.jpg", "china.jpg")
        photo = Image.fromarray(load_sample_image(name)) if given else Image.open(folder / name)
        photos[name] = photo.convert("RGB")
    names, rows, seen = list(LABELS), [], Counter()
    for number in range(48):
        labels = [names[number * 5 % 6]] if number % 4 != 3 else []
        if number % 8 in (2, 5):
            labels.append(names[(number + 1 + number // 8) % 6])
        wide = SIZE[0] // max(len(set(labels)), 1)
        picture = Image.new("RGB", SIZE)
        for place, label in enumerate(sorted(set(labels)) or [None]):
            source = LABELS[label] if label else NONE[number // 4 % 4]
            picture.paste(window(photos[source], (wide, SIZE[1]), rng), (wide * place, 0))
        group = "new" if number >= 40 else "labelled"
        path = f"{group}/{number:02d}.jpg"
        (here / group).mkdir(exist_ok=True)
        picture.save(here / path, quality=82)
        if group == "labelled":
            kind = labels[0] if labels else ""
            split = ("train", "test", "val")[seen[kind] % 3]
            seen[kind] += 1
            rows.append([path, "|".join(sorted(set(labels))), split])
    with (here / "photos.csv").open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([["path", "labels", "split"], *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""PICTURES: photos with what programs write into them, cubes, DICOM, and models of words.

Cubes are read a second time by NumPy or Pillow, DICOM from its own bytes; what a photo says of
itself must stand in its bytes. Models of other programs are asked for one answer, which must be
numbers.
"""

import io
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from band_files import dicom, npy, tiff
from fuzz_inputs import Files, damage
from fuzz_kept import index_with_receipts
from fuzz_readers import Target, drawn
from PIL import Image
from tiny_clip import clip_folder

from labelwise.errors import LabelwiseError
from labelwise.photos import Index
from labelwise.photos.metadata import photo_keywords, read_facts, read_photo_metadata
from labelwise.photos.receipts import read_list_answers
from labelwise.photos.shift import HeldOutPictures
from labelwise.photos.words.text_image import TextHead
from labelwise.photos.words.tower_files import read_towers
from labelwise.photos.xmp import Keyword, tagged
from labelwise.pictures.decode import decode
from labelwise.pictures.multiband import Cube, open_cube
from labelwise.system.tensors import save_tensors

VALUES = np.arange(60, dtype=np.uint16).reshape(4, 5, 3)
GREY = np.arange(20, dtype=np.uint16).reshape(4, 5)


def read_cube(folder: Path) -> Cube:
    (place,) = folder.iterdir()
    return open_cube(place.read_bytes(), place.name)


def same_npy(read: Cube, folder: Path) -> bool:
    values = np.load(folder / "a.npy", allow_pickle=False)
    assert values.ndim in (2, 3)
    found = read.values if values.ndim == 3 else read.values[:, :, 0]
    assert np.array_equal(found, values, equal_nan=values.dtype.kind == "f")
    return True


def same_tiff(read: Cube, folder: Path) -> bool:
    """Pillow reads grey pictures of one page; it knows neither cubes nor all that is damaged."""
    try:
        with Image.open(folder / "a.tif") as image:
            tags: Any = image.tag_v2  # type: ignore[attr-defined]
            if getattr(image, "n_frames", 1) > 1 or image.mode not in ("L", "I;16", "I;16B"):
                return False
            if tags.get(262) != 1:
                return False  # whether white is 0 is another question
            values = np.asarray(image)
    except Exception:
        return False
    if values.shape != read.values.shape[:2]:
        return False  # Pillow takes strips that end early
    assert np.array_equal(read.values[:, :, 0], values), "values changed"
    return True


def same_dicom(read: Cube, folder: Path) -> bool:
    """Values are numbers, as many as the file has room for."""
    assert read.values.size * 1 <= (folder / "a.dcm").stat().st_size
    assert read.values.dtype.kind in "uif"
    return True


@cache
def photo(kind: str) -> bytes:
    image = Image.new("RGB", (8, 6), "red")
    exif = image.getexif()
    exif[0x010F], exif[0x0110], exif[0x9C9E] = "Maker", "Model 1", "a;b".encode("utf-16-le")
    gps = exif.get_ifd(0x8825)
    gps.update({1: "N", 2: (48.0, 8.0, 0.0), 3: "W", 4: (11.0, 34.0, 30.0)})
    packet = tagged(None, [Keyword("dog", 0.5, "m", "2020-01-01", ())])
    stream = io.BytesIO()
    image.save(stream, kind, exif=exif, xmp=packet)
    return stream.getvalue()


def read_photo(folder: Path) -> Any:
    (place,) = [one for one in folder.iterdir() if one.suffix != ".xmp"]
    content = place.read_bytes()
    found = read_facts(content), photo_keywords(place)
    try:
        return *found, read_photo_metadata(place), decode(content, place.name).size
    except LabelwiseError:
        return *found, None, None


def same_photo(read: Any, folder: Path) -> bool:
    facts, (words, _), metadata, size = read
    (place,) = [one for one in folder.iterdir() if one.suffix != ".xmp"]
    content = place.read_bytes()
    for value, most in ((facts.latitude, 90), (facts.longitude, 180)):
        assert value is None or abs(value) <= most
    assert facts.camera is None or facts.camera.isprintable()
    for levels in words:
        assert all(level.strip() == level and level for level in levels)
    if metadata is not None and metadata.packet and metadata.format == "JPEG":
        assert metadata.packet in content
    if size is not None:
        with Image.open(io.BytesIO(content)) as image:
            assert sorted(size) == sorted(image.size)  # it may be turned
    return True


STRANGE = (
    torch.zeros(0),
    torch.tensor(1.5),
    torch.tensor([[float("nan")]]),
    torch.ones(2, 3, 4),
    torch.ones(3, dtype=torch.bfloat16),
    torch.tensor([-1, 10**12]),
    torch.tensor([True]),
    torch.full((2, 3), 300, dtype=torch.int64),
)


def tensors_with(rng: Random, good: dict[str, torch.Tensor]) -> bytes:
    """Return a file of tensors, sealed, one of them strange or gone; or damaged bytes."""
    changed = dict(good)
    name = rng.choice(sorted(changed))
    if rng.random() < 0.15:
        changed.pop(name)
    else:
        changed[name] = rng.choice(STRANGE)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "t"
        save_tensors(place, changed if rng.random() < 0.8 else good)
        content = place.read_bytes()
    return damage(rng, content) if rng.random() < 0.2 else content


PICTURES_KEPT = {
    "rows": torch.arange(4),
    "features": torch.ones(4, 3, dtype=torch.float16),
    "looks": torch.ones(4, 2, dtype=torch.float16),
    "fitted": torch.ones(5, 3, dtype=torch.float16),
    "weights": torch.full((32,), 7, dtype=torch.uint8),
}


def same_pictures(read: HeldOutPictures | None, folder: Path) -> bool:
    if read is None:
        return False
    count, width = read.features.shape
    assert read.rows.shape == (count,)
    assert read.rows.dtype == np.int64
    assert len(read.looks) == count
    assert read.fitted.shape[1:] == (width,)
    for values in (read.features, read.looks, read.fitted):
        assert values.dtype == np.float16
        assert np.isfinite(values).all()
    assert len(read.weights_sha256) == 64
    return True


def same_head(read: TextHead, folder: Path) -> bool:
    found = read.scores(torch.ones(2, read.weight.shape[0]))
    assert found.shape == (2, len(read.bias))
    assert bool(torch.isfinite(found).all()), "a score is not a number"
    return True


def read_model_of_words(folder: Path) -> Any:
    towers = read_towers(folder)
    with torch.no_grad():
        photos = torch.zeros(1, 3, towers.image.transform.size, towers.image.transform.size)
        return towers, towers.image(photos), towers.text(torch.tensor([towers.tokens.of("a dog")]))


def are_numbers(read: Any, folder: Path) -> bool:
    towers, *found = read
    if any(
        float(one.abs().max()) > 1e4
        for half in (towers.image, towers.text)
        for one in half.parameters()
    ):
        return False  # no number is large enough for what comes of them
    for values in found:
        assert bool(torch.isfinite(values).all()), "a feature is not a number"
    return True


ASKED = b"path,answer,query\n/p/0.jpg,yes,dog\n/p/2.jpg,no,dog\n/p/3.jpg,unsure,dog\n"


def asked_files(rng: Random) -> Files:
    return {**index_with_receipts(), "asked.csv": damage(rng, ASKED)}


def read_asked(folder: Path) -> Any:
    with Index(folder / "i.index") as index:
        return read_list_answers(index, folder / "asked.csv")


KINDS = {"jpeg": "a.jpg", "png": "a.png", "webp": "a.webp", "tiff": "b.tif"}
PICTURES = (
    Target("npy cube", {"a.npy": npy(VALUES)}, read_cube, same_npy),
    Target("tiff cube", {"a.tif": tiff(VALUES, ("a", "b", "c"), 7)}, read_cube),
    Target("tiff", {"a.tif": tiff(GREY)}, read_cube, same_tiff),
    Target("dicom", {"a.dcm": dicom(GREY)}, read_cube, same_dicom),
    *(
        Target(f"{kind} photo", {file: photo(kind.upper())}, read_photo, same_photo)
        for kind, file in KINDS.items()
    ),
    drawn(
        "held-out pictures",
        lambda rng: {"p": tensors_with(rng, PICTURES_KEPT)},
        lambda folder: HeldOutPictures.load(folder / "p"),
        same_pictures,
    ),
    drawn(
        "text head",
        lambda rng: {"h": tensors_with(rng, {"weight": torch.ones(3, 2), "bias": torch.zeros(2)})},
        lambda folder: TextHead.load(folder / "h"),
        same_head,
    ),
    Target("model of words", clip_folder, read_model_of_words, are_numbers),
    drawn("answers about lists", asked_files, read_asked),
)

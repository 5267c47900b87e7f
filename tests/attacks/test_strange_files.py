"""Files that are no files, pictures that claim to be huge. Oracles: the sentence; the memory.

A pipe waits for its writer, and /dev/zero never ends: reading either in full is the failure.
"""

import io
import os
import struct
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from search_setup import LABELS, picture, save_model, twelve_photos

from labelwise.answers.log import AnswerLog
from labelwise.base.progress import Silent
from labelwise.base.table_files import read_parquet
from labelwise.base.tensors import load_tensors
from labelwise.base.yaml_values import read_yaml
from labelwise.errors import DataError, LabelwiseError
from labelwise.evaluation import Evaluation
from labelwise.eyes.eye import Eye
from labelwise.models import ModelSpec
from labelwise.models.graph_file import content_of
from labelwise.models.run_folder import Journal, RunFolder
from labelwise.photos.database import Database, file_hash
from labelwise.photos.index import Index, IndexFacts
from labelwise.photos.ingest import _content, update_index
from labelwise.photos.metadata import read_facts, read_photo_metadata
from labelwise.pictures.decode import find_images
from labelwise.predictions import Predictions
from labelwise.shards.inputs import find_rows
from labelwise.tables import load

READERS = {
    "model.json": ModelSpec.load,
    "settings.yaml": lambda path: RunFolder(path.parent).settings,
    "plan.yaml": read_yaml,
    "metrics.jsonl": lambda path: Journal(path).read(),
    "model.onnx": content_of,
    "evaluation.json": Evaluation.load,
    "index.json": IndexFacts.load,
    "model.safetensors": load_tensors,
    "test.parquet": Predictions.load,
    "photos.parquet": read_parquet,
    "photos.sqlite": lambda path: Database(path, "mode=ro"),
    "0.parquet": file_hash,
    "answers.jsonl": lambda path: AnswerLog(path).lines(),
    "written.jsonl": lambda path: AnswerLog(path).append([]),
    "eye.onnx": Eye.open,
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_file_is_named_at_once(name, kind, tmp_path):
    place = tmp_path / ("eye.json" if name == "eye.onnx" else name)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    if name == "model.onnx":
        assert RunFolder(tmp_path).is_solved  # it is opened, and named, without torch
    said = in_time(lambda: READERS[name](tmp_path / name))
    assert "must be a file, it is a device, pipe or socket" in said


def in_time(read):
    """Return what is read, or the sentence of its error; a reader that waits for ever fails."""
    found = []

    def run():
        try:
            found.append(read())
        except LabelwiseError as error:
            found.append(str(error))

    reader = threading.Thread(target=run, daemon=True)
    reader.start()
    reader.join(120)
    assert not reader.is_alive(), "it waits for a writer"
    return found[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
def test_every_file_of_an_index_is_a_file_or_is_named(tmp_path):
    """A file is a pipe, a terabyte of nothing, or gone: a search says so, or needs it not.

    What ``cache`` holds can be made again. Oracle: the answers of the index as it was written.
    """
    photos = twelve_photos(tmp_path / "photos")
    logits = np.random.default_rng(0).normal(size=(40, len(LABELS)))
    held_out = Predictions([*map(str, range(40))], logits, logits > 0, None, LABELS, "test", None)
    folder = tmp_path / "photos.index"
    update_index(folder, [photos], model=save_model(tmp_path / "run"), watch=Silent())
    with Index(folder) as index:
        index.use(index.spec, held_out, held_out)

    def answers():
        with Index(folder) as index:
            known = index.held_out.ids, index.validation_photos.stored.ids
            vectors = index.store.looks(), index.embeddings.projection, index.store.embeddings()
            return repr((known, vectors, index.store.logits(slice(None)), index.taxonomy))

    expected = answers()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        content, name = path.read_bytes(), path.relative_to(folder)
        for put in (os.mkfifo, lambda place: (place.touch(), os.truncate(place, 1 << 40)), None):
            path.unlink()
            if put is not None:
                put(path)
            found = in_time(answers)
            is_named = path.name in found or "is not an index" in found
            assert found == expected or (is_named and "cache" not in name.parts), name
        path.write_bytes(content)
    assert answers() == expected


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side, *, exif_behind=False):
    """Return a PNG that claims to be square and grey; its pixels are few, and break off."""
    exif = Image.Exif()
    exif[0x0110] = "Camera 7"
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))]
    parts.append(chunk(b"IDAT", zlib.compress(bytes(3_000_000))))
    if exif_behind:
        parts.append(chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IEND", b"")])


def resident(entry):
    """Return a figure of this process's memory in KiB: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


@pytest.mark.skipif(sys.platform != "linux", reason="the system says what memory was used at most")
def test_no_pixel_of_a_picture_is_decoded_for_its_header(tmp_path):
    """81 million pixels in 3 kB: Pillow's getexif() decodes them."""
    bomb, place = png(9_000), tmp_path / "bomb.png"
    assert len(bomb) < 4_000
    place.write_bytes(bomb)
    Path("/proc/self/clear_refs").write_text("5")  # forget what was used at most so far
    before = resident("VmRSS")
    content = _content(b"", bomb)
    assert (content.width, content.height, content.taken) == (9_000, 9_000, None)
    assert read_facts(bomb).camera is None
    assert read_photo_metadata(place).words == ()
    assert resident("VmHWM") - before < 40_000  # the pixels take 79,000


def test_exif_behind_the_pixels_of_a_png_is_read():
    content, facts = (
        make(png(64, exif_behind=True)) for make in (lambda b: _content(b"", b), read_facts)
    )
    assert (content.width, content.taken) == (64, "2024-05-06T07:08:09")
    assert facts.camera == "Camera 7"
    with Image.open(io.BytesIO(png(64, exif_behind=True))) as image:  # as Pillow reads it
        assert image.getexif()[0x0110] == "Camera 7"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
def test_every_verb_reads_the_same_photos_of_a_folder(tmp_path):
    """Oracle: the three photos that a person sees in the folder, and what else was put there."""
    root, others = tmp_path / "photos", tmp_path / "others"
    for seed, place in enumerate((root / "a", root / "b", root / ".git", root / "@eaDir", others)):
        picture(place / "1.png", seed)
    picture(root / "a" / ".hidden.png", 9)
    (root / "a" / ".DS_Store").touch()
    (root / "a" / "again.png").symlink_to("../b/1.png")
    (root / "a" / "above").symlink_to("..")
    (root / "a" / "itself.png").symlink_to("itself.png")
    (root / "a" / "out.png").symlink_to(others / "1.png")
    (root / "out").symlink_to(others)
    os.mkfifo(root / "b" / "pipe.png")
    names = ["a/1.png", "a/again.png", "b/1.png"]
    note = (
        "left out: 1 broken link, 1 hidden file, 1 hidden folder, 2 outward links, 1 special "
        "file, 1 system folder"
    )
    assert find_images(root)[0] == names
    assert find_images(root)[1][0].startswith(note)
    with pytest.raises(DataError, match=r"'a/again.png' and 'b/1.png' are one file, with diff"):
        load(str(root))  # the folders are its labels
    table = load(str(root), check_files=False)
    assert [*table.ids] == names
    assert note in " ".join(table.notes)
    with pytest.warns(UserWarning, match=note):
        rows = [*find_rows([str(root)])]
    assert [os.fsdecode(row.file) for row in rows] == names
    model, index = save_model(tmp_path / "run"), tmp_path / "photos.index"
    changes = update_index(index, [root], model=model, watch=Silent())
    assert (changes.new, changes.copied) == (2, 1)
    assert note in " ".join(changes.notes)
    with Index(index) as opened:
        paths = [path for row in (0, 1) for path in opened.store.paths_of([row])[row]]
    assert sorted(paths) == [str(root / name) for name in names]

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

import pytest
from PIL import Image

from labelwise.answers.log import AnswerLog
from labelwise.base.table_files import read_parquet
from labelwise.base.tensors import load_tensors
from labelwise.errors import LabelwiseError
from labelwise.evaluation import Evaluation
from labelwise.eyes.eye import Eye
from labelwise.models import ModelSpec
from labelwise.models.graph_file import content_of
from labelwise.models.run_folder import Journal, RunFolder
from labelwise.photos.database import Database, file_hash
from labelwise.photos.index import IndexFacts
from labelwise.photos.ingest import _content
from labelwise.photos.metadata import read_facts, read_photo_metadata
from labelwise.predictions import Predictions

READERS = {
    "model.json": ModelSpec.load,
    "settings.yaml": lambda path: RunFolder(path.parent).settings,
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
    errors = []

    def read():
        try:
            READERS[name](tmp_path / name)
        except LabelwiseError as error:
            errors.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(120)
    assert not reader.is_alive(), "it waits for a writer"
    assert len(errors) == 1
    assert "must be a file, it is a device, pipe or socket" in errors[0]


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

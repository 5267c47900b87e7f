"""Decoder processes: the same pixels as the engine's own reading, and harm that stays in them."""

import io
import os
import signal
import threading
import time

import numpy as np
import pytest
from PIL import Image
from web_setup import encoded

from labelwise.backbones import Transform
from labelwise.data import BytesImages
from labelwise.errors import ImageError
from labelwise.web import decoding
from labelwise.web.decoding import Decoders

TRANSFORM = Transform(16, crop=0.875)


@pytest.fixture
def decoders():
    made = Decoders(TRANSFORM, 2, seconds=1.0, memory=256 << 20)
    yield made
    made.close()


def test_pixels_are_those_of_the_engine(decoders):
    for kind, size in (("PNG", (40, 30)), ("JPEG", (300, 200)), ("WEBP", (20, 90))):
        blob = encoded(kind, size)
        image = BytesImages([blob], ["a"]).read(0, TRANSFORM.at_least)
        expected = np.asarray(TRANSFORM.resize(image))
        assert (decoders.pixels(blob, "a") == expected).all()


def test_what_cannot_be_opened_says_why(decoders):
    for blob, words in ((b"", "empty"), (b"x", "not an image"), (encoded()[:60], "cannot be")):
        with pytest.raises(ImageError, match=f"^a.png: .*{words}"):
            decoders.pixels(blob, "a.png")


def test_thumbnails_are_small_and_upright(decoders):
    image = Image.new("RGB", (400, 200))
    exif = image.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    drawn = Image.open(io.BytesIO(decoders.thumbnail(buffer.getvalue(), "a", 100)))
    assert drawn.size == (50, 100)


def test_no_thread_waits_while_others_have_the_decoders_again_and_again(decoders):
    # Oracle: four threads that ask for two decoders all the time get about as many answers each.
    blob, total = encoded("JPEG", (300, 200)), 400
    counts, stop = [0] * 4, threading.Event()

    def ask(number):
        while not stop.is_set():
            decoders.pixels(blob, "a")
            counts[number] += 1
            if sum(counts) >= total:
                stop.set()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(counts) >= total / 40


def test_a_decoder_that_hangs_is_killed_and_replaced(monkeypatch, tmp_path):
    real, forbidden = decoding._pixels, tmp_path / "forbidden"

    def hang(transform, blob, name):
        if blob == b"hang":
            time.sleep(60)
        if blob == b"spin":
            while True:
                pass
        if blob == b"eat":
            return np.ones((1 << 30, 4), np.uint8)
        if blob == b"die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if blob == b"write":
            with open(forbidden, "w") as file:
                file.write("x")
        return real(transform, blob, name)

    monkeypatch.setattr(decoding, "_pixels", hang)
    made = Decoders(TRANSFORM, 1, seconds=0.5, memory=256 << 20)
    try:
        for harm in (b"hang", b"spin", b"eat", b"die", b"write"):
            began = time.monotonic()
            with pytest.raises(ImageError, match=r"^a: "):
                made.pixels(harm, "a")
            assert time.monotonic() - began < 30
            assert made.pixels(encoded(), "a").shape == (16, 16, 3)
        assert not forbidden.exists()
    finally:
        made.close()


def test_processes_end_with_the_server():
    made = Decoders(TRANSFORM, 2, seconds=1.0, memory=256 << 20)
    made.await_start()
    pids = [decoder.pid for decoder in list(made._idle.queue)]
    assert len(set(pids)) == 2
    made.close()
    for _ in range(200):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return
        time.sleep(0.02)
    pytest.fail("a decoder lives on")


def test_decoders_start_where_arrow_has_read_a_file(tmp_path):
    """Arrow keeps a pipe that it closes again after a fork; a closed one would end the process."""
    import pyarrow as pa
    import pyarrow.csv

    (tmp_path / "a.csv").write_text("x\n1\n")
    assert pa.csv.read_csv(tmp_path / "a.csv").num_rows == 1
    made = Decoders(TRANSFORM, 2, seconds=1.0, memory=256 << 20)
    made.await_start()
    made.close()

"""Decoder processes: the same pixels as the engine's own reading, and harm that stays in them."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE, wait_until
from PIL import Image
from web_setup import encoded

from labelwise.errors import ImageError
from labelwise.pictures import BytesImages, Transform
from labelwise.web import decoding
from labelwise.web.decoding import DecoderError, Decoders
from labelwise.web.service import Service
from labelwise.web.settings import ServeSettings

TRANSFORM = Transform(16, crop=0.875)


@pytest.fixture
def decoders():
    made = Decoders(TRANSFORM, 2, seconds=PATIENCE, memory=256 << 20)
    yield made
    made.close()


def test_pixels_are_those_of_the_engine(decoders):
    for kind, size in (("PNG", (40, 30)), ("JPEG", (300, 200)), ("WEBP", (20, 90))):
        blob = encoded(kind, size)
        image = BytesImages([blob], ["a"]).read(0, TRANSFORM.at_least())
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


@contextmanager
def decoders_that(behave, **limits):
    """Decoders whose pixels are what ``behave(blob, real)`` makes of a picture."""
    real = decoding._pixels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_pixels", lambda *given: behave(given[1], partial(real, *given)))
        made = Decoders(TRANSFORM, 1, **{"seconds": 0.5, "memory": 256 << 20, **limits})
    try:
        yield made
    finally:
        made.close()


def test_a_picture_that_does_harm_is_refused_and_the_next_one_opened(tmp_path):
    forbidden = tmp_path / "forbidden"

    def harm(blob, real):
        if blob == b"eat":
            return np.ones((1 << 30, 4), np.uint8)
        if blob == b"die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if blob == b"write":
            with open(forbidden, "w") as file:
                file.write("x")
        return real()

    with decoders_that(harm, seconds=PATIENCE) as made:
        for blob in (b"eat", b"die", b"write"):
            with pytest.raises(ImageError, match=r"^a: "):
                made.pixels(blob, "a")
            assert made.pixels(encoded(), "a").shape == (16, 16, 3)
    assert not forbidden.exists()


def test_a_picture_is_blamed_for_the_processor_time_it_took():
    def spin(blob, real):
        while blob == b"spin":
            pass
        return real()

    with decoders_that(spin, seconds=0.2) as made:
        made.await_start()
        (decoder,) = made._idle.queue
        pid, seen = decoder.pid, []

        def after_a_while():
            while decoder_seconds() < 0.15:
                time.sleep(0.02)
            seen.append(decoder_seconds())
            return seen[0]

        decoder_seconds = decoder.processor_seconds
        decoder.processor_seconds = after_a_while
        with pytest.raises(ImageError, match=r"^a: the picture took more than 0.2 seconds"):
            made.pixels(b"spin", "a")
        assert seen
        (other,) = made._idle.queue
        other.await_start()
        assert other.pid != pid


@pytest.mark.parametrize("trouble", ["dies", "stands still", "is full", "was killed before"])
def test_a_decoder_in_trouble_is_not_the_pictures_fault(tmp_path, trouble):
    """Oracle: the same picture in a decoder that is well."""
    first, content = tmp_path / "first", encoded("JPEG", (300, 200))
    first.touch()

    def in_trouble_once(blob, real):
        if blob == content and first.exists():  # decoders can remove a file, though not open one
            first.unlink()
            if trouble == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "stands still":
                os.kill(os.getpid(), signal.SIGSTOP)
            if trouble == "is full":
                raise ImageError("a: cannot be read (MemoryError)") from MemoryError()
        return real()

    with decoders_that(in_trouble_once, seconds=0.5) as made:
        replace = made._replace

        def with_time(decoder):  # that the machine may need for a picture
            made.seconds = PATIENCE
            first.unlink(missing_ok=True)  # where it was too slow even to come into trouble
            replace(decoder)

        made._replace = with_time
        if trouble != "stands still":
            made.seconds = PATIENCE
        if trouble == "was killed before":
            first.unlink()
            made.await_start()
            os.kill(made._idle.queue[0].pid, signal.SIGKILL)
        assert (made.pixels(content, "a") == decoding._pixels(TRANSFORM, content, "a")).all()
    assert not first.exists()


def test_decoders_that_stand_still_again_are_not_the_pictures_fault():
    def stop(blob, real):
        if blob == b"stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return real()

    with decoders_that(stop, seconds=0.2) as made:
        with pytest.raises(DecoderError, match="try again"):
            made.pixels(b"stop", "a")
        made.close()
        with pytest.raises(DecoderError, match="shutting down"):
            made.pixels(b"stop", "a")


def test_without_the_process_that_starts_decoders_the_server_is_not_ready(run):
    made = Service(run, None, ServeSettings(decoders=1))
    asyncio.run(made.start())
    try:
        made.decoders.await_start()
        (decoder,) = made.decoders._idle.queue
        parent = int(Path(f"/proc/{decoder.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert made.is_ready
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        decoder.kill()
        for _ in range(2):
            with pytest.raises(DecoderError, match="restart the server"):
                made.decoders.pixels(encoded(), "a")
        assert not made.is_ready
    finally:
        asyncio.run(made.stop())


def test_processes_end_with_the_server():
    made = Decoders(TRANSFORM, 2, seconds=PATIENCE, memory=256 << 20)
    made.await_start()
    pids = [decoder.pid for decoder in list(made._idle.queue)]
    assert len(set(pids)) == 2
    made.close()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_decoders_start_where_arrow_has_read_a_file(tmp_path):
    """Arrow keeps a pipe that it closes again after a fork; a closed one would end the process."""
    import pyarrow as pa
    import pyarrow.csv

    (tmp_path / "a.csv").write_text("x\n1\n")
    assert pa.csv.read_csv(tmp_path / "a.csv").num_rows == 1
    made = Decoders(TRANSFORM, 2, seconds=PATIENCE, memory=256 << 20)
    made.await_start()
    made.close()


KEEPING = """
import io, sys, time
from PIL import Image
from labelwise.pictures import Transform
from labelwise.system.allocator import keep_freed_memory
from labelwise.web.decoding import Decoders

def resident(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 >> 20

assert keep_freed_memory()
made = Decoders(Transform(16), 1, seconds=600, memory=2 << 30)
made.await_start()
(decoder,) = list(made._idle.queue)
picture = io.BytesIO()
Image.new("RGB", (8000, 8000), "red").save(picture, "PNG")
before = resident(decoder.pid)
made.pixels(picture.getvalue(), "large")
end = time.monotonic() + float(sys.argv[1])
while resident(decoder.pid) > before + 60 and time.monotonic() < end:
    time.sleep(0.05)
print(resident(decoder.pid) - before)
made.close()
"""


def test_a_decoder_gives_back_the_memory_of_a_large_picture():
    """Its 192 MB would stay with the allocator that `labelwise serve` sets for its model."""
    words = [sys.executable, "-c", KEEPING, str(PATIENCE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 60

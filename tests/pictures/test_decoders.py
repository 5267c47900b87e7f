"""Pictures of strangers. Oracles: ``BytesImages``; what the system says of processes, files."""

import io
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from faulty_decoders import COMMAND, harmful, once, started_by
from patience import PATIENCE, wait_until
from PIL import Image
from search_setup import save_model
from web_setup import encoded

from labelwise.errors import ImageError
from labelwise.pictures import BytesImages, Transform
from labelwise.pictures import worker_starter as forks
from labelwise.pictures.worker_starter import DecoderError, Decoders
from labelwise.server.service import Service
from labelwise.server.settings import ServeSettings

TRANSFORM = Transform(16, crop=0.875)


@pytest.fixture(autouse=True, scope="module")
def started_and_ended():
    with started_by(COMMAND):
        yield


@contextmanager
def some_decoders(count=1, **limits):
    made = Decoders(TRANSFORM, count, **{"seconds": PATIENCE, "memory": 256 << 20, **limits})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def decoders(started_and_ended):
    with some_decoders(2) as made:
        yield made


def by_the_engine(blob):
    return np.asarray(TRANSFORM.resize(BytesImages([blob], ["a"]).read(0, TRANSFORM.at_least())))


def test_pixels_are_those_of_the_engine(decoders):
    for kind, size in (("PNG", (40, 30)), ("JPEG", (300, 200)), ("WEBP", (20, 90))):
        blob = encoded(kind, size)
        assert (decoders.pixels(blob, "a") == by_the_engine(blob)).all()


def test_what_cannot_be_opened_says_why(decoders):
    here = Decoders(TRANSFORM, 0, seconds=PATIENCE, memory=256 << 20)
    for blob, words in ((b"", "empty"), (b"x", "not an image"), (encoded()[:60], "cannot be")):
        for made in (decoders, here):
            with pytest.raises(ImageError, match=f"^a.png: .*{words}"):
                made.pixels(blob, "a.png")


def test_thumbnails_are_small_and_upright(decoders):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = encoded("JPEG", (400, 200), exif=exif)
    assert Image.open(io.BytesIO(decoders.thumbnail(photo, "a", 100))).size == (50, 100)


def test_no_thread_waits_while_others_have_the_decoders_again_and_again(decoders):
    # Oracle: four threads that ask for two decoders all the time get about as many answers each.
    blob, counts = encoded("JPEG", (300, 200)), [0] * 4

    def ask(number):
        while sum(counts) < 120:
            decoders.pixels(blob, "a")
            counts[number] += 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert min(counts) >= 4


def test_a_picture_that_does_harm_is_refused_and_the_next_one_opened(tmp_path):
    forbidden = tmp_path / "forbidden"
    with some_decoders() as made:
        for harm in ("eat", "die", "full", f"write {forbidden}"):
            with pytest.raises(ImageError, match=r"^a: "):
                made.pixels(harmful(harm, encoded()), "a")
            assert made.pixels(encoded(), "a").shape == (16, 16, 3)
    assert not forbidden.exists()


def test_what_a_worker_warns_of_is_logged_with_the_picture(decoders, caplog):
    assert decoders.pixels(harmful("warn of EXIF data", encoded()), "a").shape == (16, 16, 3)
    assert [record.getMessage() for record in caplog.records] == ["'a': of EXIF data"]


def test_the_limit_of_pixels_is_the_one_at_the_start(decoders, monkeypatch):
    blob = encoded("PNG", (40, 30))
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "1199")
    assert decoders.pixels(blob, "a").shape == (16, 16, 3)
    with some_decoders() as made, pytest.raises(ImageError, match="more than 1,199 pixels"):
        made.pixels(blob, "a")


def test_a_picture_is_blamed_for_the_processor_time_it_took():
    with some_decoders(seconds=0.2) as made:
        made.await_start()
        (worker,) = made._idle.queue
        pid, seen = worker.pid, []

        def after_a_while():
            while worker_seconds() < 0.15:
                time.sleep(0.02)
            seen.append(worker_seconds())
            return seen[0]

        worker_seconds = worker.processor_seconds
        worker.processor_seconds = after_a_while
        with pytest.raises(ImageError, match=r"^a: the picture took more than 0.2 seconds"):
            made.pixels(harmful("spin"), "a")
        assert seen
        (other,) = made._idle.queue
        other.await_start()
        assert other.pid != pid


@pytest.mark.parametrize("trouble", ["die", "stop", "full", "killed before"])
def test_a_worker_in_trouble_is_not_the_pictures_fault(tmp_path, trouble):
    """Oracle: the same picture in a worker that is well."""
    first, content = tmp_path / "first", encoded("JPEG", (300, 200))
    first.touch()
    with some_decoders(seconds=0.5 if trouble == "stop" else PATIENCE) as made:
        replace = made._replace

        def with_time(worker):  # that the machine may need for a picture
            made.seconds = PATIENCE
            first.unlink(missing_ok=True)  # where it was too slow even to come into trouble
            replace(worker)

        made._replace = with_time
        if trouble == "killed before":
            first.unlink()
            made.await_start()
            os.kill(made._idle.queue[0].pid, signal.SIGKILL)
        assert (made.pixels(once(trouble, first, content), "a") == by_the_engine(content)).all()
    assert not first.exists()


def test_workers_that_stand_still_again_are_not_the_pictures_fault():
    with some_decoders(seconds=0.2) as made:
        with pytest.raises(DecoderError, match="try again"):
            made.pixels(harmful("stop"), "a")
        made.close()
        with pytest.raises(DecoderError, match="shutting down"):
            made.pixels(harmful("stop"), "a")


def starter_of(worker):
    stat = Path(f"/proc/{worker.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_a_starter_that_was_killed_with_its_workers_is_back_without_torch():
    """It took 17.7 s until the next answer: most of a start was the import of torch."""
    own = COMMAND.replace("faulty_decoders", "labelwise.pictures.worker")
    with started_by(own), some_decoders(2) as made:
        made.await_start()
        workers = list(made._idle.queue)
        for number in (starter_of(workers[0]), *(worker.pid for worker in workers)):
            os.kill(number, signal.SIGKILL)
        blob = encoded("JPEG")
        assert (made.pixels(blob, "a") == by_the_engine(blob)).all()
        starter = forks._starter._process.pid
        assert "libtorch" not in Path(f"/proc/{starter}/maps").read_text()
        ticks = Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[11:13]
        assert sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") < 1.5  # however busy the machine is


def test_where_no_worker_can_be_started_the_server_is_not_ready(tmp_path, monkeypatch):
    made = Service(save_model(tmp_path / "tiny"), None, ServeSettings(decoders=1))
    made.start()
    try:
        assert made.is_ready
        with monkeypatch.context() as patch:
            patch.setattr(forks, "COMMAND", "raise SystemExit(1)")
            forks.close_starter()
            made.decoders._idle.queue[0].kill()
            for _ in range(2):
                with pytest.raises(DecoderError, match="restart the server"):
                    made.decoders.pixels(encoded(), "a")
            assert not made.is_ready
        forks.close_starter()
        made.decoders.pixels(encoded(), "a")  # as soon as one can
        assert made.is_ready
    finally:
        made.close()


def test_processes_end_with_the_server():
    with some_decoders(2) as made:
        made.await_start()
        pids = [worker.pid for worker in list(made._idle.queue)]
    assert len(set(pids)) == 2
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

"""Disks that are full or may only be read: a sentence, and searching goes on.

Held to a small file system in memory, where this process may mount one.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

import pytest
from search_setup import picture, save_model
from web_setup import encoded, running

from labelwise.photos import update_index
from labelwise.system.files import append_whole
from labelwise.system.progress import Silent


@contextmanager
def mounted(place, size):
    """Yield a file system in memory of so many bytes; tests are skipped where none can be made."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place):
    """Write until nothing more fits."""
    with (place / "filler").open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    stream.write(b"x" * size)
                except OSError:
                    break


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    home = tmp_path_factory.mktemp("library")
    model = save_model(home / "model")
    for number in range(6):
        picture(home / "photos" / f"{number}.png", number)
    update_index(home / "photos.index", [home / "photos"], model=model, watch=Silent())
    return home


@pytest.fixture(params=["read only", "full"])
def closed(request, library, tmp_path):
    """Return a function that yields a disk with the index, to which nothing can be written."""

    @contextmanager
    def made(cache=True):
        with mounted(tmp_path / f"disk {cache}", 4 << 20) as disk:
            shutil.copytree(library / "photos.index", disk / "photos.index")
            if not cache:
                shutil.rmtree(disk / "photos.index" / "cache", ignore_errors=True)
            if request.param == "full":
                fill(disk)
            else:
                subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            yield disk

    return made


def test_search_needs_to_write_nothing(library, closed, warm_commands):
    search = ["search", "photos.index", "dog, -beach", "--paths-only"]
    expected = warm_commands.run(search, library)
    assert (expected.returncode, expected.stdout.count("\n")) == (0, 6)
    for cache in (True, False):
        with closed(cache) as disk:
            done = warm_commands.run(search, disk)
            assert (done.returncode, done.stderr) == (0, expected.stderr)
            assert done.stdout == expected.stdout


def test_index_and_label_say_that_nothing_can_be_written(library, closed, warm_commands):
    picture(library / "more" / "new.png", 77)
    photos, photo = str(library / "photos"), str(library / "photos" / "0.png")
    with closed() as disk:
        for command in (
            ["index", str(library / "more"), "-o", "photos.index"],
            ["index", photos, "--model", str(library / "model"), "-o", "new.index"],
            ["label", "photos.index", photo, "dog"],
        ):
            done = warm_commands.run(command, disk)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), (command, done.stderr)
            assert "should not happen" not in done.stderr
            assert any(word in done.stderr for word in ("full", "read", "space")), done.stderr
    assert os.path.exists(photo)


def test_bodies_that_the_disk_does_not_take_are_refused_and_let_go(library, tmp_path, monkeypatch):
    """The answer was a mistake of the server, and the bytes counted as kept for ever."""
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        fill(disk)
        with running(library / "model", decoders=0, body_memory=0) as server:
            bodies = server.app.bodies
            for content in (encoded(), encoded(size=(700, 700))):
                answer = server.upload(("a.png", content))
                assert "has no room for the bodies" in server.problem(answer, 503)
            assert (bodies.arriving.used, bodies.whole.used, bodies.disk.used) == (0, 0, 0)
            (disk / "filler").unlink()
            assert server.upload(("a.png", encoded()))[0] == 200


def test_a_file_is_appended_to_as_a_whole_or_not_at_all(tmp_path):
    """The last page of the file has room for a part of what comes."""
    with mounted(tmp_path / "disk", 1 << 16) as disk:
        with (disk / "lines").open("ab", buffering=0) as stream:
            append_whole(stream, b"first\n")
            fill(disk)
            with pytest.raises(OSError, match="No space left"):
                append_whole(stream, b"x" * 10_000 + b"\n", durable=True)
            append_whole(stream, b"second\n")
        assert (disk / "lines").read_bytes() == b"first\nsecond\n"

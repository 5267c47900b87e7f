"""Disks that are full or may only be read: a sentence, and searching goes on.

Held to a real file system: a small one in memory that is filled to the last byte, or mounted to be
read only, where this process may mount one. The answers are those of the same index on a disk
that may be written.
"""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from search_setup import picture, save_model

from labelwise.search import update_index
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


def copied(library, disk, cache):
    shutil.copytree(library / "photos.index", disk / "photos.index")
    if not cache:
        shutil.rmtree(disk / "photos.index" / "cache", ignore_errors=True)


@pytest.mark.parametrize("kind", ["read only", "full"])
@pytest.mark.parametrize("cache", [True, False])
def test_search_needs_to_write_nothing(library, tmp_path, warm_commands, kind, cache):
    search = ["search", "photos.index", "dog, -beach", "--paths-only"]
    expected = warm_commands.run(search, library)
    assert expected.returncode == 0
    assert expected.stdout.count("\n") == 6
    with mounted(tmp_path / "disk", 4 << 20) as disk:
        copied(library, disk, cache)
        before = sorted(path.name for path in (disk / "photos.index").rglob("*"))
        if kind == "full":
            fill(disk)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = warm_commands.run(search, disk)
        assert (done.returncode, done.stderr) == (0, expected.stderr)
        assert done.stdout == expected.stdout
        if kind == "read only":
            assert sorted(path.name for path in (disk / "photos.index").rglob("*")) == before


@pytest.mark.parametrize("kind", ["read only", "full"])
def test_index_and_label_say_that_nothing_can_be_written(library, tmp_path, warm_commands, kind):
    picture(library / "more" / "new.png", 77)
    photo = str(library / "photos" / "0.png")
    with mounted(tmp_path / "disk", 4 << 20) as disk:
        copied(library, disk, True)
        if kind == "full":
            fill(disk)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for command in (
            ["index", str(library / "more"), "-o", "photos.index"],
            [
                "index",
                str(library / "photos"),
                "--model",
                str(library / "model"),
                "-o",
                "new.index",
            ],
            ["label", "photos.index", photo, "dog"],
        ):
            done = warm_commands.run(command, disk)
            assert done.returncode == 1, command
            assert done.stderr.count("\n") == 1, done.stderr
            assert "should not happen" not in done.stderr
            words = ("full", "read", "space", "space left")
            assert any(word in done.stderr for word in words), done.stderr
    assert os.path.exists(photo)

"""Whole or not at all, whatever lies beside: real files, real locks, real kills."""

import errno
import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from labelwise.base.allocator import keep_freed_memory
from labelwise.base.files import (
    remove_leftovers,
    replacing,
    replacing_folder,
    require_room,
    together,
)
from labelwise.base.progress import LineWatch, NamedWatch, make_watch
from labelwise.base.tensors import load_tensors, save_tensors
from labelwise.errors import CheckpointError, LabelwiseError


def write(path, text):
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_neighbours_do_not_disturb_a_write(tmp_path, monkeypatch):
    """Only the file and its folder are forced to the disk: counted at ``os.fsync``."""
    (tmp_path / "broken link").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)
        server.bind("socket")
    for number in range(20):
        (tmp_path / f"{number}.txt").touch()
    synced = []
    real = os.fsync
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(handle) or real(handle))
    write(tmp_path / "good.json", "1")
    assert (tmp_path / "good.json").read_text() == "1"
    assert len(synced) == 2
    with replacing_folder(tmp_path / "folder") as temporary:
        (temporary / "inside").write_text("2")
    assert len(synced) == 2 + 3
    assert (tmp_path / "folder" / "inside").read_text() == "2"


def test_files_that_belong_together_appear_together(tmp_path):
    """Oracle: which names are there, inside the block, after it, and where one of them fails."""
    seen = []
    with together():
        write(tmp_path / "1", "one")
        with together(), suppress(ValueError):  # part of the first
            write(tmp_path / "2", "two")
            with replacing(tmp_path / "3") as temporary:
                temporary.write_text("half of")
                raise ValueError
        seen += [path.name for path in tmp_path.glob("[!.]*")]
    assert not seen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    with pytest.raises(LabelwiseError, match="part of that path is a file"), together():  # noqa: PT012
        write(tmp_path / "1", "another")
        write(tmp_path / "4", "four")
        write(tmp_path / "2" / "5", "five")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert (tmp_path / "1").read_text() == "one"
    write(tmp_path / "1", "alone")  # no group is left open
    assert (tmp_path / "1").read_text() == "alone"


def test_a_folder_takes_a_free_place_only(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with (
        pytest.raises(LabelwiseError, match=r"cannot write .*taken"),
        replacing_folder(tmp_path / "taken") as temporary,
    ):
        (temporary / "other").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "file"]


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from labelwise.base.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); print('ready', flush=True); time.sleep(3600)"
    )
    path = tmp_path / "a [1].json"
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "ready\n"
    write(path, "mine")
    assert len(list(tmp_path.glob(".*.partial"))) == 1  # its writer lives
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    write(path, "mine")
    assert [file.name for file in tmp_path.iterdir()] == ["a [1].json"]


def test_leftovers_are_removed_files_and_folders(tmp_path):
    (tmp_path / ".00000002.77.partial").mkdir()
    (tmp_path / ".00000002.77.partial" / "state").touch()
    (tmp_path / ".model.json.12.partial").touch()
    (tmp_path / ".hidden").touch()
    remove_leftovers(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".hidden"]
    remove_leftovers(tmp_path / "nowhere")


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as one:
        one.write_text("one")
        write(path, "two")
        assert path.read_text() == "two"
    assert path.read_text() == "one"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {"weight": torch.arange(6.0), "count": torch.tensor([3])}
    save_tensors(path, tensors)
    assert torch.equal(load_tensors(path)["weight"], tensors["weight"])
    whole = path.read_bytes()
    stamp = range(whole.index(b"{"), whole.index(b"}"))  # without it the rest is not checked
    for place in set(range(0, len(whole), 3)) - set(stamp):
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(bytes(broken))
        with pytest.raises(CheckpointError):
            load_tensors(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_tensors(path)


def test_long_work_asks_first_whether_it_can_write(tmp_path, monkeypatch):
    """A few bytes are tried, and removed; the size of the disk is asked of the system."""
    require_room(tmp_path / "new" / "folder" / "tags.csv", 1 << 20)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(LabelwiseError, match=r"tags.csv: it needs about [\d,.]+ MB, and "):
        require_room(tmp_path / "tags.csv", 1 << 60)

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(LabelwiseError, match=r"tags.csv: the disk is full; free some space"):
        require_room(tmp_path / "tags.csv")
    assert not [*tmp_path.iterdir()]


# The allocator's setting, seen from outside: the oracle is what glibc says it has mapped.

PASSES = """
import ctypes, threading
import numpy as np
from labelwise.base.allocator import keep_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena ordblks smblks hblks mapped usmblks fsmblks uordblks fordblks keepcost").split()]

kept = keep_freed_memory()
array = np.ones(1 << 23)  # 64 MiB, too much for a chunk that glibc would keep by itself
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
mapped = library.mallinfo2().mapped
thread = threading.Thread(target=lambda: np.ones(1 << 25).sum())  # more than a thread's heap
thread.start()
thread.join()
print(kept, mapped)
"""


def run(**environment):
    told = {"capture_output": True, "text": True, "check": True}
    given = os.environ | environment
    done = subprocess.run([sys.executable, "-c", PASSES], env=given, **told)
    kept, mapped = done.stdout.split()
    return kept == "True", int(mapped)


@pytest.mark.skipif(not hasattr(os, "confstr"), reason="not a POSIX system")
def test_freed_memory_is_kept_and_can_be_left_alone():
    if "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        assert not keep_freed_memory()
        return
    (kept, few), (system, many) = run(), run(LABELWISE_MALLOC="system")
    assert kept
    assert not system
    assert few < 64 << 20 <= many


# Progress. Oracle: what a terminal, or a file in its place, is sent, written out by hand.

RECORD = {"epoch": 3, "step": 30, "epoch_loss": 0.1234, "images_per_second": 1234.5}
RECORD |= {"val_map": 0.9, "val_log_loss": None, "best": True}


def test_without_a_terminal_an_epoch_is_one_plain_line(capsys):
    watch = make_watch()
    watch.start("epoch 3/12", 100)
    watch.advance(100)
    watch.look(0.5)
    watch.finish()
    watch.epoch(RECORD, 12)
    assert capsys.readouterr().out == (
        "epoch  3/12  loss 0.1234  val map 0.9000  val log_loss undefined  "
        "1,234 images/s  best so far\n"
    )


def set_clock(monkeypatch, *seconds):
    """Let the watch read these times; threads of other tests keep the real clock."""
    clock = SimpleNamespace(monotonic=iter(seconds).__next__)
    monkeypatch.setattr("labelwise.base.progress.time", clock)


@pytest.mark.parametrize(
    ("clock", "total", "done", "steps", "said"),
    [
        ((0, 10, 40, 41), 1000, 200, (100, 100, 100), "400/1,000 images  5 images/s  120 s left"),
        ((0, 40, 50), 10, 0, (0, 5), "5/10 images  0 images/s  50 s left"),  # nothing has no rate
    ],
)
def test_long_work_says_rate_and_time_left(capsys, monkeypatch, clock, total, done, steps, said):
    set_clock(monkeypatch, *map(float, clock))
    watch = LineWatch(seconds=30)
    watch.start("epoch 1/2", total, done=done)
    for step in steps:
        watch.advance(step)
    assert capsys.readouterr().out == f"epoch 1/2  {said}\n"


def test_one_of_many_runs_is_named_and_says_no_lines_of_its_own(capsys, monkeypatch):
    set_clock(monkeypatch, 0.0, 40.0)
    watch = NamedWatch(LineWatch(seconds=30), "bce, seed-1")
    watch.say("going on")
    watch.start("epoch 1/2", 1000)
    watch.advance(400)
    watch.look(0.5)
    watch.finish()
    watch.epoch(RECORD, 12)
    shown = capsys.readouterr().out
    assert shown == "bce, seed-1, epoch 1/2  400/1,000 images  10 images/s  60 s left\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_shows_a_bar_with_rate_and_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        watch = make_watch(terminal)
        watch.start("epoch 1/2", 400)
        for _ in range(4):
            watch.advance(50)
            watch.look(0.25)
        shown = b""
        while b"loss 0.2500" not in shown:  # the bar is drawn ten times a second
            shown += os.read(ours, 1 << 16)
        watch.say("a line above the bar")
        watch.finish()
        shown += os.read(ours, 1 << 16)
    os.close(ours)
    for part in ("epoch 1/2", "/400 images", "images/s", "0:0", "loss 0.2500", "a line above"):
        assert part.encode() in shown, part

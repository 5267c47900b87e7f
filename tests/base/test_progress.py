"""Progress. Oracle: what a terminal, or a file in its place, is sent, written out by hand."""

import os
import pty
import sys
from types import SimpleNamespace

import pytest

from labelwise.base.progress import LineWatch, NamedWatch, make_watch

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

"""Names made to deceive a terminal, typed commands and what they print; oracle: no such byte."""

import numpy as np
from test_app import call

from labelwise.cli.app import _sentence
from labelwise.cli.text import show_table

ESCAPES = "dog\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"


def assert_harmless(text):
    assert not set(text) & set("\x1b\x07\u202e\x9b")


def test_escape_sequences_in_labels_never_reach_the_terminal(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    scores = random.random((40, 2)).astype(np.float32)
    names = np.array([ESCAPES, "[bold red]cat[/]"])
    labels = (random.random((40, 2)) < scores).astype(np.uint8)
    np.savez(tmp_path / "s.npz", scores=scores, labels=labels, names=names)
    assert call(monkeypatch, "evaluate", tmp_path / "s.npz", "--scores", "probs") == 0
    shown = capsys.readouterr()
    assert_harmless(shown.out + shown.err)
    assert "[bold red]cat[/]" in shown.out
    assert "dog\\x1b[2J" in shown.out


def test_markup_in_a_header_is_text(capsys):
    show_table(["[red]split[/red]"], [["[link=file:///]x[/link]"]], title="[bold]t")
    shown = capsys.readouterr().out
    assert "[red]split[/red]" in shown
    assert "[link=file:///]x[/link]" in shown
    assert "[bold]t" in shown


def test_an_error_is_one_line_whatever_it_quotes(monkeypatch, capsys):
    assert call(monkeypatch, "papers", "methods", "a\n\x1b[1Ab") == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert_harmless(shown)


def test_only_real_bugs_are_called_so():
    denied = PermissionError(13, "Permission denied", "a.csv")
    assert _sentence(denied) == "a.csv: Permission denied"
    assert _sentence(OSError(28, "No space left on device")) == "No space left on device"
    assert "should not happen" not in _sentence(MemoryError())
    assert "should not happen" in _sentence(KeyError("x"))

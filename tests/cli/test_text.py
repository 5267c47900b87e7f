"""What verbs say, by eye: times, tables, numbers with their nouns, and names made to deceive."""

import subprocess

import numpy as np
from test_app import call

from labelwise.cli.text import duration, quoted, show_table


def test_times_are_told_in_the_unit_people_would_use():
    told = [duration(seconds) for seconds in (0.4, 1, 119, 150, 3 * 3600, 1.2e6)]
    assert told == ["0 seconds", "1 second", "119 seconds", "2.5 minutes", "3.0 hours", "13.9 days"]


def test_a_table_too_wide_is_turned_and_its_numbers_stand_below_each_other(capsys):
    columns = ["row", "", *(f"measure {k}" for k in range(30))]
    rows = [["a", "paper", *["–"] * 30], ["", "ours", "10.5 ± 0.25", *["1.5"] * 29]]
    show_table(columns, rows, names=2)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "            a paper         ours"
    assert lines[1] == "measure 0         –  10.5 ± 0.25"
    assert lines[2] == "measure 1         –          1.5"
    assert len(lines) == 31
    many = [[f"a method with a long name, number {k}", "1.5"] for k in range(40)]
    show_table(["[red]method[/]", "mAP " + 200 * "x"], many, names=1)  # wider still if turned
    assert any(line.startswith("[red]method[/]") for line in capsys.readouterr().out.splitlines())


def test_escape_sequences_in_labels_never_reach_the_terminal(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    scores = random.random((40, 2)).astype(np.float32)
    names = np.array(["dog\x1b[2J\x1b]0;owned\x07\u202e\x9b31m", "[bold red]cat[/]"])
    labels = (random.random((40, 2)) < scores).astype(np.uint8)
    np.savez(tmp_path / "s.npz", scores=scores, labels=labels, names=names)
    assert call(monkeypatch, "evaluate", tmp_path / "s.npz", "--scores", "probs") == 0
    shown = capsys.readouterr()
    assert not {*shown.out, *shown.err} & {*"\x1b\x07\u202e\x9b"}
    assert "[bold red]cat[/]" in shown.out
    assert "dog\\x1b[2J" in shown.out


def test_a_next_line_names_what_begins_with_a_dash_as_a_path(tmp_path, monkeypatch):
    """Oracle: the shell opens the same file by the word; options stay as they were typed."""
    monkeypatch.chdir(tmp_path)
    name = "-my $(touch x) 'run'\n"
    (tmp_path / name).write_text("found")
    shown = quoted("-o", name)
    assert shown.startswith("-o ")
    opened = ["bash", "-c", f"cat {shown.removeprefix('-o ')}"]
    assert subprocess.run(opened, capture_output=True, text=True, check=True).stdout == "found"

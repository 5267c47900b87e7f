"""``labelwise demo`` on photos of one's own, and what the commands it names at the end do."""

import csv
import re
import shlex
from pathlib import Path

import pytest
from sample_photos import write_photos
from test_app import call

from labelwise.cli.text import program


@pytest.mark.parametrize("divided", [True, False])
def test_photos_of_ones_own_are_divided_tagged_and_lead_on(divided, tmp_path, monkeypatch, capsys):
    table = write_photos(tmp_path, divided=divided)
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "demo", "photos.csv", "-o", "out/tried") == 0
    shown = capsys.readouterr().out
    assert "\nVerdict: " in shown
    page = (tmp_path / "out/tried/tagged.html").read_text()
    tagged = {f"photos/{name}" for name in re.findall(r">(\d+\.jpg)<", page)}
    split = tmp_path / "out/tried-split.csv"
    assert split.exists() == (not divided)
    with (table if divided else split).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    column = "path" if divided else next(iter(rows[0]))
    test = {row[column].split("../")[-1] for row in rows if row["split"] == "test"}
    assert tagged <= test
    assert len(tagged) == min(12, len(test))
    steps = [line.split("labelwise ")[1] for line in shown.split("Next: ")[1].splitlines()[:3]]
    for step in steps:
        assert call(monkeypatch, *shlex.split(step)) == 0, step
    with open("tags.csv", newline="") as stream:
        tags = {Path(row["path"]).name: row["labels"] for row in csv.DictReader(stream)}
    with table.open(newline="") as stream:
        truth = {Path(row["path"]).name: row["labels"] for row in csv.DictReader(stream)}
    shown = {Path(path).name for path in test}
    assert sum(tags[name] == truth[name] for name in shown) >= 0.8 * len(shown)


def test_without_the_open_photos_one_sentence_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labelwise.__file__", str(tmp_path / "a/b/labelwise/__init__.py"))
    assert call(monkeypatch, "demo") == 1
    said = capsys.readouterr().err
    assert "open-photos of labelwise's repository" in said
    assert "`labelwise demo photos.csv`" in said


def test_next_steps_name_the_program_as_it_is_reached(tmp_path, monkeypatch):
    there = tmp_path / "bin" / "labelwise"
    there.parent.mkdir()
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bin/labelwise", "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "bin/labelwise"
    monkeypatch.setenv("PATH", str(there.parent))
    assert program() == "labelwise"
    monkeypatch.setattr("sys.argv", ["-c"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "labelwise"

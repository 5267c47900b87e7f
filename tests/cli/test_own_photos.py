"""The README's "Train on your own photos", line by line. Oracle: what was put into each photo."""

import csv
import glob
import re
import shlex
import shutil
from pathlib import Path

import pytest
from sample_photos import write_photos
from test_app import call

README = Path(__file__).parents[2] / "README.md"


def commands():
    text = README.read_text(encoding="utf-8")
    section = text.split("## Train on your own photos")[1].split("\n## ")[0]
    return [
        line.removeprefix("$ labelwise ").partition("  #")[0]
        for line in section.splitlines()
        if line.startswith("$ labelwise ")
    ]


@pytest.fixture
def own_photos(tmp_path, monkeypatch):
    """A folder with photos.csv, and new photos of which one shows a flower."""
    write_photos(tmp_path / "made", count=48, divided=False)
    write_photos(tmp_path / "others", count=4, seed=9)
    shutil.copytree(tmp_path / "others" / "photos", tmp_path / "made" / "new")
    monkeypatch.chdir(tmp_path / "made")


def test_the_readme_runs_on_photos(own_photos, monkeypatch, capsys):
    typed = commands()
    assert [shlex.split(line)[0] for line in typed[:3]] == ["data", "train", "predict"]
    for line in typed[:3]:
        words = ((sorted(glob.glob(word)) if "*" in word else [word]) for word in shlex.split(line))
        assert call(monkeypatch, *(found for each in words for found in each)) == 0
    shown = capsys.readouterr().out
    assert "network tf_efficientnet_lite0, pretrained" in shown
    rows = dict(re.findall(r"^(new/\d+\.jpg) +(.*)$", shown, re.MULTILINE))
    found = {name: set(re.findall("temple|flower", tags)) for name, tags in rows.items()}
    with open("../others/photos.csv", newline="") as stream:
        told = {
            row["path"].replace("photos", "new"): row["labels"] for row in csv.DictReader(stream)
        }
    assert found == {name: set(filter(None, labels.split("|"))) for name, labels in told.items()}

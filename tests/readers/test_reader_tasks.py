"""Five readers' tasks as they type them: the commands of each script work, and are few.

A line ``$ labelwise ...`` is typed, a line ``> ...`` must be in what it says. Oracle beside these:
what was put into the photos and tables. Every command ends by naming the next one.
"""

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_photos import write_photos
from search_setup import picture, save_model
from typer.testing import CliRunner
from words_setup import COLOURS, save_words_model

from labelwise.cli.app import app

TASKS = {"csv_and_photos": 3, "no_labels": 3, "own_scores": 3, "photo_library": 5}
TASKS |= {"camera_traps": 4}  # commands until the result, at most


def csv_and_photos(folder):
    write_photos(folder, count=48, divided=False)
    write_photos(folder / "more", count=4, seed=9)
    (folder / "more" / "photos").rename(folder / "new")


def no_labels(folder):
    save_words_model(folder / "model")
    (folder / "words.txt").write_text("\n".join(COLOURS))
    (folder / "photos").mkdir()
    for number in range(24):
        colour = list(COLOURS.values())[number % 3]
        pixels = np.random.default_rng(number).normal(colour, 20, (40, 40, 3)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / f"{number}.png")


def own_scores(folder):
    rng = np.random.default_rng(0)
    truth = rng.random((400, 2)) < 0.3
    scores = 6 * (truth - 0.5) + 2 * rng.normal(size=(400, 2))
    tables = {"scores": scores, "truth": truth.astype(int), "new": scores[:40]}
    for name, rows in tables.items():
        kind = "label" if name == "truth" else "score"
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", f"{kind}:dog", f"{kind}:cat"])
            table.writerows([number, *row] for number, row in enumerate(rows))


def photo_library(folder):
    save_model(folder / "run")
    for number in range(24):
        picture(folder / "photos" / f"{number}.png", number)


def camera_traps(folder):
    photo_library(folder)
    box = {"category": "1", "conf": 0.9, "bbox": [0.25, 0.25, 0.5, 0.5]}
    images = [{"file": f"{number}.png", "detections": [box]} for number in range(24)]
    results = {"detection_categories": {"1": "animal"}, "images": images}
    info = {"info": {"format_version": "1.4", "detector": "MDV5A"}}
    (folder / "megadetector.json").write_text(json.dumps(info | results))
    rows = [f"photos/{k}.png,2024-05-01T06:{k // 3 * 5:02}:{k % 3:02}" for k in range(24)]
    (folder / "times.csv").write_text("\n".join(["path,time", *rows]))


@pytest.mark.parametrize("task", TASKS)
def test_a_reader_reaches_the_result(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    globals()[task](tmp_path)
    script = (Path(__file__).parent / f"{task}.txt").read_text("utf-8")
    typed, *parts = script.split("\n$ labelwise ")
    assert typed.startswith("# ")
    assert len(parts) <= TASKS[task]
    for part in parts:
        command, *wanted = part.splitlines()
        done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert [text for text in wanted if text.removeprefix("> ") not in done.output] == []
        assert "Next: labelwise " in done.output

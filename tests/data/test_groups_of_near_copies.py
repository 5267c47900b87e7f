"""Near copies become groups of a table, by the command line.

The oracle is how the photos were made: which of them are copies of which is known beforehand.
"""

import csv
from collections import defaultdict

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from labelwise.cli.app import app

SHOTS = [(f"a{scene}.png", f"b{scene}.png", f"c{scene}.jpg") for scene in range(12)]
NAMES = [name for kind in zip(*SHOTS, strict=True) for name in kind]
SCENES = {frozenset(shots) for shots in SHOTS}
SHARES = ("--shares", "train=.5,val=.25,test=.25")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def smooth(seed):
    """Return a smooth picture, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 80), Image.Resampling.BICUBIC)


def read(path):
    with path.open(newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def write(folder, names, **columns):
    path = folder / "photos.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "labels", *columns])
        for row, name in enumerate(names):
            table.writerow([name, "fox", *(values[row] for values in columns.values())])
    return path


def sets_of(rows):
    """Return which photos share a group."""
    found = defaultdict(set)
    for name, row in rows.items():
        found[row["group"]].add(name)
    return {frozenset(one) for one in found.values()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve scenes: of each a photo, half of it in size, and one badly encoded."""
    folder = tmp_path_factory.mktemp("photos")
    for scene in range(12):
        picture = smooth(scene)
        picture.save(folder / f"a{scene}.png")
        picture.resize((40, 40)).save(folder / f"b{scene}.png")
        picture.save(folder / f"c{scene}.jpg", quality=40)
    return folder


def test_near_copies_are_groups_that_a_split_keeps_together(folder):
    source, out, divided = write(folder, NAMES), folder / "grouped.csv", folder / "split.csv"
    result = run("data", "near-copies", source, "-o", out)
    assert result.exit_code == 0, result.exception
    assert "36 photos in 12 groups of up to 3; 36 look like another photo" in result.stdout
    rows = read(out)
    assert sets_of(rows) == SCENES
    assert {rows[f"c{n}.jpg"]["group"] for n in range(12)} == {f"a{n}.png" for n in range(12)}

    def parted(table):
        assert run("data", "split", table, *SHARES, "-o", divided).exit_code == 0
        split = {name: row["split"] for name, row in read(divided).items()}
        assert set(split.values()) == {"train", "val", "test"}
        return sum(len({split[name] for name in scene}) > 1 for scene in SCENES)

    assert parted(source) > 0
    assert parted(out) == 0


def test_groups_that_the_table_has_are_joined(folder):
    """Three nights of three scenes each; a copy of the first night's first is in the second."""
    names = ["a0.png", "a1.png", "a2.png", "b0.png", "a3.png", "a4.png", "a5.png"]
    nights = ["one", "one", "one", "two", "two", "three", "three"]
    source, out = write(folder, names, group=nights), folder / "grouped.csv"
    result = run("data", "near-copies", source, "-o", out)
    assert result.exit_code == 0, result.exception
    assert "7 photos in 2 groups of up to 5; 2 look like another photo" in result.stdout
    groups = [row["group"] for row in read(out).values()]
    assert groups == ["one"] * 5 + ["three"] * 2


def test_copies_in_several_splits_are_said(folder):
    names = ["a0.png", "b0.png", "a1.png", "b1.png", "a2.png", "b2.png"]
    splits = ["train", "test", "train", "train", "val", "train"]
    source, out = write(folder, names, split=splits), folder / "grouped.csv"
    result = run("data", "near-copies", source, "-o", out)
    assert "groups with photos in several splits: 2; draw a new split" in result.stdout
    assert [row["split"] for row in read(out).values()] == splits
    again = run("data", "describe", out, "--content")
    assert "2 groups cross splits" in str(again.exception)


def test_a_photo_that_cannot_be_read_looks_like_no_other(folder):
    for name in ("x.png", "y.png"):
        (folder / name).write_bytes(b"no picture")
    source = write(folder, ["a0.png", "x.png", "b0.png", "y.png"])
    result = run("data", "near-copies", source, "-o", folder / "grouped.csv")
    assert result.exit_code == 0, result.exception
    assert "4 photos in 3 groups of up to 2; 2 look like another photo" in result.stdout
    assert "2 photos could not be looked at and are taken as unlike all others" in result.stderr
    assert "x.png: " in result.stderr
    out = folder / "nothing.csv"
    refused = run("data", "near-copies", write(folder, ["x.png", "y.png"]), "-o", out)
    assert "none can be read" in str(refused.exception)
    assert "name the groups of other pictures in a column 'group'" in str(refused.exception)
    assert not out.exists()

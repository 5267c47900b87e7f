"""Near copies become groups of a table. Oracle: how the photos were made."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_predictor import make
from typed import must_run, refused, run

import labelwise
from labelwise.errors import DataError
from labelwise.pictures.duplicates import compared_groups
from labelwise.tables.checks import describe, reject_divided_groups

SHOTS = [(f"a{scene}.png", f"b{scene}.png", f"c{scene}.jpg") for scene in range(12)]
NAMES = [name for kind in zip(*SHOTS, strict=True) for name in kind]
SCENES = {frozenset(shots) for shots in SHOTS}
SHARES = ("--shares", "train=.5,val=.25,test=.25")


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
    groups = {row["group"] for row in rows.values()}
    return {frozenset(n for n, row in rows.items() if row["group"] == one) for one in groups}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve scenes: of each a photo, half of it in size, and one badly encoded."""
    folder = tmp_path_factory.mktemp("photos")
    for scene in range(12):
        small = np.random.default_rng(scene).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((80, 80), Image.Resampling.BICUBIC)
        picture.save(folder / f"a{scene}.png")
        picture.resize((40, 40)).save(folder / f"b{scene}.png")
        picture.save(folder / f"c{scene}.jpg", quality=40)
    return folder


def test_near_copies_are_groups_that_a_split_keeps_together(folder):
    source, out, divided = write(folder, NAMES), folder / "grouped.csv", folder / "split.csv"
    result = must_run("data", "group", source, "-o", out)
    assert "36 photos in 12 groups of up to 3; 36 look like another photo" in result.stdout
    rows = read(out)
    assert sets_of(rows) == SCENES
    assert {rows[f"c{n}.jpg"]["group"] for n in range(12)} == {f"a{n}.png" for n in range(12)}
    for table, more, is_parted in (
        (source, ("--no-by-content",), True),
        (source, (), False),
        (out, (), False),
    ):
        must_run("data", "split", table, *SHARES, *more, "-o", divided)
        split = {name: row["split"] for name, row in read(divided).items()}
        assert set(split.values()) == {"train", "val", "test"}
        assert any(len({split[name] for name in scene}) > 1 for scene in SCENES) == is_parted


def test_groups_that_the_table_has_are_joined_and_copies_in_several_splits_are_said(folder):
    """Three nights of up to three scenes; a copy of the first night's first is in the second."""
    names = ["a0.png", "a1.png", "a2.png", "b0.png", "a3.png", "a4.png", "a5.png"]
    nights = ["one", "one", "one", "two", "two", "three", "three"]
    out = folder / "grouped.csv"
    must_run("data", "group", write(folder, names, group=nights), "-o", out)
    assert [row["group"] for row in read(out).values()] == ["one"] * 5 + ["three"] * 2
    names = ["a0.png", "b0.png", "a1.png", "b1.png", "a2.png", "b2.png"]
    splits = ["train", "test", "train", "train", "val", "train"]
    result = run("data", "group", write(folder, names, split=splits), "-o", out)
    assert "groups with photos in several splits: 2; draw a new split" in result.stdout
    assert [row["split"] for row in read(out).values()] == splits
    grouped = labelwise.load(out)
    assert describe(grouped).notes[-1].startswith("grouped: photos of a group must be in one split")
    with pytest.raises(DataError, match="2 groups cross splits"):
        reject_divided_groups(grouped)


def test_a_photo_that_cannot_be_read_looks_like_no_other(folder):
    for name in ("x.png", "y.png"):
        (folder / name).write_bytes(b"no picture")
    source = write(folder, ["a0.png", "x.png", "b0.png", "y.png"])
    result = must_run("data", "group", source, "-o", folder / "grouped.csv")
    assert "4 photos in 3 groups of up to 2; 2 look like another photo" in result.stdout
    assert "2 photos could not be looked at and are taken as unlike all others" in result.stderr
    assert "x.png: " in result.stderr
    out = folder / "nothing.csv"
    told = refused("data", "group", write(folder, ["x.png", "y.png"]), "-o", out)
    assert "none can be read" in told
    assert "name the groups of other pictures in a column 'group'" in told
    assert not out.exists()


# By what a model sees, and by vectors


def test_a_model_compares_what_it_sees(folder):
    """Oracle: groups of its own embeddings, as the test of vectors below holds them."""
    predictor = make()
    predictor.save(folder / "model")
    source, out = write(folder, NAMES), folder / "grouped.csv"
    opened = (Image.open(folder / name).convert("RGB") for name in NAMES)
    vectors = predictor.embed(torch.stack([*map(predictor.transform.pixels, opened)]))[1].numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.sort((unit @ unit.T)[np.triu_indices(len(NAMES), 1)])
    least = float((cosines[-60] + cosines[-61]) / 2)  # scenes have 36 pairs
    groups = compared_groups(unit, least).tolist()
    expected = sets_of({n: {"group": g} for n, g in zip(NAMES, groups, strict=True)})
    assert expected != SCENES
    must_run("data", "group", source, "-m", folder / "model", "--cosine", least, "-o", out)
    assert sets_of(read(out)) == expected


def test_vectors_of_another_program_are_found_by_id(folder):
    """Three on a chain of 20 degrees, of which the ends are 40 apart, and three alone."""
    names = [f"a{number}.png" for number in range(6)]
    angles = np.deg2rad([0, 20, 40, 120, 180, 270])
    vectors = 7 * np.stack([np.cos(angles), np.sin(angles)], 1)
    order = [3, 0, 5, 1, 4, 2]
    file, out = folder / "vectors.npz", folder / "grouped.csv"
    np.savez(file, ids=np.array(names)[order], embeddings=vectors[order])
    source = write(folder, names)
    words = ("data", "group", source, "--embeddings", file, "-o", out)
    result = run(*words, "--cosine", 0.9)
    assert "6 photos in 4 groups of up to 3; 3 look like another photo" in result.stdout
    assert [row["group"] for row in read(out).values()] == [names[0]] * 3 + names[3:]
    assert "6 photos in 6 groups" in run(*words, "--cosine", 0.95).stdout  # cos 20 = 0.94
    out.unlink()
    for wrong in ((), ("--cosine", 0), ("--cosine", 1.5), ("--cosine", "nan")):
        assert "say with --cosine" in refused(*words, *wrong), wrong
    assert "not both" in refused(*words, "-m", folder / "model", "--cosine", 0.9)
    plain = refused("data", "group", source, "--cosine", 0.9, "-o", out)
    assert "--cosine is for --model and --embeddings" in plain
    np.savez(file, ids=np.array(names[1:]), embeddings=vectors[1:])
    assert "no vector of the photo 'a0.png'" in refused(*words, "--cosine", 0.9)
    assert not out.exists()


def test_features_keep_their_groups_in_a_file(tmp_path):
    """Rows of features in pairs that are alike: groups, splits and the file written say so."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(rng.normal(size=(30, 16)), 2, axis=0)
    arrays = {"features": (scenes + 0.01 * rng.normal(size=scenes.shape)).astype(np.float32)}
    arrays |= {"labels": rng.random((60, 2)) < 0.5, "label_names": np.array(["fox", "deer"])}
    file, grouped, parted = (tmp_path / f"{name}.npz" for name in ("plain", "grouped", "parted"))
    np.savez(file, **arrays)
    result = run("data", "group", file, "--cosine", 0.95, "-o", grouped)
    assert "60 photos in 30 groups of up to 2; 60 look like another photo" in result.stdout
    table = labelwise.load(str(grouped))
    assert table.group.codes().tolist() == np.repeat(np.arange(30), 2).tolist()
    assert np.array_equal(table.images.features, arrays["features"])
    must_run("data", "split", grouped, *SHARES, "-o", parted)
    split = labelwise.load(str(parted)).split
    assert set(split) == {"train", "val", "test"}
    assert (split[::2] == split[1::2]).all()
    wide = must_run("data", "group", file, "--cosine", 0.001, "-o", grouped)
    assert "one group holds 60 of 60 photos" in wide.stderr
    np.savez(file, **arrays, group=np.array(["one", "two"]))
    with pytest.raises(DataError, match=r"group must be .* \(60,\), got"):
        labelwise.load(file)

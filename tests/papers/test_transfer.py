"""Table A of two-way; oracles: scikit-learn's fits of the same features, and the paper's sizes."""

import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from sample_pictures import Folder
from sklearn.linear_model import LogisticRegression

from labelwise.errors import DataError, SettingsError
from labelwise.papers.sources import Frozen
from labelwise.papers.transfer import transfer
from labelwise.tables import load, with_validation
from labelwise.training.features import compute, frozen_backbone

BACKBONE = Frozen("small-cnn", image_size=16)
WEIGHTS = (1e-3, 1e-1, 1.0, 100.0)


def write_set(root, name, classes=3, train=40, test=18):
    """Write pictures whose colour tells their class, with noise, as train/ and test/."""
    rng, folder = np.random.default_rng(len(name)), Folder(root / name)
    for part, count in (("train", train), ("test", test)):
        for n in range(count):
            pixels = np.full((16, 16, 3), 100) + rng.normal(0, 40, (16, 16, 3))
            pixels[..., n % classes] += 12 + rng.normal(0, 15)
            buffer = io.BytesIO()
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
            folder.text(f"{part}/class {n % classes}/{n}.png", buffer.getvalue())


def arrays(table, *parts):
    chosen = table.subset(np.isin(table.split, parts))
    return np.array(chosen.images.features, float), chosen.targets()[0].argmax(1)


def fitted(l2, features, labels):
    return LogisticRegression(C=1 / l2, tol=1e-9, max_iter=20_000).fit(features, labels)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_set(root, "pets")
    write_set(root, "dtd", classes=2)
    return root


def test_both_choices_are_those_of_scikit_learns_fits(data, tmp_path):
    found = transfer(data, BACKBONE, tmp_path, sets=["pets"], l2_weights=WEIGHTS)[0]
    backbone = frozen_backbone("small-cnn", image_size=16)
    table = with_validation(compute(load(str(data / "pets")), backbone, tmp_path / "own"))
    whole, kept = arrays(table, "train", "val"), arrays(table, "train")
    on_test = {l2: fitted(l2, *whole).score(*arrays(table, "test")) for l2 in WEIGHTS}
    on_val = {l2: fitted(l2, *kept).score(*arrays(table, "val")) for l2 in WEIGHTS}
    best = max(WEIGHTS, key=lambda l2: (on_test[l2], l2))
    chosen = max(WEIGHTS, key=lambda l2: (on_val[l2], l2))
    assert on_test[best] > on_test[chosen]  # here the two choices differ
    assert (found.l2_on_test, found.best_on_test) == (best, pytest.approx(100 * on_test[best]))
    assert found.l2_on_validation == chosen
    assert found.chosen_on_validation == pytest.approx(100 * on_test[chosen])
    path = json.loads((tmp_path / "pets.json").read_text())["path"]
    assert {step["l2"]: step["test"] for step in path} == pytest.approx(on_test)


def test_a_set_that_is_done_is_not_done_again_unless_something_changed(data, tmp_path, monkeypatch):
    first = transfer(data, BACKBONE, tmp_path, sets=["dtd"], l2_weights=WEIGHTS)
    monkeypatch.setattr("labelwise.papers.transfer.accuracies", None)
    assert transfer(data, BACKBONE, tmp_path, sets=["dtd"], l2_weights=WEIGHTS) == first
    with pytest.raises(TypeError):  # other weights: computed again
        transfer(data, BACKBONE, tmp_path, sets=["dtd"], l2_weights=(1.0,))


def test_what_is_missing_or_unfit_is_said_before_anything_is_computed(data, tmp_path):
    with pytest.raises(DataError, match=r"needs data: put into .*cars: Car \(196 classes, 8,144"):
        transfer(data, BACKBONE, tmp_path, sets=["pets", "cars"])
    with pytest.raises(DataError, match=r"put into .*aircraft"):
        transfer(tmp_path / "nowhere", BACKBONE, tmp_path)
    with pytest.raises(SettingsError, match="no data set 'pet'; did you mean 'pets'"):
        transfer(data, BACKBONE, tmp_path, sets=["pet"])
    Folder(tmp_path / "cub").pictures("a.jpg", "b.jpg")
    for rows, wrong in (
        ("a.jpg,x|y,train\n", "must have the splits train and test"),
        ("a.jpg,x|y,train\nb.jpg,x,test\n", "image must have one class, got 2 for 'a.jpg'"),
    ):
        Folder(tmp_path / "cub").text("metadata.csv", f"file_name,labels,split\n{rows}")
        with pytest.raises(DataError, match=wrong):
            transfer(tmp_path, BACKBONE, tmp_path / "out", sets=["cub"])
    assert not (tmp_path / "out").exists()


def test_the_verb_shows_both_choices_and_what_differs(data, tmp_path, call):
    root, own = ("--root", data), ("--rows", "dtd", "-o", tmp_path)
    code, said = call("papers", "list", "002-tableA", *root)
    assert code == 0
    assert "put into" in said
    assert re.findall(r"(\w+) yes\b", said) == ["dtd", "pets"]
    assert "name it with --features" in call("papers", "run", "002-tableA", *root, *own)[1]
    said = call("papers", "run", "002-tableA", *root, "--quick", "--features", "small-cnn")[1]
    assert "--quick does not apply: 002-tableA judges a" in said
    code, said = call("papers", "run", "002-tableA", *root, *own, "--features", "small-cnn")
    assert code == 0, said
    assert "dtd: classes: published 47, here 2." in said
    written = (tmp_path / "table.md").read_text()
    assert "| DTD | 2 | 40 | 18 |" in written
    assert "weights random" in written

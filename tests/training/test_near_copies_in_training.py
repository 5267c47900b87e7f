"""Held-out photos that look like a training photo are counted when a run ends.

The oracle is how the photos were made: which held-out ones are copies is known beforehand.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tiny_run import tiny_settings, tiny_table
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.errors import CheckpointError
from labelwise.evaluation import Evaluation
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.pictures import FeatureRows
from labelwise.training.run import train

SIDE = 40
SAID = "3 held-out photos look like a training photo (1 of 8 in val, 2 of 8 in test): "


def picture(seed):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def write_table(folder, copied):
    """Write 24 train, 8 val and 8 test photos; those ``copied`` are rows 0, 1, ... made smaller."""
    lines = ["path,labels,split"]
    for row in range(40):
        source = copied.index(row) if row in copied else None
        shown = picture(row) if source is None else picture(source).resize((32, 32))
        shown.save(folder / f"{row}.png")
        split = "train" if row < 24 else "val" if row < 32 else "test"
        lines.append(f"{row}.png,{('dog', 'cat', 'dog|cat', '')[row % 4]},{split}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "t.csv")


def settings(data, **flags):
    flags = {"recipe__epochs": 1, "augment": "none", "val_share": 0.0, **flags}
    return tiny_settings(data=data, backbone="small-cnn", image_size=SIDE, **flags)


def copies_in(evaluation):
    return [note for note in evaluation.notes if "like a training photo" in note]


def test_copies_of_training_photos_are_said_now_and_later(tmp_path):
    data, folder = write_table(tmp_path, copied=[25, 33, 38]), tmp_path / "run"
    (said,) = copies_in(train(settings(data), folder).evaluation)
    assert said.startswith(SAID)
    kept = json.loads((folder / "predictions" / "near-copies.json").read_text())
    assert kept == {"val": [1, 8], "test": [2, 8]}

    again = train(settings(data, rule="top-1"), folder)  # fitted again, without a look at photos
    assert again.was_finished
    assert copies_in(again.evaluation) == [said]

    done = CliRunner().invoke(app, ["evaluate", str(folder), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert copies_in(Evaluation.load(tmp_path / "report" / "evaluation.json")) == [said]
    of_train = ["evaluate", str(folder), "--split", "train", "-o", str(tmp_path / "of-train")]
    assert CliRunner().invoke(app, of_train).exit_code == 0
    assert copies_in(Evaluation.load(tmp_path / "of-train" / "evaluation.json")) == []


def test_different_photos_are_not_spoken_of(tmp_path):
    folder = tmp_path / "run"
    run = train(settings(write_table(tmp_path, copied=[])), folder)
    assert copies_in(run.evaluation) == []
    assert HeldOutCopies.of_run(folder).splits == {"val": (0, 8), "test": (0, 8)}


def test_one_copy_is_said_in_the_singular_and_a_damaged_file_is_named(tmp_path):
    one = HeldOutCopies({"val": (0, 4), "test": (1, 2000)})
    assert one.sentence().startswith("1 held-out photo looks like a training photo (1 of 2,000 in")
    one.save(tmp_path)
    assert HeldOutCopies.of_run(tmp_path) == one
    (tmp_path / "predictions" / "near-copies.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"near-copies\.json cannot be read"):
        HeldOutCopies.of_run(tmp_path)


@pytest.mark.parametrize(("features", "said"), [(300, {"val": (1, 16), "test": (2, 16)}), (6, {})])
def test_features_tell_copies_where_there_are_no_photos(tmp_path, features, said):
    """Of few features nothing is said: different photos have almost the same ones by chance."""
    table = tiny_table(features=features)
    x = 10 + np.maximum(table.images.features, 0)  # far from 0, as those of a network are
    of = {name: np.flatnonzero(table.split == name) for name in ("train", "val", "test")}
    noise = np.random.default_rng(1).normal(size=x.shape) * 0.05
    copied = [of["val"][3], of["test"][0], of["test"][5]]
    x[copied] = (x + noise)[of["train"][:3]]
    train(tiny_settings(), tmp_path, table=replace(table, images=FeatureRows(x.astype("f4"))))
    assert HeldOutCopies.of_run(tmp_path).splits == said

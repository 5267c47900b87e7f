"""Out-of-fold predictions. Oracles: a run trained by hand without the rows, and the rule that a row
never judges itself: other labels of the rows held out change nothing in what is said of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.answers.suspects import deal_folds, read_review
from labelwise.cli.app import app
from labelwise.data import LabelTable
from labelwise.errors import SettingsError
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows
from labelwise.system.names import Names
from labelwise.system.progress import Silent
from labelwise.training.folds import train_folds
from labelwise.training.run import train


def trained(table, folder, **flags):
    return train(tiny_settings(**flags), folder, table=table)


def flipped(table, rows):
    labels, _ = table.targets()
    labels = labels.copy()
    labels[rows] = 1 - labels[rows]
    return LabelTable.from_arrays(
        table.space, table.images, labels, split=table.split, name=table.name
    )


@pytest.mark.parametrize("features", [None, "identity"])
def test_each_row_is_judged_by_a_run_without_it(tmp_path, features):
    flags = {} if features is None else {"features": features}
    table = tiny_table()
    run = trained(table, tmp_path / "run", **flags)
    made = train_folds(run, 3)
    rows = np.flatnonzero(table.split == "train")
    assert list(made.ids) == [table.ids[row] for row in rows]
    np.testing.assert_array_equal(made.labels, table.targets(rows)[0])
    dealt = deal_folds(len(rows), 3, seed=0)
    held = rows[dealt == 1]
    by_hand = np.array(table.split)
    by_hand[by_hand == "test"] = "none!"
    by_hand[held] = "test"
    kept = np.flatnonzero(by_hand != "none!")
    apart = replace(table.subset(kept), split=by_hand[kept])
    other = trained(apart, tmp_path / "hand", **flags)
    folder = RunFolder(other.folder)
    own = folder.predictions("test")
    odds = folder.spec.made_link.log_odds(own.logits.astype(float))
    np.testing.assert_allclose(made.logits[dealt == 1], odds, atol=1e-5, rtol=1e-5)
    # Wrong labels on the rows held out: what is said of them stays, what is said of others moves.
    wrong = train_folds(trained(flipped(table, held), tmp_path / "wrong", **flags), 3)
    kept = wrong.logits[dealt == 1], made.logits[dealt == 1]
    np.testing.assert_allclose(*kept, rtol=1.3e-6, atol=1e-5)
    assert abs(wrong.logits[dealt == 0] - made.logits[dealt == 0]).max() > 0.01


def test_folds_go_on_and_stand_beside_each_other(tmp_path):
    run = trained(tiny_table(), tmp_path / "run")
    first = train_folds(run, 2)
    weights = RunFolder(tmp_path / "run" / "folds" / "1-of-2").path / "model.safetensors"
    time = weights.stat().st_mtime_ns
    again = train_folds(run, 2, watch=Silent())
    assert weights.stat().st_mtime_ns == time
    torch.testing.assert_close(first.logits, again.logits)
    assert isinstance(again.link, Sigmoid)
    files = RunFolder(tmp_path / "run")
    torch.testing.assert_close(files.out_of_fold().logits, again.logits)
    assert "folds" not in files.splits
    other = replace(run, table=tiny_table(rows=90))
    with pytest.raises(SettingsError, match="was trained on other rows; start over with --fresh"):
        train_folds(other, 2)


def test_groups_stay_together():
    group = np.array(list("aabbccddee"))
    dealt = deal_folds(10, 3, group=group)
    assert (dealt[::2] == dealt[1::2]).all()
    assert set(dealt.tolist()) == {0, 1, 2}
    with pytest.raises(SettingsError, match="between 2 and the 5 groups"):
        deal_folds(10, 6, group=group)


def test_suspects_of_a_run_with_folds_are_training_rows(tmp_path, monkeypatch):
    table = tiny_table(rows=240)
    rows = np.flatnonzero(table.split == "train")
    sure = rows[table.images.features[rows, 0] > 1.5]  # carry the label "a" without doubt
    labels, _ = table.targets()
    hidden = labels.copy()
    hidden[sure[:5], 0] = 0
    worse = LabelTable.from_arrays(
        table.space,
        FeatureRows(table.images.features, Names([f"p{row}" for row in range(240)])),
        hidden,
        split=table.split,
        name="tiny",
    )
    run = trained(worse, tmp_path / "run", recipe__epochs=8)
    monkeypatch.chdir(tmp_path)
    ask = ["data", "suspects", "run", "-o", "review.csv", "--most", "20", "--checks", "5"]
    with pytest.raises(SettingsError, match="train it with --folds 5"):
        app([*ask, "--split", "train"], standalone_mode=False)
    train_folds(run, 4)
    app(ask, standalone_mode=False)
    found = [(one.photo, one.label) for one in read_review(tmp_path / "review.csv")]
    assert {(f"p{row}", "a") for row in sure[:5]} <= set(found)
    assert {photo for photo, _ in found} <= {f"p{row}" for row in rows}
    app([*ask, "--split", "val"], standalone_mode=False)
    val = {f"p{row}" for row in np.flatnonzero(table.split == "val")}
    assert {one.photo for one in read_review(tmp_path / "review.csv")} <= val

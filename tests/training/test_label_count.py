"""The labels per image that role and epr expect; oracle: the complete validation split."""

import numpy as np
import pytest

from labelwise.data import LabelTable
from labelwise.data.derived import single_positive
from labelwise.errors import SettingsError
from labelwise.pictures import FeatureRows
from labelwise.system.progress import Silent
from labelwise.training.run import train
from labelwise.training.settings import read_settings

RNG = np.random.default_rng(0)


class Kept(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def one_positive(rows=120):
    truth = RNG.random((rows, 4)) < 0.6
    split = np.repeat(["train", "val", "test"], rows // 3)
    images = FeatureRows(RNG.normal(size=(rows, 3)).astype(np.float32))
    table = LabelTable.from_arrays("abcd", images, truth, split=split)
    return single_positive(table), truth[split == "val"].sum(1).mean()


def settings(method, **values):
    fixed = {"data": "t", "backbone": "identity", "method": method, "recipe.epochs": 1}
    return read_settings(None, {**fixed, "calibrate": "none", "rule": "0.5", **values})


@pytest.mark.parametrize("method", ["role", "epr"])
def test_it_comes_from_a_complete_validation_split(tmp_path, method):
    table, mean = one_positive()
    watch = Kept()
    train(settings(method), tmp_path / "run", table=table, watch=watch)
    assert f"labels per image, from validation: {mean:.2f} (options.k)" in watch.lines


def test_it_is_asked_for_where_no_split_tells_it(tmp_path):
    table, _ = one_positive()
    rows = np.flatnonzero(table.split != "val")
    with pytest.raises(SettingsError, match=r"set options\.k, or give a validation split"):
        train(settings("epr"), tmp_path / "run", table=table.subset(rows))
    train(settings("epr", **{"options.k": 2.0}), tmp_path / "run", table=table.subset(rows))

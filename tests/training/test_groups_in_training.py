"""Groups from the table to the promise: none crosses splits, all figures are by group.

Oracles: the groups of the table, and the splits of the run.
"""

from dataclasses import replace

import numpy as np
import pytest
from tiny_run import tiny_settings, tiny_table

from labelwise.data.split import stratified_split
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.models.run_folder import RunFolder
from labelwise.system.names import Names
from labelwise.training.run import train


def of_patients(rows=480, size=4) -> LabelTable:
    group = Names([f"p{row // size}" for row in range(rows)])
    table = replace(tiny_table(rows=rows), split=None, group=group)
    shares = {"train": 0.4, "val": 0.4, "test": 0.2}
    return stratified_split(table, shares, by_content=False)


def test_a_run_keeps_groups_whole_and_measures_by_group(tmp_path):
    table = of_patients()
    folder = tmp_path / "run"
    settings = tiny_settings(calibrate="auto", promise="recall=0.5", recipe__epochs=8)
    evaluation = train(settings, folder, table=table).evaluation
    run = RunFolder(folder)
    groups = {name: set(run.predictions(name).group) for name in run.splits}
    assert set(groups) == {"train", "val", "promise", "test"}
    assert len(set.union(*groups.values())) == sum(map(len, groups.values())) == 120
    assert evaluation.data.groups == len(groups["test"])
    assert any("groups of images" in figure.how for figure in evaluation.headline)
    (promise,) = run.spec.promises
    assert promise["groups"] <= len(groups["promise"])
    assert any("on test" in note and "new photos in" in note for note in evaluation.notes)


def test_a_group_in_two_splits_is_refused_before_training(tmp_path):
    table = of_patients()
    split = np.array(table.split)
    rows = np.flatnonzero(np.array(list(table.group)) == "p7")
    split[rows] = ["train", "train", "train", "test"]
    with pytest.raises(DataError, match=r"1 group cross.*'p7' has row 29 in train.*row 32 in test"):
        train(tiny_settings(), tmp_path / "run", table=replace(table, split=split))
    assert not (tmp_path / "run" / "model.safetensors").exists()

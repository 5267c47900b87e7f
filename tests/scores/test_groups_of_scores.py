"""Groups of people's own scores. Oracles: the file, the groups of both sides, copies of rows."""

from dataclasses import replace

import numpy as np
import pytest
from sample_scores import sample

from labelwise.errors import DataError, SettingsError
from labelwise.numeric.groups import Groups
from labelwise.predictions import Predictions
from labelwise.scores import FitPlan, ScoreTable, crossfit, judge, promise_scores, read_scores
from labelwise.scores.fit import fit_calibrator, folds_of

CSV = "id,split,group,score:dog,label:dog\n"
ROWS = "a,x,p1,0.5,1\nb,x,p1,0.25,0\nc,y,p2,-1,0\nd,y,p3,2,1\n"


def of_patients(rows=300, size=5, seed=0):
    return replace(sample(rows, seed=seed), group=[f"p{row // size}" for row in range(rows)])


def test_a_group_column_is_read_and_follows_its_rows(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(CSV + ROWS)
    table = read_scores(path, "logits")
    assert list(table.predictions.group) == ["p1", "p1", "p2", "p3"]
    assert list(table.part("y").group) == ["p2", "p3"]
    assert table.part("y").groups is None  # each photo is its own
    assert table.predictions.groups.count == 3


def test_groups_may_stand_with_the_labels(tmp_path):
    scores, labels = tmp_path / "scores.csv", tmp_path / "labels.csv"
    scores.write_text("id,score:dog\nb,0.25\na,0.5\nz,1\n")
    labels.write_text("id,group,label:dog\na,p1,1\nb,p2,0\n")
    table = read_scores(scores, "logits", labels=labels)
    assert list(table.predictions.ids) == ["b", "a"]
    assert list(table.predictions.group) == ["p2", "p1"]
    scores.write_text("id,group,score:dog\nb,p2,0.25\n")
    with pytest.raises(DataError, match="both name groups; leave one of them out"):
        read_scores(scores, "logits", labels=labels)


def test_a_row_without_a_group_is_named(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(CSV + ROWS.replace("p2", " "))
    with pytest.raises(DataError, match=r"row 3 \(id 'c'\): every row needs a group, or none"):
        read_scores(path, "logits")


def test_groups_are_saved_joined_and_taken(tmp_path):
    some = of_patients(20)
    some.save(tmp_path / "p.parquet")
    again = Predictions.load(tmp_path / "p.parquet")
    assert list(again.group) == list(some.group)
    assert list(again.take(np.array([3, 17])).group) == ["p0", "p3"]
    assert list(again.joined(some).group) == [*some.group, *some.group]
    assert again.joined(sample(3)).group is None
    with pytest.raises(ValueError, match="group must name 20 groups, got 1"):
        replace(some, group=["x"])


def test_a_group_on_both_sides_is_refused(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(CSV + ROWS.replace("p3", "p1"))
    table = read_scores(path, "logits")
    with pytest.raises(DataError, match="1 group can be found on both sides, first 'p1': what is"):
        judge(table, FitPlan("platt-shared"), fit_on="x", report_on="y")


def test_folds_hold_whole_groups():
    some = of_patients()
    dealt = folds_of(300, 5, 1, some.groups)
    for name in set(some.group):
        assert len(set(dealt[np.array(some.group) == name])) == 1
    assert np.bincount(dealt).tolist() == [60] * 5
    with pytest.raises(SettingsError, match="between 2 and the 60 groups"):
        folds_of(300, 61, 1, some.groups)

    def fit(part):
        seen.append(set(part.group))
        return None, None

    seen = []
    crossfit(some, fit, folds=5, seed=1)
    assert all(len(groups) == 48 for groups in seen)


def test_a_promise_keeps_groups_from_its_calibrator_and_tests_them():
    table = ScoreTable("scores.csv", of_patients(1500))
    found = promise_scores(table, "recall=0.6", calibrator="platt-shared")
    (promise,) = found.promised.promises
    assert promise.n == 750
    assert promise.groups <= 150
    assert promise.test == "betting"
    alone = promise_scores(
        ScoreTable("scores.csv", sample(1500)), "recall=0.6", calibrator="platt-shared"
    ).promised.promises[0]
    assert (alone.groups, alone.test) == (None, "Hoeffding-Bentkus")


def test_auto_deals_whole_groups_into_its_folds(monkeypatch):
    given = {}
    noted = lambda *rows, **options: given.update(options)  # noqa: E731
    monkeypatch.setattr("labelwise.calibration.fit_calibrator", noted)
    fit_calibrator("auto", of_patients(100), None)
    assert Groups.of(given["groups"]).count == 20

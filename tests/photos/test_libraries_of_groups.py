"""An index whose model was held to photos that come in groups.

Oracles: the same index with each held-out photo once, against eight copies of each in a group.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index

from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, likeness_of
from labelwise.photos.query import Asked, answer
from labelwise.photos.tagging import promised_rule
from labelwise.predictions import Predictions
from labelwise.retrieval import Query

COPIES = 8
LOGITS = np.random.default_rng(5).normal(-1, 2, (600, 4))
DOG = Query.parse("dog")


@pytest.fixture
def pair(tmp_path, model):
    """The index with single held-out photos, and the one with copies in groups."""
    other = tmp_path / "copies"
    shutil.copytree(model, other)
    once = RunFolder(model).predictions("test")
    place = np.repeat(np.arange(len(once)), COPIES)
    many = replace(
        once.take(place),
        ids=[f"{row}-{number}" for number, row in enumerate(place)],
        group=[str(row) for row in place],
    )
    path = other / "predictions" / "test.parquet"
    many.save(path)
    assert Predictions.load(path).groups.count == len(once)
    return [
        open_index(made_index(tmp_path / name, folder, LOGITS))
        for name, folder in (("once.index", model), ("many.index", other))
    ]


def test_one_photo_of_each_group_judges_a_list(pair):
    splits = [Asked(index, DOG).splits for index in pair]
    assert {sum(len(half.scores) for half in one) for one in splits} == {400}
    found = [answer(index, DOG, wrong_at_most=0.3) for index in pair]
    assert found[0].statement == found[1].statement


def test_the_interval_of_a_count_does_not_narrow_with_copies(pair):
    once, many = (answer(index, DOG).count for index in pair)
    assert once.expected == pytest.approx(many.expected, rel=0.02)
    assert many.upper - many.lower > 0.95 * (once.upper - once.lower)


def test_tags_are_promised_by_group(pair):
    made = promised_rule(pair[1], 0.4, 0.95)
    assert made.promises[0].groups <= 400
    assert made.promises[0].design_effect == pytest.approx(COPIES, rel=0.1)


def test_a_library_of_bursts_is_compared_folder_by_folder(tmp_path, pair):
    """Oracle: one photo of each of 60 groups drawn like the held-out photos; 20 copies of each."""
    model = tmp_path / "copies"
    leaders = np.random.default_rng(6).normal(-1, 2, (60, 4))
    bursts, group = np.repeat(leaders, 20, axis=0), np.repeat(np.arange(60), 20)
    said = {}
    for name, folders in (("apart", [f"burst {one}" for one in group]), ("together", None)):
        with Index(made_index(tmp_path / f"{name}.index", model, bursts, folders)) as index:
            said[name] = likeness_of(index)
    assert said["together"].likeness.outcome == "pictures differ"
    assert "may look different by chance" in said["together"].sentence()
    assert said["apart"].likeness.outcome == "alike"
    assert said["apart"].sentence().endswith("Of each of 60 folders one photo was compared.")


def test_other_pictures_are_noticed_folder_by_folder(tmp_path, pair):
    model = tmp_path / "copies"
    logits = np.repeat(np.random.default_rng(7).normal(4, 2, (60, 4)), 5, axis=0)
    folders = [f"burst {row // 5}" for row in range(300)]
    with Index(made_index(tmp_path / "other.index", model, logits, folders)) as index:
        found = likeness_of(index)
    assert (found.likeness.outcome, found.folders) == ("pictures differ", 60)

"""Searches of some photos only. Oracles: an index of just those, hits of the whole that pass."""

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index

from labelwise.errors import DataError
from labelwise.photos import answer
from labelwise.photos.filters import PhotoFilter
from labelwise.retrieval import Query

FOLDERS = ("", "2023", "2023/june", "2023-b", "2024")
QUERIES = ("dog, -beach", "(cat | dog), -row")


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(1).normal(-1, 2, (600, 4)).astype(np.float32)


@pytest.fixture
def index(model, logits, tmp_path):
    folders = [FOLDERS[row % 5] for row in range(600)]
    index = open_index(made_index(tmp_path / "photos.index", model, logits, folders))
    with index.store.transaction() as database:
        for row in range(0, 600, 2):  # every other photo has a date
            taken = f"{2020 + row % 5}-{1 + row % 12:02d}-15T12:00:00"
            database.execute("UPDATE contents SET taken = ? WHERE row = ?", (taken, row))
        database.seal("contents", "alive = 1")
    return index


@pytest.mark.parametrize("text", QUERIES)
@pytest.mark.parametrize("share", [None, 0.4])
def test_a_search_of_a_folder_is_that_of_an_index_of_the_folder(
    index, model, logits, tmp_path, text, share
):
    """Its photos, counts, cut and promise; a folder whose name only begins alike is another."""
    within = [row for row in range(600) if FOLDERS[row % 5] in ("2023", "2023/june")]
    other = open_index(made_index(tmp_path / "some.index", model, logits[within]))
    query, options = Query.parse(text), {"top": 600, "wrong_at_most": share}
    found = answer(index, query, photos=PhotoFilter("2023"), **options)
    alone = answer(other, query, **options)
    assert [hit.row for hit in found.hits] == [within[hit.row] for hit in alone.hits]
    assert [hit.probability for hit in found.hits] == [hit.probability for hit in alone.hits]
    assert (found.photos, found.above, found.statement) == (240, alone.above, alone.statement)
    assert found.count.expected == pytest.approx(alone.count.expected)
    assert "of 240 photos below 2023 match" in found.counted
    said, same = found.likeness.likeness, alone.likeness.likeness
    assert (said.outcome, said.photos) == (same.outcome, 240)  # the folder's own photos


@pytest.mark.parametrize(
    ("since", "until"),
    [("2021", None), (None, "2021-06"), ("2021-03-15", "2022-03-15"), ("2021", "2021")],
)
def test_days_months_and_years_are_inside(index, since, until):
    every = answer(index, Query.parse("dog"), top=600).hits
    found = answer(index, Query.parse("dog"), top=600, photos=PhotoFilter(None, since, until)).hits
    first, last = (since or "0000") + "-01-01"[len(since or "0000") - 4 :], until or "9999"
    passing = [
        hit.row
        for hit in every
        if hit.taken and first <= hit.taken and hit.taken[: len(last)] <= last
    ]
    assert [hit.row for hit in found] == passing
    assert 0 < len(passing) < 300


def test_a_whole_path_is_a_folder_too_and_both_filters_join(index):
    (root,) = index.store.roots().values()
    query = Query.parse("dog")
    by_path = answer(index, query, photos=PhotoFilter(f"{root}/2023/june/"), top=600)
    assert by_path.hits == answer(index, query, photos=PhotoFilter("2023/june"), top=600).hits
    assert answer(index, query, photos=PhotoFilter(root), top=600).photos == 600
    both = answer(index, query, photos=PhotoFilter("2023", "2021"), top=600)
    assert 0 < both.photos < 240
    assert "below 2023, since 2021" in both.counted


def test_filters_that_cannot_be_say_why(index):
    with pytest.raises(
        DataError, match="since must be a day, a month or a year such as 2023-06-30"
    ):
        PhotoFilter(since="June")
    with pytest.raises(DataError, match="until must be"):
        PhotoFilter(until="2023-13")
    with pytest.raises(DataError, match="since 2024 is after until 2023"):
        PhotoFilter(since="2024", until="2023")
    with pytest.raises(DataError, match="lies below 'holiday'; name a folder"):
        answer(index, Query.parse("dog"), photos=PhotoFilter("holiday"))
    with pytest.raises(DataError, match="lies below"):
        answer(index, Query.parse("dog"), photos=PhotoFilter("/elsewhere"))

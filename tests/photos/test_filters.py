"""Searches of some photos only, and near copies.

Oracles: an index of just those photos, hits of the whole that pass, how the library was made.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from PIL import Image
from search_setup import twelve_photos

from labelwise.base.progress import Silent
from labelwise.errors import DataError
from labelwise.photos import Index, answer, update_index
from labelwise.photos.filters import NearCopies, PhotoFilter, copied_rows, near_copies, pictures_of
from labelwise.photos.lists import CheckSession
from labelwise.photos.prevalence import SampleAnswers, draw_sample
from labelwise.queries import Query

FOLDERS = ("", "2023", "2023/june", "2023-b", "2024")
DOG, DISTINCT = Query.parse("dog"), PhotoFilter(distinct=True)


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(1).normal(-1, 2, (600, 4)).astype(np.float32)


@pytest.fixture
def index(model, logits, tmp_path):
    folders = [FOLDERS[row % 5] for row in range(600)]
    index = open_index(made_index(tmp_path / "photos.index", model, logits, folders))
    with index.store.transaction() as database:
        for row, *facts, _, alive in database.read("contents"):
            taken = f"{2020 + row % 5}-{1 + row % 12:02d}-15T12:00:00"
            if row % 2 == 0:  # every other photo has a date
                database.put("contents", [(row, *facts, taken, alive)])
    return index


@pytest.mark.parametrize(("text", "share"), [("dog, -beach", None), ("(cat | dog), -row", 0.4)])
def test_a_search_of_a_folder_is_that_of_an_index_of_the_folder(
    index, model, logits, tmp_path, text, share
):
    """Its photos, counts, cut and promise; a folder whose name only begins alike is another."""
    within = [row for row in range(600) if FOLDERS[row % 5] in ("2023", "2023/june")]
    other = open_index(made_index(tmp_path / "some.index", model, logits[within]))
    query, options = Query.parse(text), {"top": 600, "wrong_about": share}
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
    every = answer(index, DOG, top=600).hits
    found = answer(index, DOG, top=600, photos=PhotoFilter(None, since, until)).hits
    last = until or "9999"
    dated = [hit for hit in every if hit.taken and (since or "") <= hit.taken]
    assert list(found) == [hit for hit in dated if hit.taken[: len(last)] <= last]
    assert 0 < len(found) < 300


def test_a_whole_path_is_a_folder_too_and_both_filters_join(index):
    (root,) = index.store.roots().values()
    by_path = answer(index, DOG, photos=PhotoFilter(f"{root}/2023/june/"), top=600)
    assert by_path.hits == answer(index, DOG, photos=PhotoFilter("2023/june"), top=600).hits
    assert answer(index, DOG, photos=PhotoFilter(root), top=600).photos == 600
    both = answer(index, DOG, photos=PhotoFilter("2023", "2021"), top=600)
    assert 0 < both.photos < 240
    assert "below 2023, since 2021" in both.counted


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"since": "June"}, "since must be a day, a month or a year such as 2023-06-30"),
        ({"until": "2023-13"}, "until must be"),
        ({"since": "2024", "until": "2023"}, "since 2024 is after until 2023"),
        ({"rating": 9}, "a rating must lie between 1 and 5, got 9"),
        ({"folder": "holiday"}, "lies below 'holiday'; name a folder"),
        ({"folder": "/elsewhere"}, "lies below"),
    ],
)
def test_filters_that_cannot_be_say_why(pictured, options, why):
    with pytest.raises(DataError, match=why):
        PhotoFilter(**options).left_out(pictured)


def smooth(seed):
    """Return a smooth picture, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 80), Image.Resampling.BICUBIC)


def add_shots(photos):
    """Write three shots of one more picture: it, half as large, and badly encoded."""
    shot = smooth(7)
    for name, picture in (("a", shot), ("b", shot.resize((40, 40)))):
        picture.save(photos / f"shot-{name}.png")
    shot.save(photos / "shot-c.jpg", quality=40)


@pytest.fixture(scope="module")
def shots(model, tmp_path_factory):
    """The index of twelve photos and three shots."""
    home = tmp_path_factory.mktemp("shots")
    add_shots(twelve_photos(home / "photos"))
    update_index(home / "index", [home / "photos"], model=model, watch=Silent())
    return home / "index"


@pytest.fixture
def library(shots, tmp_path):
    """That index, open until the test ends."""
    return open_index(shutil.copytree(shots, tmp_path / "photos.index"))


def rows_named(index, word):
    alive = index.store.alive_rows().tolist()
    return [row for row in alive if word in Path(index.store.paths_of([row])[row][0]).name]


def test_what_was_known_stays_when_photos_come(update, photos):
    """The earliest of a picture leads; where it is gone, the next one that is there."""
    add_shots(photos)
    update()
    with Index(update.folder) as index:
        shots, before = rows_named(index, "shot"), pictures_of(index)
        assert near_copies(index) == NearCopies(15, 2)
        assert set(before[shots]) == {shots[0]}
        assert copied_rows(index).tolist() == shots[1:]
        others = np.setdiff1d(index.store.alive_rows(), shots)
        assert near_copies(index, others) == NearCopies(12, 0)
        assert before[others].tolist() == others.tolist()
    smooth(7).resize((60, 60)).save(photos / "shot-d.png")
    changes = update()
    assert any("of 16 photos of the index, 3 are near copies" in note for note in changes.notes)
    with Index(update.folder) as index:
        assert pictures_of(index).tolist() == [*before, shots[0]]
        (photos / index.store.paths_of(shots)[shots[0]][0]).unlink()
    update()
    with Index(update.folder) as index:
        assert copied_rows(index).tolist() == [shots[2], len(before)]
        assert near_copies(index) == NearCopies(15, 2)


def test_a_search_for_distinct_photos_is_one_in_a_library_without_the_copies(library):
    found, whole = (answer(library, DOG, top=99, photos=p) for p in (DISTINCT, PhotoFilter()))
    left_out = copied_rows(library).tolist()
    assert list(found.hits) == [one for one in whole.hits if one.row not in left_out]
    assert (whole.photos, found.photos) == (15, 13)
    assert "of 13 photos near copies counted as one match dog" in found.counted


def test_a_check_draws_one_photo_of_each_picture(library):
    plain = CheckSession(library, DOG, top=15)
    session = CheckSession(library, DOG, top=15, distinct=True)
    copies = rows_named(library, "shot")[1:]
    assert sorted(session.rows.tolist()) == [row for row in range(15) if row not in copies]
    assert session._places == [plain._places[0] + 1]  # with its own error


def test_an_estimate_counts_pictures(library):
    """Where every picture is answered the count is exact, whichever shot stands for it."""
    shots, sample = rows_named(library, "shot"), draw_sample(library, DOG, 99, distinct=True)
    assert sample.photos != draw_sample(library, DOG, 99).photos
    asked = SampleAnswers(library, DOG, sample)
    assert sum(row in shots for row in asked.rows) == 1
    asked.note({row: "yes" if row in shots else "no" for row in asked.rows})
    total = asked.estimate().total
    assert (total.photos, total.count, total.low, total.high) == (13, 1, 1, 1)


def test_an_index_without_looks_says_so(library):
    shutil.rmtree(library.folder / "looks")
    assert near_copies(library) is None
    with pytest.raises(DataError, match="--rebuild"):
        answer(library, DOG, photos=DISTINCT)


def test_a_list_counts_its_near_copies(library):
    query, options = Query.parse("-beach"), {"top": 99, "at_least": 0.1}
    found = answer(library, query, **options)
    assert sum("shot-" in hit.paths[0] for hit in found.hits) == 3
    assert near_copies(library, found.rows) == NearCopies(found.above, 2)
    distinct = answer(library, query, **options, photos=DISTINCT)
    assert near_copies(library, distinct.rows) == NearCopies(found.above - 2, 0)
    unsaid = answer(library, query, wrong_about=0.5)  # 15 photos cannot be compared
    assert (unsaid.hits, unsaid.copies_sentence) == ((), "")

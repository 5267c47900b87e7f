"""Near copies in an index are counted and left out on request. Oracle: how the library was made."""

import json
from pathlib import Path

import numpy as np
import pytest
from open_indexes import open_index
from PIL import Image
from typed import run

from labelwise.errors import DataError, LabelwiseError
from labelwise.photos import Index, answer
from labelwise.photos.filters import NearCopies, PhotoFilter, copied_rows, near_copies, pictures_of
from labelwise.photos.lists import CheckSession
from labelwise.photos.prevalence import SampleAnswers, draw_sample
from labelwise.retrieval import Query

DISTINCT = PhotoFilter(distinct=True)


def smooth(seed):
    """Return a smooth picture, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 80), Image.Resampling.BICUBIC)


@pytest.fixture
def library(update, photos):
    """Twelve photos, and three shots of one more: it, half as large, and badly encoded."""
    shot = smooth(7)
    for name, picture in (("a", shot), ("b", shot.resize((40, 40)))):
        picture.save(photos / f"shot-{name}.png")
    shot.save(photos / "shot-c.jpg", quality=40)
    update()
    return update


def rows_named(index, word):
    alive = index.store.alive_rows().tolist()
    return [row for row in alive if word in Path(index.store.paths_of([row])[row][0]).name]


def test_three_shots_of_one_picture_are_known(library):
    with Index(library.folder) as index:
        shots = rows_named(index, "shot")
        assert near_copies(index) == NearCopies(15, 2)
        assert set(pictures_of(index)[shots]) == {shots[0]}
        assert copied_rows(index).tolist() == shots[1:]
        others = np.setdiff1d(index.store.alive_rows(), shots)
        assert near_copies(index, others) == NearCopies(12, 0)
        assert pictures_of(index)[others].tolist() == others.tolist()


def test_what_was_known_stays_when_photos_come(library, photos):
    """The earliest of a picture leads; where it is gone, the next one that is there."""
    with Index(library.folder) as index:
        before = pictures_of(index)
        first, second, third = rows_named(index, "shot")
    smooth(7).resize((60, 60)).save(photos / "shot-d.png")
    changes = library()
    assert any("of 16 photos of the index, 3 are near copies" in note for note in changes.notes)
    with Index(library.folder) as index:
        assert pictures_of(index)[: len(before)].tolist() == before.tolist()
        assert pictures_of(index)[-1] == first
        name = index.store.paths_of([first])[first][0]
    (photos / name).unlink()
    library()
    with Index(library.folder) as index:
        assert copied_rows(index).tolist() == [third, len(before)]
        assert near_copies(index) == NearCopies(15, 2)
        assert second not in copied_rows(index)


def test_a_search_for_distinct_photos_is_one_in_a_library_without_the_copies(library):
    with Index(library.folder) as index:
        query = Query.parse("dog", index.space)
        found = answer(index, query, top=99, photos=DISTINCT)
        whole = answer(index, query, top=99)
        left_out = copied_rows(index).tolist()
        assert [one.row for one in found.hits] == [
            one.row for one in whole.hits if one.row not in left_out
        ]
        assert (whole.photos, found.photos) == (15, 13)
        assert "of 13 photos near copies counted as one match dog" in found.counted


def test_the_command_line_takes_near_copies_as_one(library):
    found = run("search", library.folder, "dog", "--distinct", "--json", "--count")
    assert json.loads(found.stdout)["photos"] == 13
    assert json.loads(found.stdout)["near_copies"] is None  # nothing was cut
    refused = run("search", library.folder, "--unreadable", "--distinct")
    assert isinstance(refused.exception, LabelwiseError)


def test_a_check_draws_one_photo_of_each_picture(library):
    index = open_index(library.folder)
    query = Query.parse("dog", index.space)
    plain = CheckSession(index, query, top=15)
    session = CheckSession(index, query, top=15, distinct=True)
    assert len(plain.rows) == 15
    assert sorted(session.rows.tolist()) == [
        row for row in range(15) if row not in rows_named(index, "shot")[1:]
    ]
    assert session._places == [plain._places[0] + 1]  # with its own error


def test_an_estimate_counts_pictures(library):
    """Where every picture is answered the count is exact, whichever shot stands for it."""
    index = open_index(library.folder)
    query = Query.parse("dog", index.space)
    sample = draw_sample(index, query, 99, distinct=True)
    assert sample.photos != draw_sample(index, query, 99).photos
    asked = SampleAnswers(index, query, sample)
    shots = rows_named(index, "shot")
    assert sum(row in shots for row in asked.rows) == 1
    asked.note({row: "yes" if row in shots else "no" for row in asked.rows})
    total = asked.estimate().total
    assert (total.photos, total.count, total.low, total.high) == (13, 1, 1, 1)


def test_an_index_without_looks_says_so(library):
    import shutil

    shutil.rmtree(library.folder / "looks")
    with Index(library.folder) as index:
        assert near_copies(index) is None
        with pytest.raises(DataError, match="--rebuild"):
            answer(index, Query.parse("dog", index.space), photos=DISTINCT)


def test_a_cut_list_counts_its_near_copies(library):
    with Index(library.folder) as index:
        query = Query.parse("-beach", index.space)
        found = answer(index, query, top=99, wrong_at_most=0.5)
        shots = [hit for hit in found.hits if "shot" in hit.paths[0]]
        assert found.above == len(found.hits)
        assert len(shots) == 3
        assert found.copies == NearCopies(len(found.hits), 2)
        assert found.copies_sentence.startswith(
            "Of the photos of this list, 2 are near copies of an earlier one: "
            f"{len(found.hits) - 2} different pictures."
        )
        distinct = answer(index, query, top=99, wrong_at_most=0.5, photos=DISTINCT)
        assert distinct.above == len(found.hits) - 2
        assert distinct.copies_sentence == ""

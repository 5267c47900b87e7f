"""Near copies as one, and the name of who answers, in the API and in the page.

Oracles: which photos are copies is known from how the library was made; corrections and receipts
are read from the index, beside the server.
"""

import pytest
from open_indexes import open_index
from patience import PATIENCE
from PIL import Image
from playwright.sync_api import expect
from web_setup import running

from labelwise.photos import update_index
from labelwise.system.progress import Silent

expect.set_options(timeout=1000 * PATIENCE)
LIST = "/api/v1/search?q=-beach&wrong_at_most=0.5&top=99"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def shots(run, own_library):
    """A server of twelve photos and of a smaller copy of the first."""
    photos = own_library.parent / "photos"
    with Image.open(photos / "0.png") as first:
        first.resize((24, 18)).save(photos / "shot.png")
    update_index(own_library, [photos], model=run, watch=Silent())
    with running(run, own_library, decoders=0) as server:
        server.library = own_library
        yield server


def named(answer):
    return {hit["name"] for hit in answer["hits"]}


def test_near_copies_are_one_photo_where_that_is_asked(shots):
    every, distinct = shots.get(LIST), shots.get(f"{LIST}&distinct=true")
    assert (every["photos"], distinct["photos"]) == (13, 12)
    assert named(every) - named(distinct) == {"shot.png"}
    assert "1 is a near copy of an earlier one: 12 different pictures" in every["near_copies"]
    assert distinct["near_copies"] is None


def test_the_page_takes_near_copies_as_one_and_keeps_a_name(shots, visit):
    page = visit(shots, "/#search/-beach")
    tiles, name = page.locator("#grid li"), page.locator("#who")
    expect(tiles).to_have_count(13)
    page.get_by_role("link", name="Trust").click()
    name.fill(HOSTILE)
    page.goto(f"{shots.address}/#search/-beach")
    page.locator("#filters summary").click()
    page.locator("#distinct").check()
    expect(tiles).to_have_count(12)
    expect(page.locator("#check-offer")).to_be_hidden()  # a check is of the whole library
    page.reload()
    expect(name).to_have_value(HOSTILE)
    page.goto(f"{shots.address}/#review")
    page.get_by_role("button", name="Yes, it is there").click()
    expect(page.locator("#question")).to_contain_text("1 answered")
    with open_index(shots.library) as index:
        assert [one.who for one in index.store.corrections()] == [HOSTILE]
    assert page.heard == []

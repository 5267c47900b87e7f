"""What the page says of a list's promise. Oracle: the API's answer to the same question, and the
promise that a way out leads to.
"""

import numpy as np
import pytest
from made_index import made_index
from patience import PATIENCE
from playwright.sync_api import expect
from web_setup import running

expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture(scope="module")
def many(run, tmp_path_factory):
    """A library of 600 photos that are like the held-out ones; there are no files to show."""
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    folder = made_index(tmp_path_factory.mktemp("many") / "photos.index", run, logits)
    with running(run, folder, decoders=0) as server:
        yield server


def test_a_promise_shows_its_kind_its_condition_and_whether_that_was_seen(many, visit):
    page = visit(many, "/#search/-beach")
    said = page.locator("#counted")
    expect(page.locator("#grid li")).to_have_count(48)
    page.locator("#wrong").fill("40")
    page.locator("#promised").check()
    expect(said).to_contain_text("Promised on average: On average over searches like this")
    expect(said).to_contain_text("it holds if these photos are like the 400 held-out ones.")
    expect(said).to_contain_text("Alike: These photos cannot be told from the held-out ones")


def test_where_nothing_is_promised_the_photos_stand_with_what_would_work(many, visit):
    page = visit(many, "/#search/dog")
    said, first = page.locator("#counted"), page.locator("#grid .chance").first
    best = first.text_content()
    page.locator("#wrong").fill("1")
    page.locator("#promised").check()
    truth = many.get("/api/v1/search?q=dog&wrong_at_most=0.01")
    expect(said).to_contain_text("Not promised: No list can be promised for dog: of 400 held-out")
    expect(page.locator("#grid li")).to_have_count(48)
    expect(first).to_have_text(best)
    larger = round(100 * truth["ways"]["larger"])
    page.get_by_role("button", name=f"Let {larger} % be wrong").click()
    expect(said).to_contain_text(f"at most {larger}% of a list is wrong")
    expect(page.locator("#wrong-shown")).to_have_text(f"{larger} % wrong")


def test_the_trust_view_lists_receipts_and_what_became_of_them(own, visit):
    page = visit(own, "/#search/-beach")
    page.locator("#wrong").fill("50")
    page.locator("#promised").check()
    page.get_by_role("link", name="Receipt 1").click()
    row = page.locator("#trust-body table").first.locator("tbody tr")
    expect(row).to_have_count(1)
    (receipt,) = own.get("/api/v1/receipts")["receipts"]
    expect(row).to_contain_text(receipt["text"])
    expect(row).to_contain_text("no photo of it was answered")
    expect(page.get_by_role("link", name="All receipts as JSON")).to_be_visible()
    assert page.heard == []

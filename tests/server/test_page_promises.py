"""What the page says of a list. Oracle: the API's answer to the same question."""

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


def test_a_list_shows_its_badge_and_its_estimate(many, visit):
    page = visit(many, "/#search/-beach")
    said = page.locator("#counted")
    expect(page.locator("#grid li")).to_have_count(48)
    page.locator("#wrong").fill("40")
    page.locator("#promised").check()
    expect(said.locator("#list-badge")).to_have_text("Estimate")
    truth = many.get("/api/v1/search?q=-beach&wrong_at_most=0.4")
    expect(said).to_contain_text(truth["estimate"]["sentence"])
    expect(said).to_contain_text("Alike: These photos cannot be told from the held-out ones")


def test_where_there_is_no_such_list_the_photos_are_shown_with_the_reason(many, visit):
    page = visit(many, "/#search/dog")
    said, first = page.locator("#counted"), page.locator("#grid .chance").first
    best = first.text_content()
    page.locator("#wrong").fill("1")
    page.locator("#promised").check()
    expect(said).to_contain_text("No estimate: No list is expected to be at most 1 % wrong")
    expect(page.locator("#grid li")).to_have_count(48)
    expect(first).to_have_text(best)
    expect(page.locator("#list-badge")).to_have_count(0)


def test_a_checked_list_is_guaranteed_and_the_trust_view_has_its_receipt(own, visit):
    page = visit(own, "/#check/30,12/dog")
    badge = page.locator("#list-badge")
    for _ in range(14):
        page.get_by_role("button", name="Yes, it matches").or_(badge).first.wait_for()
        if badge.count():
            break
        before = page.locator("#check-state").text_content()
        page.keyboard.press("y")
        expect(page.locator("#check-state")).not_to_have_text(before)
    expect(badge).to_have_text("Guarantee")
    expect(page.locator("#check-state")).to_contain_text("of these 12 photos match dog")
    page.get_by_role("link", name="Trust").click()
    row = page.locator("#trust-body table").first.locator("tbody tr")
    expect(row).to_have_count(1)
    (receipt,) = own.get("/api/v1/receipts")["receipts"]
    expect(row).to_contain_text(receipt["text"])
    expect(page.get_by_role("link", name="All receipts as JSON")).to_be_visible()
    assert page.heard == []

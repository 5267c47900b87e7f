"""The API's own page. Oracle: /openapi.json and the answers of the same server."""

import json

from browser_setup import assert_fits, assert_no_finding
from patience import PATIENCE
from playwright.sync_api import expect
from web_setup import TOKEN

expect.set_options(timeout=1000 * PATIENCE)
SAME_IDS = """[...document.querySelectorAll("[id]")].map((one) => one.id)
  .filter((id, at, all) => all.indexOf(id) !== at)"""
KEEP_THREE = """document.querySelectorAll("details.request").forEach((one, at) => {
  one.open = at < 3;
  if (at >= 3) one.querySelectorAll(":scope > :not(summary)").forEach((part) => part.remove());
})"""


def test_every_request_is_described_and_those_that_read_can_be_tried(server, visit):
    page = visit(server, "/docs", viewport={"width": 390, "height": 800})
    described = server.get("/openapi.json")
    requests = page.locator("details.request")
    every = [f"{m.upper()} {path}" for path, some in described["paths"].items() for m in some]
    expect(requests).to_have_count(len(every))
    assert requests.locator("> summary code").all_text_contents() == every
    search = requests.filter(has_text="GET /api/v1/search")
    search.locator("> summary").click()
    names = [one["name"] for one in described["paths"]["/api/v1/search"]["get"]["parameters"]]
    assert search.locator("tbody th").all_text_contents()[: len(names)] == names
    search.get_by_label("q", exact=True).fill("dog, -beach")
    search.get_by_label("top", exact=True).fill("2")
    search.get_by_role("button", name="Try it").click()
    shown = search.locator("pre")
    expect(shown).to_contain_text("200\n{")
    truth = server.get("/api/v1/search?q=dog,%20-beach&top=2")
    assert json.loads(shown.text_content().removeprefix("200\n")) == truth
    search.get_by_label("q", exact=True).fill("zebra")
    search.get_by_role("button", name="Try it").click()
    expect(shown).to_contain_text("unknown label 'zebra'")
    assert_fits(page)
    assert page.evaluate(SAME_IDS) == []
    page.evaluate(KEEP_THREE)  # axe takes seconds for all of them, also where they are closed
    assert_no_finding(page, 390, "dark")
    assert [text for text in page.heard if "422" not in text] == []


def test_the_description_is_behind_the_token(bare):
    assert bare.send("GET", "/docs")[0] == 401
    status, headers, _ = bare.send("GET", "/docs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_page_leads_to_it(server, visit):
    page = visit(server)
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="API", level=1)).to_be_visible()
    expect(page.locator("details.request").first).to_be_visible()

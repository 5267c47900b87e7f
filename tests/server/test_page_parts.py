"""Parts of the page in a real browser. Oracles: the index, how it was made, the API's answers."""

import json

import numpy as np
import pytest
from browser_setup import assert_fits, assert_no_finding, corrections
from made_index import made_index
from open_indexes import open_index
from patience import PATIENCE
from PIL import Image
from playwright.sync_api import expect
from web_setup import TOKEN, running

from labelwise.photos import update_index
from labelwise.system.progress import Silent

expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture
def page(own, visit):
    page = visit(own, "/#search/dog")
    expect(page.locator("#grid .pick")).to_have_count(12)
    page.shown = [box.get_attribute("value") for box in page.locator("#grid .pick").all()]
    return page


def test_photos_are_selected_one_by_one_and_by_range_and_corrected_together(own, page):
    boxes, bar = page.locator("#grid .pick"), page.locator("#select-bar")
    expect(bar).to_be_hidden()
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    expect(page.locator("#select-count")).to_have_text("4 selected")
    boxes.nth(2).click()
    expect(page.locator("#select-count")).to_have_text("3 selected")
    expect(page.locator("#select-label")).to_have_value("dog")
    page.get_by_role("button", name="is not").click()
    expect(page.locator("#toast")).to_contain_text("dog is not there: 3 photos")
    wanted = {(page.shown[at], "dog"): "absent" for at in (1, 3, 4)}
    assert corrections(own) == wanted
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#toast")).to_contain_text("Taken back for 3 photos")
    assert corrections(own) == {}
    assert page.heard == []
    page.locator("#grid .pick").first.check()
    page.locator("#select-label").fill("zebra")
    page.get_by_role("button", name="is there").click()
    expect(page.locator("#toast")).to_contain_text("unknown label 'zebra'")
    assert corrections(own) == {}


def test_the_keyboard_alone_selects_corrects_and_takes_back(own, page):
    page.locator("#grid a").nth(2).focus()
    page.keyboard.press("x")
    expect(page.locator("#select-count")).to_have_text("1 selected")
    page.keyboard.press("a")
    expect(page.locator("#select-count")).to_have_text("12 selected")
    page.locator("#select-label").fill("cat")
    page.keyboard.press("y")  # typed into the label, not an answer
    expect(page.locator("#select-label")).to_have_value("caty")
    page.locator("#select-label").fill("cat")
    page.locator("#grid a").nth(2).focus()
    page.keyboard.press("y")
    expect(page.locator("#toast")).to_contain_text("cat is there: 12 photos")
    assert corrections(own) == {(photo, "cat"): "present" for photo in page.shown}
    page.keyboard.press("Escape")
    expect(page.locator("#select-count")).to_have_text("0 selected")
    page.keyboard.press("u")
    expect(page.locator("#toast")).to_contain_text("Taken back for 12 photos")
    assert corrections(own) == {}
    expect(page.locator("#select-bar")).to_be_hidden()


def test_a_photo_says_where_its_file_lies_and_gives_it_back(own, visit):
    page = visit(own, "/#search/dog")
    page.locator("#grid a").first.click()
    file = page.locator("#photo-file")
    photo = own.get("/api/v1/search?q=dog&top=1")["hits"][0]
    (path,) = own.get(f"/api/v1/photos/{photo['id']}/facts")["paths"]
    expect(file).to_contain_text(path)
    with page.expect_download(timeout=1000 * PATIENCE) as download:
        file.get_by_role("link", name="Download").click()
    with open(path, "rb") as original, open(download.value.path(), "rb") as kept:
        assert kept.read() == original.read()
    assert file.get_by_role("link", name="Map").count() == 0  # it has no place


def test_filters_are_sent_with_the_query(own, page):
    page.locator("#filters summary").click()
    page.locator("#folder").fill("elsewhere")
    page.locator("#folder").press("Enter")
    expect(page.locator("#counted.error")).to_contain_text("lies below 'elsewhere'")
    page.locator("#folder").fill("")
    page.locator("#since").fill("2020-01-01")
    expect(page.locator("#counted")).to_contain_text("of 0 photos match dog")
    expect(page.locator("#grid li")).to_have_text(
        "No photo to show. Take a label out of the query, or clear some filters."
    )
    page.locator("#query").fill('"a red bicycle"')
    page.locator("#query").press("Enter")
    expect(page.locator("#counted.error")).to_contain_text("do not apply to a text in quotation")


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


def test_near_copies_are_one_photo_where_that_is_asked_and_a_name_is_kept(shots, visit):
    every, distinct = shots.get(LIST), shots.get(f"{LIST}&distinct=true")
    assert (every["photos"], distinct["photos"]) == (13, 12)
    assert named(every) - named(distinct) == {"shot.png"}
    assert "1 is a near copy of an earlier one: 12 different pictures" in every["near_copies"]
    assert distinct["near_copies"] is None
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


@pytest.fixture(scope="module")
def many(run, tmp_path_factory):
    """A library of 600 photos that are like the held-out ones; there are no files to show."""
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    folder = made_index(tmp_path_factory.mktemp("many") / "photos.index", run, logits)
    with running(run, folder, decoders=0) as server:
        yield server


@pytest.mark.parametrize(
    ("query", "percent", "kind"), [("-beach", 40, "estimate"), ("dog", 1, "none")]
)
def test_a_list_shows_its_statement_as_the_api_words_it(many, visit, query, percent, kind):
    """Where there is no list, the photos of the plain search are shown with the reason."""
    page = visit(many, f"/#search/{query}")
    expect(page.locator("#grid li")).to_have_count(48)
    page.locator("#filters summary").click()
    page.locator("#wrong").fill(str(percent))
    page.locator("#promised").check()
    truth = many.get(f"/api/v1/search?q={query}&wrong_at_most={percent / 100}")["statement"]
    assert truth["kind"] == kind
    said = page.locator(f"#counted .badge.{kind}").first
    expect(said.locator(".said")).to_have_text(truth["sentence"])
    expect(said).to_contain_text("Estimate" if kind == "estimate" else "No estimate")
    expect(page.locator("#grid li")).to_have_count(48)


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


def test_the_page_leads_to_the_description_which_is_behind_the_token(server, bare, visit):
    assert bare.send("GET", "/docs")[0] == 401
    assert bare.send("GET", "/docs", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    page = visit(server)
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="API", level=1)).to_be_visible()
    expect(page.locator("details.request").first).to_be_visible()

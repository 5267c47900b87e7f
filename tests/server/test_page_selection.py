"""Several photos corrected at once in the page, by key and by mouse. Oracle: the corrections that
stand in the index, and the photos that a person chose.
"""

import pytest
from open_indexes import open_index
from patience import PATIENCE
from playwright.sync_api import expect

expect.set_options(timeout=1000 * PATIENCE)


def corrections(server):
    """Return what people said, as the index keeps it: the state by photo and label."""
    with open_index(server.library) as index:
        said = index.store.corrections()
        ids = index.store.contents_of([one.row for one in said])
    return {(ids[one.row].hash.hex(), one.label): one.state for one in said}


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


def test_an_unknown_label_says_why_and_changes_nothing(own, page):
    page.locator("#grid .pick").first.check()
    page.locator("#select-label").fill("zebra")
    page.get_by_role("button", name="is there").click()
    expect(page.locator("#toast")).to_contain_text("unknown label 'zebra'")
    assert corrections(own) == {}


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

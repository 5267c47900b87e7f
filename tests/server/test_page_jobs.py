"""Many photos and several models in the page. Oracle: ``Predictor`` on the same bytes."""

import csv
from pathlib import Path

import pytest
from browser_setup import assert_fits, assert_no_finding
from patience import PATIENCE
from playwright.sync_api import expect
from search_setup import save_model
from web_setup import encoded, running

from labelwise.models import Predictor

expect.set_options(timeout=1000 * PATIENCE)

MANY = 50


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second") / "colours"
    return save_model(folder, seed=5, labels=("blue", "dog", "red"))


@pytest.fixture(scope="module")
def both(run, second):
    with running(run, decoders=0, models=(("colours", second),)) as client:
        yield client


def files(contents):
    return [
        {"name": f"{number:02}.png", "mimeType": "image/png", "buffer": content}
        for number, content in enumerate(contents)
    ]


def test_many_photos_are_one_job_whose_answers_are_a_table(both, visit, second):
    contents = [encoded(seed=number, size=(40, 30)) for number in range(MANY)]
    contents[7] = b"not a photo"
    page = visit(both, viewport={"width": 390, "height": 800})
    page.get_by_label("answered by").select_option("colours")
    page.set_input_files("#files", files(contents))
    job = page.locator("#jobs > li")
    state = job.get_by_role("status")
    expect(state).to_have_text("done: 50 of 50 answered, 1 could not be opened.")
    expect(job.locator(".who")).to_contain_text("colours, ")
    assert page.locator(".card").count() == 0
    with page.expect_download(timeout=1000 * PATIENCE) as download:
        job.get_by_role("link", name="Download CSV").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    good = [content for content in contents if content != b"not a photo"]
    predictor = Predictor.load(second)
    answers = iter(predictor.predict(good).probs.tolist())
    assert [Path(row["path"]).name for row in rows] == [f"{n:02}.png" for n in range(MANY)]
    for number, row in enumerate(rows):
        if number == 7:
            assert row["error"]
            continue
        probs = [float(row[name]) for name in predictor.space.names]
        assert probs == pytest.approx(next(answers), abs=1e-5)
    assert_fits(page)
    assert_no_finding(page, 390, "light")
    job.get_by_role("button", name="Delete").click()
    expect(job).to_have_count(0)
    expect(page.locator("#jobs-place")).to_be_hidden()
    assert both.get("/api/v1/jobs") == []
    assert page.heard == []


def test_a_job_that_is_stopped_sends_no_more_and_keeps_its_answers(both, visit):
    page = visit(both)
    expect(page.locator("#model")).to_contain_text("4 labels")
    held = []

    def hold_after_five(route):
        held.append(route)
        if len(held) <= 5:
            route.continue_()

    page.route("**/pictures", hold_after_five)
    page.set_input_files("#files", files([encoded(seed=n) for n in range(MANY)]))
    job = page.locator("#jobs > li")
    state = job.get_by_role("status")
    expect(state).to_have_text("waits for photos: 5 of 50 answered.")
    job.get_by_role("button", name="Stop").click()
    expect(state).to_have_text("stopped: 5 of 5 answered.")
    assert len(held) == 6
    (kept,) = both.get("/api/v1/jobs")
    assert (kept["state"], kept["received"], kept["answered"]) == ("cancelled", 5, 5)
    page.reload()  # what the server keeps is shown to whoever comes
    expect(state).to_have_text("stopped: 5 of 5 answered.")
    expect(job.get_by_role("link", name="Download CSV")).to_be_visible()
    page.set_input_files("#files", files([encoded(seed=3)]))
    expect(page.locator(".card summary")).to_be_visible()
    answer, old_job = page.locator(".card").bounding_box(), job.bounding_box()
    assert answer["y"] < old_job["y"]  # what was asked for now comes first
    job.get_by_role("button", name="Delete").click()
    expect(job).to_have_count(0)


def test_a_few_photos_are_answered_by_the_model_that_is_chosen(both, visit, run, second):
    content = encoded(seed=3)
    page = visit(both)
    choice = page.get_by_label("answered by")
    expect(choice.locator("option")).to_have_text(["tiny", "colours"])
    for name, folder in (("colours", second), ("tiny", run)):
        choice.select_option(name)
        page.set_input_files("#files", files([content]))
        card = page.locator(".card").first
        predictor = Predictor.load(folder)
        probs = predictor.predict([content]).probs[0].tolist()
        expect(card.locator("summary")).to_be_visible()
        card.locator("summary").click()
        expected = dict(zip(predictor.space.names, probs, strict=True))
        lines = card.locator(".bars > li")
        expect(lines).to_have_count(len(expected))
        shown = lines.locator(".of").evaluate_all("all => all.map(one => one.firstChild.data)")
        assert shown == sorted(expected, key=lambda label: -expected[label])
        card.locator(".bars button").first.click()
        expect(card.locator(".told").first).to_contain_text("held-out photos that got")
    expect(page.locator(".card")).to_have_count(2)

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
    expect(page.locator("#counted .badge .said").first).to_have_text(truth["sentence"])
    expect(page.locator("#grid li")).to_have_count(48)

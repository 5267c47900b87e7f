"""A real browser for the pages: what they ask for, complain of, and how they stand out."""

import pytest
from browser_setup import CONTRAST, launched
from patience import PATIENCE


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(browser):
    """Return a function that opens a file and returns the page, and all it said or asked for."""
    contexts = []

    def open_page(path, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page, heard = context.new_page(), []
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("requestfailed", lambda request: heard.append(request.url))
        page.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else heard.append(r.url),
        )
        page.goto(path.as_uri())
        return page, heard

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def assert_readable():
    """Return a function that fails unless texts and marks of a page stand out, as WCAG AA wants."""

    def check(page, scheme, media):
        page.emulate_media(media=media, color_scheme=scheme)
        contrast = page.evaluate(CONTRAST)
        assert contrast["text"] >= 4.5
        assert contrast["chart"] >= 4.5
        assert contrast["marks"] >= 3
        assert contrast["lines"] >= 3

    return check

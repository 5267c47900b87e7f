"""A real browser for the pages: what they ask for, complain of, and how they stand out."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
]

# The least contrast of each kind of text and mark against what lies behind it (WCAG 2).
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const least = (selector, property) => Math.min(...[...document.querySelectorAll(selector)]
    .map((node) => {
      const pair = [light(parse(getComputedStyle(node)[property])), light(behind(node))];
      return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    }));
  return {
    text: least("h1, h2, h3, p, li, td, th, caption, figcaption, span, dd, dt, a, summary, footer",
      "color"),
    chart: least("svg text", "fill"),
    marks: least("svg .bar, svg .key, svg .dot:not(.before, .hollow), svg .dot.small", "fill"),
    lines: least("svg .line, svg .dot.hollow:not(.small)", "stroke"),
  };
}"""


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("this test needs Chromium: apt-get install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Return a function that opens a file and returns the page, and all it said or asked for."""
    contexts = []

    def open_page(path, **options):
        context = browser.new_context(**options)
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
def least_contrast():
    """Return a function from a page to the least contrast of its texts and marks."""
    return lambda page: page.evaluate(CONTRAST)

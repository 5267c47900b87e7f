"""What every test with a real browser needs: Debian's Chromium, WCAG's contrast, axe, widths."""

import shutil
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from open_indexes import open_index
from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-extensions", "--no-first-run"]

# What is left out. The last list given to Chromium counts, so this one begins with what matters
# here of Playwright's. The rest are pages of the browser's own, drawn beside every page of ours for
# a second or two of processor time: lists below the address bar, which nobody sees here.
LEFT_OUT = """AvoidUnnecessaryBeforeUnloadCheckSync HttpsFirstBalancedModeAutoEnable HttpsUpgrades
NetworkTimeServiceQuerying OptimizationHints PaintHolding PreconnectToSearch
ThirdPartyStoragePartitioning AimEnabled PreloadTopChromeWebUI SpareRendererForSitePerProcess
WebUIOmniboxAimPopup WebUIOmniboxFullPopup WebUIOmniboxPopup"""
FLAGS.append("--disable-features=" + ",".join(LEFT_OUT.split()))

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
WIDTHS = (320, 390, 768, 1280)
OPEN_DETAILS = "document.querySelectorAll('details').forEach((one) => one.open = true)"


def assert_fits(page):
    """Fail where a page, with all that can be opened open, is wider than its window."""
    page.evaluate(OPEN_DETAILS)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url


def assert_no_finding(page, width, scheme):
    """Fail with what axe finds on a page, be it serious or not."""
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page).response["violations"]
    assert not found, (page.url, [(one["id"], one["nodes"][0]["html"]) for one in found])


def corrections(server):
    """Return what people said, as the index keeps it: the state by photo and label."""
    with open_index(server.library) as index:
        said = index.store.corrections()
        ids = index.store.photos_of([one.row for one in said])
    return {(ids[one.row], one.label): one.state for one in said}


@contextmanager
def launched():
    """Run Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()

"""The report in a real browser: quiet, offline, fitting, readable in light, dark and print."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from browser_setup import OPEN_DETAILS, assert_fits, assert_no_finding
from sample_scores import Halved, sample

from labelwise.decide import Threshold
from labelwise.evaluation import RetrievalPoint, evaluate
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages
from labelwise.report import choose_examples, write_report

SECTIONS = ["glance", "calibration", "decisions", "zero-label", "search", "labels"]
SECTIONS += ["examples", "training", "how"]
LONG = "a label with a name far too long for a narrow column " + "x" * 60


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    predictions = sample(300, names=("dog", "cat", "beach", "<script>alert(1)</script>", LONG))
    rule, counts = Threshold((0.2, 0.3, 0.4, 0.5, 0.6)), [5, 50, 500, 60, 7]
    known = {"calibrated": Halved(), "train_counts": counts, "query_length": 0}
    evaluation = evaluate(predictions, Sigmoid(), rule, **known)
    points = tuple(RetrievalPoint(n, 0.9 - 0.1 * n, 0.01, 100, n, n > 2) for n in (1, 2, 3))
    evaluation = replace(evaluation, retrieval=points)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    return write_report(
        evaluation,
        tmp_path_factory.mktemp("report") / "report.html",
        title="A report",
        examples=choose_examples(predictions, Sigmoid(), ArrayImages(pixels, predictions.ids)),
        history=[{"step": n, "loss": 1 / (n + 1), "val_map": n / 9} for n in range(9)],
    )


@pytest.fixture
def visit(opened, report):
    """Return a function that opens the report and what the page complained of or asked for."""
    return partial(opened, report)


@pytest.fixture(scope="module")
def shown(opened, report):
    """The same, opened once for tests that change no more than sizes, colours and what is open."""
    return opened(report)


def test_it_fits_every_width_and_is_quiet(shown):
    page, heard = shown
    chart = page.locator("details.fold svg.chart").first
    assert not chart.is_visible(), "folded: the verdict comes first"
    assert_fits(page)
    for name in SECTIONS:
        assert page.locator(f"#{name}").is_visible()
    assert page.locator("main svg.chart").count() > 12
    assert page.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    assert heard == []


def test_it_can_be_read_aloud_with_all_that_opens_open(shown):
    page, _ = shown
    page.evaluate(OPEN_DETAILS)
    assert_no_finding(page, 390, "dark")


def test_text_and_marks_stand_out(shown, assert_readable):
    page, _ = shown
    for scheme, media in product(("light", "dark"), ("screen", "print")):
        assert_readable(page, scheme, media)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = scheme == "dark" and media == "screen"
        assert (paper == "rgb(255, 255, 255)") != dark


def test_it_reads_the_same_without_scripts(visit):
    page, heard = visit(java_script_enabled=False)
    assert page.locator("table.sortable thead th").first.text_content() == "label"
    page.locator("details.fold > summary", has_text="How").click()
    assert page.locator("#how").is_visible()
    assert heard == []


def test_labels_are_sorted_by_a_click_or_a_key(shown):
    page, _ = shown
    column = "table.sortable tbody td:nth-child(3)"
    read = f"[...document.querySelectorAll('{column}')].map((c) => Number(c.dataset.value))"
    first = page.evaluate(read)
    assert first == sorted(first)
    button = page.locator("table.sortable thead button", has_text="average precision")
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(read) == sorted(first)
    page.keyboard.press("Enter")
    assert page.evaluate(read) == sorted(first, reverse=True)


def test_it_can_be_walked_by_keyboard_and_printed(visit):
    page, _ = visit(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the numbers"
    reached = set()
    page.locator("details.fold > summary", has_text="Labels").click()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName"))
        if {"A", "SUMMARY", "DIV"} <= reached:
            break
    assert {"A", "SUMMARY", "DIV"} <= reached
    assert page.pdf(format="A4").startswith(b"%PDF")

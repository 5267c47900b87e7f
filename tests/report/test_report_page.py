"""The page as a document: escaped, whole, named for those who cannot see it, of bounded size."""

import re
from base64 import b64decode, b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser
from io import BytesIO
from itertools import product
from math import inf

import numpy as np
import pytest
import torch
from browser_setup import OPEN_DETAILS, assert_fits, assert_no_finding
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_scores import Halved, sample

from labelwise.api import train
from labelwise.base.html import tag
from labelwise.base.svg import ticks
from labelwise.decide import Threshold
from labelwise.evaluation import RetrievalPoint, evaluate
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages, FileImages
from labelwise.predictions import Predictions
from labelwise.report import choose_examples, write_report
from labelwise.report.charts import Series, line_chart
from labelwise.report.examples import copy_examples, example_section, picture_address
from labelwise.report.explain import attended, overlay
from labelwise.report.page import curves, page
from labelwise.tables import scenes

EVIL = "<img src=x onerror=alert(1)>\"' & </script><b>"


class Document(HTMLParser):
    """Elements with their attributes, and the text outside script and style."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("meta", "img"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def evaluation():
    rule, counts = Threshold((0.2, 0.3, 0.4, 0.5, 0.6)), [5, 50, 500, 60, 7]
    rows = sample(unknown=0.1)
    return evaluate(rows, Sigmoid(), rule, calibrated=Halved(), train_counts=counts)


def test_what_was_not_calibrated_is_not_called_before(evaluation):
    """Oracle: the stages that an evaluation holds."""
    for held, said, unsaid in (
        (evaluation, "Before: ECE", "As given"),
        (replace(evaluation, after=None), "As given: ECE", "Before: ECE"),
        (evaluate(sample(), None), "gives no probabilities", "Reliability"),
        (replace(evaluation, before=None), "After: ECE", "As given"),
    ):
        text = page(held, title="t")
        assert (said in text, unsaid in text) == (True, False)


@given(st.text())
@settings(max_examples=30, deadline=None)
def test_any_text_comes_back_as_it_was(text):
    text = text.replace("\r", "").replace("\0", "")  # HTML turns these into others
    document = Document(tag("p", text, title=text))
    assert document.elements == [("p", {"title": text})]
    assert document.text == text


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
@settings(max_examples=50, deadline=None)
def test_ticks_cover_what_is_drawn_and_are_few(low, span):
    marks = ticks(low, low + span)
    slack = 1e-6 * (marks[-1] - marks[0])
    assert marks[0] <= low + slack
    assert marks[-1] >= low + span - slack
    assert 2 <= len(marks) <= 8


def test_the_page_is_whole_and_asks_for_nothing(evaluation):
    text = page(evaluation, title=EVIL)
    document = Document(text)
    assert not document.open
    ids = [a["id"] for _, a in document.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    for name, attributes in document.elements:
        assert name not in ("link", "iframe", "object", "embed", "base")
        assert not any(key.startswith("on") for key in attributes)
        if "href" in attributes:
            assert attributes["href"].removeprefix("#") in ids
        if "src" in attributes:
            assert attributes["src"].startswith("data:image/")
    assert "url(" not in text
    assert "@import" not in text


def test_names_and_titles_cannot_become_markup(evaluation):
    names = (EVIL, "ok", "javascript:x", "-->", "]]>")
    predictions = replace(sample(), names=names)
    hostile = evaluate(predictions, Sigmoid(), Threshold(0.5), notes=[EVIL])
    examples = choose_examples(
        replace(predictions, ids=[f"{EVIL}{i}" for i in range(400)]), Sigmoid()
    )
    origin = {"Method": "spa", "Command": f"labelwise train {EVIL}"}
    document = Document(page(hostile, title=EVIL, examples=examples, origin=origin))
    assert document.text.count(EVIL) > 3
    assert f"MethodspaCommandlabelwise train {EVIL}" in document.text
    assert [name for name, _ in document.elements].count("script") == 1
    assert "img" not in [name for name, _ in document.elements]


def test_only_our_script_may_run(evaluation):
    text = page(evaluation, title="t")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for n, a in Document(text).elements if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_intervals_hold_their_value_and_nothing_rounds_to_certainty():
    # So well calibrated that the basic bootstrap's interval of the top-4 error lies below it.
    logits = torch.randn(400, 5, generator=torch.Generator().manual_seed(0)) * 10
    chance = torch.rand(400, 5, generator=torch.Generator().manual_seed(50))
    truth = (chance < logits.sigmoid()).to(torch.uint8)
    names, ids = tuple("abcde"), [str(n) for n in range(400)]
    result = evaluate(Predictions(ids, logits, truth, None, names, "test", Sigmoid()), Sigmoid())
    for figure in result.headline:
        assert figure.low <= figure.value <= figure.high, figure.name
    sentence = page(result, title="t").partition("were truly present")[0].rpartition("given")[2]
    assert "100%" not in sentence
    assert "99." in sentence


def test_an_infinite_log_loss_is_not_undefined():
    with np.errstate(over="ignore"):
        certain = replace(sample(), logits=sample().logits * 1e38)
    assert np.isinf(certain.logits).any()
    result = evaluate(certain, Sigmoid(), query_length=0)
    figure = next(figure for figure in result.headline if figure.name == "Log loss")
    assert (figure.value, result.is_infinite(figure)) == (None, True)
    for shown in ('<span class="number">∞</span>', "<td>∞</td>"):
        assert shown in page(result, title="t")


def test_thousands_of_labels_make_a_small_file_that_says_what_it_left_out():
    labels = 3_000
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(30, labels, generator=generator)
    truth = (torch.rand(30, labels, generator=generator) < 0.1).to(torch.uint8)
    truth[:, 500:] = 0  # average precisions and their intervals are the time that it takes
    names = tuple(f"a label with a rather long name {n}" for n in range(labels))
    ids = [str(n) for n in range(30)]
    predictions = Predictions(ids, logits, truth, None, names, "test", Sigmoid())
    result = evaluate(predictions, Sigmoid(), Threshold(0.5), query_length=0)
    text = page(result, title="t")
    assert len(text) < 500_000
    assert "out of 3,000" in text
    assert len(result.to_json()) < 1_500_000


def test_training_curves_come_from_the_journal():
    first = {"step": 1, "loss": 1.0, "lr": 0.1, "link.log_normalizer": 4}
    history = [first, {**first, "step": 2, "loss": 0.5}]
    history += [{"step": 2, "epoch": 1, "val_map": 0.5, "best": True, "val_log_loss": None}]
    history += [{"step": 4, "epoch": 2, "val_map": 0.6, "val_map_sample": float("nan")}]
    found = curves(history)
    assert list(found) == ["Loss", "Validation mAP", "Normaliser, log C", "Learning rate"]
    assert found["Validation mAP"] == {"over labels": [(2, 0.5), (4, 0.6)]}
    assert curves([]) == {}
    points = curves([{"step": n, "loss": float(n)} for n in range(10_000)])["Loss"]["training"]
    assert len(points) <= 401
    assert (points[0], points[-1]) == ((0, 0.0), (9_999, 9_999.0))


def test_one_point_has_a_span_and_dots_of_integers_lie_inside_the_frame_in_their_order():
    assert "<circle" in str(line_chart([Series("a", "c", [1.0], [2.0])], title="t", x="x", y="y"))
    chart = str(line_chart([Series("a", "c", [1, 2, 8], [1.0, 3.0, 2.0])], title="t", x="x", y="y",
                           whole=True))  # fmt: skip
    dots = [float(value) for value in re.findall(r'<circle cx="([\d.]+)"', chart)]
    left, right = map(float, re.search(r'<line x1="([\d.]+)" x2="([\d.]+)"', chart).groups())
    assert left < dots[0] < dots[1] < dots[2] < right
    assert (dots[2] - dots[0]) / (dots[1] - dots[0]) == pytest.approx(7, abs=0.01)


def test_the_price_of_a_low_mmc_stands_beside_it():
    result = evaluate(sample(), Sigmoid(), Threshold(0.5), calibrated=Halved(), query_length=0)
    text = page(result, title="x")
    price = text[text.index("The price of a low MMC") :]
    for row in result.zero_label.by_stage:
        assert f"{row.mmc:.1%}" in price
        for value in (row.log_loss_in, row.log_loss_out, row.brier_in, row.brier_out):
            assert f"{value:.4f}" in price
    labelled = replace(result, zero_label=replace(result.zero_label, by_stage=()))
    assert "The price of a low MMC" not in page(labelled, title="x")


# Which images are shown, and that their pictures are theirs.


def decoded(address):
    return Image.open(BytesIO(b64decode(address.split(",", 1)[1])))


@pytest.fixture
def predictions():
    return sample(60)


def group(groups, title):
    return next(g for g in groups if g.title == title)


def test_groups_are_what_they_say(predictions):
    groups = choose_examples(predictions, Sigmoid(), each=3)
    probs = torch.as_tensor(predictions.logits).double().sigmoid()
    present = torch.as_tensor(predictions.labels == 1)
    fit = torch.where(present, probs.log(), (-probs).log1p()).sum(1)
    labelled = present.any(1)
    for title, order in {
        "Right": fit.masked_fill(~labelled, -inf).argsort(descending=True),
        "Wrong": probs.masked_fill(present, -1).amax(1).argsort(descending=True),
        "Missed": probs.masked_fill(~present, 2).amin(1).argsort(),
    }.items():
        assert [e.id for e in group(groups, title).examples] == [f"image-{r}" for r in order[:3]]
    assert all(example.truth == () for example in group(groups, "No label, loudest").examples)
    assert len(group(groups, "Drawn at random").examples) == 3


def test_right_wrong_and_missed_are_on_that_side_of_one_half(predictions):
    """Oracle: the logits. Unknown labels are neither."""
    observed = np.ones(predictions.labels.shape, bool)
    observed[:, 1] = False
    groups = choose_examples(replace(predictions, observed=observed), Sigmoid(), each=60)
    yes, truth = predictions.logits > 0, predictions.labels == 1
    for title, rows in {
        "Wrong": (yes & ~truth & observed).any(1),
        "Missed": (~yes & truth & observed).any(1),
        "Unknown, and probable": yes[:, 1],
    }.items():
        shown = {e.id for e in group(groups, title).examples}
        assert shown == {f"image-{row}" for row in np.flatnonzero(rows)}
        assert 0 < len(shown) < 60
    shown = group(choose_examples(predictions, Sigmoid(), each=60), "Right").examples
    right = (yes == truth).all(1) & truth.any(1)
    assert {e.id for e in shown} == {f"image-{row}" for row in np.flatnonzero(right)}


def test_the_four_surest_labels_stand_with_what_is_known_of_them(predictions):
    observed = np.ones(predictions.labels.shape, bool)
    observed[:, 1] = False
    masked = replace(predictions, observed=observed)
    drawn = group(choose_examples(masked, Sigmoid()), "Drawn at random").examples
    assert drawn
    for example in drawn:
        row = int(example.id.removeprefix("image-"))
        probs = torch.as_tensor(predictions.logits[row]).double().sigmoid().tolist()
        assert [g.prob for g in example.guesses] == pytest.approx(sorted(probs, reverse=True)[:4])
        for guess in example.guesses:
            column = predictions.names.index(guess.name)
            state = "present" if predictions.labels[row, column] else "absent"
            assert guess.state == ("unknown" if column == 1 else state)


def test_pictures_are_found_by_id_and_tiny_ones_are_exact(predictions):
    pixels = np.random.default_rng(0).integers(0, 256, (61, 12, 10, 3), dtype=np.uint8)
    ids = ["another", *reversed(predictions.ids)]
    examples = choose_examples(predictions, Sigmoid(), ArrayImages(pixels, ids))[0].examples
    assert examples
    for example in examples:
        assert example.tiny
        seen = np.asarray(decoded(example.picture))
        assert np.array_equal(seen, pixels[ids.index(example.id)])


def test_copies_are_shown_beside_their_training_photos_and_lost_ones_are_left_out():
    # Oracle: the pixels of the two photos that a pair names.
    pixels = np.random.default_rng(0).integers(0, 256, (4, 12, 10, 3), dtype=np.uint8)
    images = ArrayImages(pixels, ["a", "b", "c", "d"])
    (copies,) = copy_examples([("c", "a"), ("b", "lost"), ("d", "b")], images)
    assert [[side.name for side in pair.seen] for pair in copies.examples] == [
        ["c", "a"],
        ["d", "b"],
    ]
    shown = [np.asarray(decoded(side.picture)) for side in copies.examples[0].seen]
    assert np.array_equal(shown, pixels[[2, 0]])
    text = example_section([copies])
    assert text.count("<figcaption>") == 4
    assert "True:" not in text
    assert copy_examples([("lost", "a")], images) == ()


def test_a_report_opens_with_photos_before_its_figures_and_shows_none_twice(predictions):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 10, 3), dtype=np.uint8)
    examples = choose_examples(predictions, Sigmoid(), ArrayImages(pixels, predictions.ids))
    text = page(evaluate(predictions, Sigmoid(), Threshold(0.5)), title="t", examples=examples)
    order = [text.index(mark) for mark in ('class="verdict"', ">Right<", ">Wrong<", ">Missed<")]
    order += [text.index('class="tiles"'), text.index('id="examples"')]
    assert order == sorted(order)
    assert text.count("<img") == sum(len(some.examples) for some in examples)


def test_a_large_picture_becomes_a_small_jpeg_and_one_that_cannot_be_read_is_left_out(
    predictions, tmp_path
):
    picture = decoded(picture_address(Image.new("RGB", (4000, 1000), "red")))
    assert (picture.format, picture.size) == ("JPEG", (200, 50))
    images = FileImages(tmp_path, predictions.ids)
    assert choose_examples(predictions, Sigmoid(), images)[0].examples[0].picture is None
    assert choose_examples(predictions, Sigmoid())[0].examples[0].picture is None


def test_a_query2label_report_shows_where_the_two_surest_labels_were_seen(tmp_path):
    # Oracle: the attention of the photo computed alone, drawn over the picture the model saw.
    table = scenes(8, 4, 8, size=64)
    options = {"head": "query2label", "head_options": {"width": 16, "feedforward": 16}}
    options |= {"epochs": 1, "backbone": "test_resnet", "image_size": 64, "calibrate": "none"}
    run = train(table, tmp_path / "run", method="bce", progress=False, **options)
    page = run.report.read_text()
    assert "where the queries of the two surest looked" in page
    model, predictions = run.model(), run.predictions("test")
    groups = choose_examples(predictions, model.link, table.images, each=2, predictor=model)
    example = group(groups, "Drawn at random").examples[0]
    assert [seen.name for seen in example.seen] == [guess.name for guess in example.guesses[:2]]
    row = list(table.ids).index(example.id)
    picture = next(iter(attended(model, table.images, [row]))).picture
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    with torch.no_grad():
        _, features = model.model.outputs_and_features(model.transform.inputs(pixels))
        maps = model.model.head.attention(features)[0].numpy()
    assert maps.shape == (10, 2, 2)
    for seen in example.seen:
        drawn = overlay(picture, maps[model.space.column(seen.name)])
        np.testing.assert_allclose(decoded(seen.picture), np.asarray(drawn), atol=1)
    plain = choose_examples(predictions, model.link, table.images, each=2)
    assert not any(example.seen for one in plain for example in one.examples)


# The report in a real browser: quiet, offline, fitting, readable in light, dark and print.

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

"""The page as a document: escaped, whole, named for those who cannot see it, of bounded size."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_scores import Halved, sample

from labelwise.base.html import tag
from labelwise.base.svg import ticks
from labelwise.decide import Threshold
from labelwise.evaluation import evaluate
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions
from labelwise.report import choose_examples
from labelwise.report.charts import Series, line_chart
from labelwise.report.page import curves, page

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

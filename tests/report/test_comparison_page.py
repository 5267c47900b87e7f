"""The page of a comparison: the comparison's own figures, whole, escaped, quiet in a browser."""

import re
from dataclasses import replace
from html import unescape
from itertools import product
from math import inf
from xml.etree import ElementTree

import numpy as np
import pytest
from browser_setup import assert_fits

from labelwise.base.svg import LETTER, Axis, Frame
from labelwise.papers.comparison import SOLVED, Comparison
from labelwise.papers.measures import MEASURES
from labelwise.report import write_comparison
from labelwise.report.charts import Dots, dot_plot, limits, save_charts
from labelwise.report.comparison import (
    GLOSS,
    GROUPS,
    LENGTHS,
    best_of,
    comparison_page,
    paid,
    standings,
)

EVIL = "<img src=x onerror=alert(1)>\"' & </script><b>"
SECTIONS = ["verdicts", "measures", "price", "search", "table", "settings", "how"]
DRAWN = [name for names in (*GROUPS.values(), LENGTHS.values()) for name in names]


def made(methods=("bce", "asl", "two-way"), seeds=(0, 1, 2), without=("GPU MB",)):
    """Return a comparison whose methods lie 0.1 apart, and whose "two-way" has no link.

    Columns that hold one of the words ``without`` are not there.
    """
    rng = np.random.default_rng(0)
    figures = {
        method: {
            seed: {
                name: 0.2 + 0.1 * number + 0.02 * rng.normal()
                for name in MEASURES
                if not any(word in name for word in without)
                and not (method == "two-way" and "before" in name)
            }
            for seed in seeds
        }
        for number, method in enumerate(methods)
    }
    settings = {method: {"lr": 0.01 + k, "gamma": f"{k}!"} for k, method in enumerate(methods)}
    return Comparison(figures, settings)


def charts(text):
    """Return the charts by title."""
    found = re.findall(r'<svg viewBox[^>]*role="img".*?</svg>', text, re.DOTALL)
    titles = [unescape(re.search(r"<title>(.*?)</title><desc>.+?</desc>", c)[1]) for c in found]
    assert len(set(titles)) == len(titles)
    return dict(zip(titles, found, strict=True))


def words(markup):
    return unescape(re.sub(r"<[^>]*>", "|", markup))


@pytest.fixture(scope="module")
def comparison():
    return made()


@pytest.fixture(scope="module")
def text(comparison):
    return comparison_page(comparison, data="scenes", tries=4)


def test_the_full_table_is_the_comparisons_own(comparison, text):
    header, rows = comparison.cells(list(MEASURES))
    body = text[text.index('id="table"') : text.index("Every run")]
    lines = [re.findall(r"<t[hd].*?</t[hd]>", line) for line in re.findall(r"<tr>.*?</tr>", body)]
    cells = [[unescape(re.sub("<.*?>", "", cell)) for cell in line] for line in lines]
    assert cells[0] == ["", *(row[0] for row in rows)]
    assert cells[1:] == [[name, *(row[k] for row in rows)] for k, name in enumerate(header) if k]
    bold = re.findall(r"<td data-value=\"\"><b>(.*?)</b>", body)
    assert len(bold) == len(header) - 1


def test_every_measure_is_explained_and_plotted_with_its_figures(comparison, text):
    assert set(GLOSS) == set(MEASURES)
    drawn = charts(text)
    for name in DRAWN:
        chart, measure = drawn[f"{name} of each method"], MEASURES[name]
        for method, by_seed in comparison.column(name).items():
            scale = 100 if measure.percent else 1
            dots = [f"{method}, seed {s}: {scale * v:.6g}<" for s, v in by_seed.items()]
            assert all(dot in chart for dot in dots)
        for row in comparison.cells([name])[1]:
            assert (f"|{row[1]}|" in words(chart)) == (row[1] != "–"), name
        way = "higher is better →" if measure.higher_is_better else "← lower is better"
        assert way in chart


def test_marks_stand_where_the_axis_says():
    row = Dots("a", {"seed 0": 10.0, "seed 1": 20.0}, 15.0, 12.0, 18.0, "15")
    chart = dot_plot([row], title="t", x="x", description="d")
    ticks = {
        float(v): float(x)
        for x, v in re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="tick mid">([\d.]+)<', chart)
    }
    (low, at_low), *_, (high, at_high) = sorted(ticks.items())

    def place(value):
        return at_low + (at_high - at_low) * (value - low) / (high - low)

    xs = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', chart)]
    assert xs == pytest.approx([place(10), place(20), place(15)], abs=0.05)
    bar = re.search(r'<line x1="([\d.]+)" x2="([\d.]+)"[^>]*class="reach', chart)
    assert [float(bar[1]), float(bar[2])] == pytest.approx([place(12), place(18)], abs=0.05)


def test_a_wide_interval_does_not_squeeze_the_values():
    row = Dots("a", {"seed 0": 10.0, "seed 1": 11.0}, 10.5, -90.0, 120.0, "10.5")
    assert limits([row]) == (9.0, 12.0)
    assert dot_plot([row], title="t", x="x", description="d").count('class="line absent"') == 2
    assert limits([replace(row, values={"seed 0": 10.5}, low=-np.inf, high=np.inf)])[0] < 10.5


def test_verdicts_headline_and_knobs_are_said(comparison, text):
    shown = unescape(text)
    for sentence in comparison.verdicts():
        assert f"<li>{sentence}</li>" in shown
    assert "<h1>scenes: methods compared</h1>" in shown
    assert "3 methods: bce, asl, two-way. 3 seeds: 0, 1, 2. Each method had 4 tries" in shown
    assert "the recipe as given; no learning rate or option was tuned" in comparison_page(
        comparison, tries=0
    )
    assert " tries" not in comparison_page(comparison)
    a, *others = comparison.settings
    settings = {**comparison.settings, a: {"trained": SOLVED}}
    mixed = comparison_page(replace(comparison, settings=settings), tries=0)
    assert f"{' and '.join(others)}: trained with the recipe as given" in mixed
    assert "Every method was trained" not in mixed
    settings = {name: {"trained": SOLVED} for name in settings}
    alike = comparison_page(replace(comparison, settings=settings), tries=0)
    assert "Every method was solved to its optimum; L2 weights were chosen" in alike
    part = words(text[text.index('id="settings"') :])
    for method, values in comparison.settings.items():
        assert "||".join([method, *map(str, values.values())]) in part


def test_standings_follow_the_paired_test():
    """The differences to "a": 0.20 on every seed but a trifle, and 0.01 with either sign."""
    values = {"a": [0.5, 0.6, 0.7], "b": [0.3, 0.401, 0.499], "c": [0.51, 0.57, 0.69]}
    figures = {
        method: {seed: {"mAP@class": v, "ECE after": v} for seed, v in enumerate(column)}
        for method, column in values.items()
    }
    compared = Comparison(figures, {})
    assert standings(compared, "mAP@class") == {"a": "best", "b": "behind", "c": "level"}
    assert best_of(compared, "ECE after") == "b"
    assert standings(made(methods=("bce",)), "mAP@class") == {"bce": "only"}
    text = comparison_page(compared)
    assert "no significant difference from c<" in text
    chart = charts(text)["mAP@class of each method"]
    for method, style in {"a": "after", "b": "absent", "c": "after hollow"}.items():
        mean = f"{100 * compared.intervals('mAP@class')[method].mean:.2f}"
        assert re.search(rf'class="dot {style}"><title>{method}: {mean}', chart)


def test_mmc_is_paid_on_the_link_it_was_read_from(comparison):
    found = paid(comparison, "IN")
    assert found["bce"][0] == "log loss IN before"
    assert found["two-way"][0] == "log loss IN after"
    column = comparison.column("log loss IN after")["two-way"]
    assert found["two-way"][2] == pytest.approx(np.mean(list(column.values())))
    mmc = 100 * comparison.intervals("zero-label MMC")["bce"].mean
    assert found["bce"][1] == pytest.approx(mmc)


FAIR = {"zero-label MMC": 0.4, "log loss IN before": 0.2, "log loss OUT before": 0.2}


def test_the_price_names_the_quietest_and_what_it_costs():
    dear = {"zero-label MMC": 0.1, "log loss IN before": 0.3, "log loss OUT before": 0.1}
    text = comparison_page(Comparison({"dear": {0: dear}, "fair": {0: FAIR}}, {}))
    assert "dear has the lowest MMC, 10.00 %, with a log loss IN of 0.3000: 50 % above" in text
    assert "There is no significant difference in MMC from fair." in text
    free = FAIR | {"log loss IN before": 0.4}
    text = comparison_page(Comparison({"dear": {0: dear}, "fair": {0: free}}, {}))
    assert "and the lowest log loss IN, 0.3000: it pays nothing for it" in text


def test_an_infinite_price_is_not_covered_by_the_fitted_links():
    cut = {"zero-label MMC": 0.1, "log loss IN before": inf, "log loss IN after": 0.1234}
    compared = Comparison({"cut": {0: cut}, "fair": {0: FAIR}}, {})
    text = comparison_page(compared)
    section = text[text.index('id="price"') : text.index('id="table"')]
    assert "cut has the lowest MMC, 10.00 %, and an infinite log loss IN" in section
    assert "∞" in section
    assert [loss for _, _, loss in paid(compared, "IN").values()] == [inf, 0.2]


def test_without_zero_label_images_or_retrieval_their_parts_are_left_out():
    text = comparison_page(made(without=("zero-label", "OUT", "retrieval")))
    there = [part in text for part in ('id="price"', "#price", 'id="search"', 'id="measures"')]
    assert there == [False, False, False, True]


def test_runs_without_a_value_are_named(comparison):
    figures = {m: dict(by_seed) for m, by_seed in comparison.figures.items()}
    figures["asl"][1] = {k: v for k, v in figures["asl"][1].items() if k != "log loss before"}
    text = comparison_page(replace(comparison, figures=figures))
    assert "own link. Undefined: asl (1 of 3 seeds), two-way." in text
    assert ">asl<" not in charts(text)["log loss before of each method"]
    assert ">asl<" in charts(text)["log loss after of each method"]


@pytest.mark.parametrize(
    ("methods", "seeds"), [(("bce",), (0, 1)), (tuple("abcdef"), (0,)), (("bce",), (0, 1, 2))]
)
def test_few_seeds_and_any_number_of_methods_make_a_page(methods, seeds):
    text = comparison_page(replace(made(methods, seeds), redrawn=0.5))
    assert len(charts(text)) == len(DRAWN)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert ('class="reach' in text) == (len(seeds) > 2)
    if len(methods) > 1 and len(seeds) == 1:
        assert "one seed cannot tell luck from skill" in text


def test_odd_names_cannot_become_markup():
    odd = made(methods=(EVIL, "]]>", "javascript:x"))
    odd = replace(odd, settings={EVIL: {EVIL: EVIL}})
    text = comparison_page(odd, data=EVIL, tries=2)
    assert (EVIL in text, "<img" in text, text.count("<script>")) == (False, False, 1)
    assert unescape(text).count(EVIL) > 20


def test_close_ticks_differ_and_long_numbers_leave_room_for_the_name_of_their_axis():
    """The name is written upwards at the left edge, 11 units high around x = 11."""
    names = [name for _, name in Axis.upto(95.64, "", low=95.61).ticks]
    assert len(set(names)) == len(names)
    across = Axis.upto(1.0, "x")
    for high in (1.0, 0.0105, 0.00012345):
        frame = Frame(across, Axis.upto(high, "log loss"))
        widest = LETTER * max(len(text) for _, text in frame.y.ticks)
        assert frame.left - 6 - widest >= 11 + 11 / 2


def test_charts_of_a_page_are_complete_svg_files(comparison, tmp_path):
    page = write_comparison(comparison, tmp_path / "page.html", data="d", tries=1)
    paths = save_charts(page.read_text("utf-8"), tmp_path / "charts")
    names = {path.stem for path in paths}
    assert {"map-class-of-each-method", "retrieval-n-1-of-each-method"} <= names
    assert len(names) == len(paths) == page.read_text("utf-8").count('class="chart"')
    for path in paths:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    methods = ("bce", "asl", "two-way", "softmax-or-none", EVIL, *(f"method-{n}" for n in range(6)))
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    return write_comparison(made(methods, seeds=(0, 1)), path, data=EVIL * 3, tries=3)


@pytest.fixture(scope="module")
def shown(opened, written):
    """The page and what it complained of; tests change sizes, colours and the order of runs."""
    return opened(written)


def test_it_fits_every_width_and_is_quiet(shown):
    page, heard = shown
    assert_fits(page)
    for name in SECTIONS:
        assert page.locator(f"#{name}").is_visible()
    assert page.locator("main svg.chart").count() == len(DRAWN)
    assert heard == []


def test_text_and_marks_stand_out(shown, assert_readable):
    page, _ = shown
    page.set_viewport_size({"width": 690, "height": 900})
    for scheme, media in product(("light", "dark"), ("screen", "print")):
        assert_readable(page, scheme, media)


def test_names_and_numbers_of_a_plot_do_not_overlap(shown):
    page, _ = shown
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(media="screen")
    overlaps = page.evaluate("""() => [...document.querySelectorAll(".plot svg")].filter((svg) => {
      const boxes = [...svg.querySelectorAll("circle, text.name")].map((n) => n.getBBox());
      const texts = [...svg.querySelectorAll("text.name")].map((n) => n.getBBox());
      return texts.some((a) => boxes.some((b) => (a.x !== b.x || a.y !== b.y)
        && a.x < b.x + b.width && b.x < a.x + a.width && a.y + 3 < b.y + b.height
        && b.y + 3 < a.y + a.height));
    }).length""")
    assert overlaps == 0

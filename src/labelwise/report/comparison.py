"""The page of a comparison: its parts in the order in which they are read, their charts, its file.

In each measure a method is the best, or not significantly different from it, or behind it.
"""

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from math import isfinite, isinf
from pathlib import Path
from typing import Literal

from labelwise.base.files import write_text
from labelwise.base.markup import (
    INFINITE,
    UNDEFINED,
    Cell,
    Markup,
    details,
    document,
    join,
    paragraph,
    section,
    side_by_side,
    table,
    tag,
)
from labelwise.base.text import counted
from labelwise.papers.comparison import (
    JUDGED,
    Comparison,
    SeedMean,
    listed,
    seed_mean,
    show_figure,
)
from labelwise.papers.measures import MEASURES
from labelwise.report.charts import Dots, dot_plot

FEW = 3  # methods that a tile names
_WORDS = tomllib.loads(files("labelwise.report").joinpath("comparison.toml").read_text("utf-8"))
GLOSS: dict[str, str] = _WORDS["gloss"]  # what a measure is, in a few words
GROUPS: dict[str, list[str]] = _WORDS["groups"]
UNITS = "per cent but log loss, Brier, seconds and MB"


def write_comparison(
    comparison: Comparison, path: str | Path, *, data: str = "", tries: int | None = None
) -> Path:
    """Write the page of a comparison to ``path`` and return it."""
    write_text(Path(path), comparison_page(comparison, data=data, tries=tries))
    return Path(path)


def comparison_page(comparison: Comparison, *, data: str = "", tries: int | None = None) -> str:
    """Return the whole page as text; ``data`` and ``tries`` are said where they are known."""
    methods = list(comparison.figures)
    seeds = sorted({seed for by_seed in comparison.figures.values() for seed in by_seed})
    facts = (
        f"{counted(len(methods), 'method')}: {', '.join(methods)}.",
        f"{counted(len(seeds), 'seed')}: {', '.join(map(str, seeds))}.",
        comparison.unequal(),
        _tuned(comparison, tries),
    )
    parts = [
        ("verdicts", "What came out", _verdicts(comparison)),
        ("measures", "Measures", _measures(comparison)),
        ("price", "Price of a low MMC", _price(comparison)),
        ("search", "Search", _search(comparison)),
        ("table", "All numbers", _all_numbers(comparison)),
        ("settings", "Settings", _chosen_settings(comparison)),
        ("how", "How", _how(comparison, tries)),
    ]
    title = f"{data}: methods compared" if data else "Methods compared"
    return document(title, " ".join(filter(None, facts)), parts)


def _verdicts(comparison: Comparison) -> Markup:
    tiles = [_verdict_tile(comparison, name) for name in JUDGED if best_of(comparison, name)]
    said = [tag("li", str(text)) for text in (*comparison.choices, *comparison.verdicts())]
    parts = [tag("ul", *tiles, class_="tiles three")] if tiles else []
    parts.append(tag("ul", *said, class_="verdicts"))
    link = tag("a", "How everything was computed", href="#how")
    return section("verdicts", "What came out", *parts, paragraph(link, ".", class_="small muted"))


def _verdict_tile(comparison: Comparison, name: str) -> Markup:
    best = best_of(comparison, name) or ""
    way = "highest" if MEASURES[name].higher_is_better else "lowest"
    unit = " %" if MEASURES[name].percent else ""
    level = [m for m, standing in standings(comparison, name).items() if standing == "level"]
    doubt = "significantly better than all others"
    if level:
        listed = ", ".join(level) if len(level) <= FEW else f"{len(level)} others"
        doubt = f"no significant difference from {listed}"
    if min((gap.over_seeds.n for gap in comparison.differences(name)), default=0) < 2:
        doubt = "one seed cannot tell luck from skill"
    return tag(
        "li",
        tag("span", f"{name}, {way}", class_="what"),
        tag("span", best, class_="number word"),
        tag("span", figure_text(comparison, name, best) + unit, class_="range"),
        tag("span", doubt, class_="range"),
        tag("span", GLOSS[name], class_="gloss"),
        class_="tile",
    )


def _all_numbers(comparison: Comparison) -> Markup:
    header, cells = comparison.cells(list(MEASURES))
    shown = [name for name in MEASURES if any(comparison.column(name).values())]
    rows: list[list[str | Cell]] = [
        [title, *(Cell(row[position], strong=standing.get(row[0]) == "best") for row in cells)]
        for position, (title, name) in enumerate(zip(header[1:], shown, strict=True), 1)
        for standing in [standings(comparison, name)]
    ]
    runs: list[list[str | Cell]] = []
    for method, by_seed in comparison.figures.items():
        for seed, figures in by_seed.items():
            values = [(figures.get(name), MEASURES[name].percent) for name in shown]
            runs.append([method, Cell(str(seed), seed), *(_cell(*value) for value in values)])
    units = f"One row per run, {UNITS}."
    every = table(["method", "seed", *shown], runs, caption=units, sortable=True, pinned=True)
    units = f"Mean ± half the 95 % interval, {UNITS}. Bold: the best mean."
    means = table(["", *comparison.figures], rows, caption=units, pinned=True)
    return section("table", "All numbers", means, details("Every run", every))


def _cell(value: float | None, percent: bool) -> Cell:
    if value is None or isinf(value):
        return Cell(UNDEFINED if value is None else INFINITE)
    return Cell(show_figure(seed_mean([value]), percent), value)


def _chosen_settings(comparison: Comparison) -> Markup | None:
    names = list(dict.fromkeys(name for values in comparison.settings.values() for name in values))
    if not names:
        return None
    rows = [
        [method, *(str(values.get(name, UNDEFINED)) for name in names)]
        for method, values in comparison.settings.items()
    ]
    words = paragraph("What each method was trained with; everything else is the same for all.")
    chosen = table(["method", *names], rows, caption="A dash: the method has no such setting.")
    return section("settings", "Settings chosen", words, chosen)


def _how(comparison: Comparison, tries: int | None = None) -> Markup:
    texts = {"Tries": _tuned(comparison, tries), **_WORDS["rules"]}
    entries = [join(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    measures = []
    for name, measure in MEASURES.items():
        if any(comparison.column(name).values()):
            arrow = "↑" if measure.higher_is_better else "↓"
            measures.append(join(tag("dt", f"{name} {arrow}"), tag("dd", f"{GLOSS[name]}.")))
    words = paragraph("An arrow up: higher is better; down: lower is.", class_="muted")
    explained = tag("h3", "The measures"), words, tag("dl", *measures, class_="how")
    rules = tag("dl", *entries, class_="how")
    return section("how", "How everything was computed", rules, *explained)


def _tuned(comparison: Comparison, tries: int | None) -> str:
    if tries is None:
        return ""
    if tries < 2:
        solved = comparison.solved
        stepped = [name for name in comparison.figures if name not in solved]
        if not stepped:
            return (
                "Every method was solved to its optimum; L2 weights were chosen on held-out rows."
            )
        who = f"{listed(stepped)}:" if solved else "Every method was"
        return f"{who} trained with the recipe as given; no learning rate or option was tuned."
    return (
        f"Each method had {tries} tries on the first seed, the recipe as given among them; the "
        "best on validation was trained on every seed."
    )


Standing = Literal["best", "level", "behind", "only"]


def present(comparison: Comparison, name: str) -> dict[str, SeedMean]:
    """Return the mean and interval of a column, of the methods that have a value there."""
    intervals = comparison.intervals(name)
    return {method: value for method, value in intervals.items() if isfinite(value.mean)}


def standings(comparison: Comparison, name: str) -> dict[str, Standing]:
    """Return the standing of every method that has a value; a single one is ``only``."""
    gaps = comparison.differences(name)
    values = present(comparison, name)
    if not gaps:
        return dict.fromkeys(values, "only")
    behind = {gap.first for gap in gaps if gap.distinguishable}
    best = gaps[0].second
    return {
        method: "best" if method == best else "behind" if method in behind else "level"
        for method in values
    }


def best_of(comparison: Comparison, name: str) -> str | None:
    """Return the method with the best mean, if there are two to choose from."""
    places = standings(comparison, name)
    return next((method for method, standing in places.items() if standing == "best"), None)


def figure_text(comparison: Comparison, name: str, method: str) -> str:
    """Return a figure as the comparison's own table says it."""
    return show_figure(comparison.intervals(name)[method], MEASURES[name].percent)


STYLES = {"best": "after", "only": "after", "level": "after hollow", "behind": "absent"}
WORDS = {"best": ", best", "level": ", no significant difference from the best"}


def _measures(comparison: Comparison) -> Markup | None:
    groups = []
    for title, names in GROUPS.items():
        figures = dot_figures(comparison, names)
        if figures:
            groups.append(join(tag("h3", title), side_by_side(*figures)))
    if not groups:
        return None
    keys = []
    for class_, text in _WORDS["standings"].items():
        mark = tag("circle", cx=7, cy=7, r=4.6, class_=f"dot {class_}")
        keys.append(tag("li", tag("svg", mark, viewbox="0 0 14 14", aria_hidden="true"), text))
    key = paragraph(_WORDS["text"]["measures"]), tag("ul", *keys, class_="keys")
    return section("measures", "Measure by measure", *key, *groups)


def dot_figures(comparison: Comparison, names: Sequence[str]) -> list[Markup]:
    """Return a figure for each of the measures that some method has a value of."""
    return [_measure_figure(comparison, name) for name in names if present(comparison, name)]


def _measure_figure(comparison: Comparison, name: str) -> Markup:
    higher, by = MEASURES[name].higher_is_better, 100.0 if MEASURES[name].percent else 1.0
    column, places = comparison.column(name), standings(comparison, name)
    rows = [
        Dots(
            name=method,
            values={f"seed {seed}": by * value for seed, value in column[method].items()},
            mean=by * value.mean,
            low=by * value.low,
            high=by * value.high,
            text=figure_text(comparison, name, method),
            class_=STYLES[places[method]],
            strong=places[method] == "best",
        )
        for method, value in present(comparison, name).items()
    ]
    way = "higher is better" if higher else "lower is better"
    spoken = [f"{row.name} {row.text}{WORDS.get(places[row.name], '')}" for row in rows]
    title, x = f"{name} of each method", f"{way} →" if higher else f"← {way}"
    described = f"{'; '.join(spoken)}. {way.capitalize()}."
    chart = dot_plot(rows, title=title, x=x, description=described)
    unit = "; per cent" if MEASURES[name].percent else ""
    words = f" {GLOSS[name]}{unit}.{_methods_without(comparison, name)}"
    caption = tag("figcaption", tag("b", f"{name} {'↑' if higher else '↓'}"), words)
    return tag("figure", caption, chart, class_="plot")


def _methods_without(comparison: Comparison, name: str) -> str:
    lost: dict[str, list[str]] = {"Undefined": [], "Infinite": []}
    for method, by_seed in comparison.figures.items():
        undefined = sum(name not in row for row in by_seed.values())
        infinite = sum(isinf(row.get(name, 0.0)) for row in by_seed.values())
        for word, count in (("Undefined", undefined), ("Infinite", infinite)):
            some = f" ({count} of {len(by_seed)} seeds)" if count < len(by_seed) else ""
            lost[word] += [f"{method}{some}"] if count else []
    return "".join(f" {word}: {', '.join(names)}." for word, names in lost.items() if names)


MMC = "zero-label MMC"
PARTS = ("IN", "OUT")


def _price(comparison: Comparison) -> Markup | None:
    points = {side: paid(comparison, side) for side in PARTS}
    if not any(points.values()):
        return None
    parts = [paragraph(_WORDS["text"]["price"])]
    if len(points["IN"]) > 1:
        level = [m for m, standing in standings(comparison, MMC).items() if standing == "level"]
        doubt = f" There is no significant difference in MMC from {', '.join(level)}."
        verdict = _price_verdict(points["IN"]) + (doubt if level else "")
        parts.append(paragraph(verdict, class_="note"))
    parts.append(_price_table(comparison, points))
    return section("price", "The price of a low MMC", *parts)


def paid(comparison: Comparison, part: str) -> dict[str, tuple[str, float, float]]:
    """Return by method the column of its log loss, its MMC in per cent and that log loss.

    Both are read from a method's own link, or from the fitted one where it has none.
    """
    points = {}
    for method, quiet in comparison.column(MMC).items():
        column = f"log loss {part} {'before' if _has_own_link(comparison, method) else 'after'}"
        losses = comparison.column(column)[method]
        if quiet and losses:
            mmc = 100 * seed_mean(list(quiet.values())).mean
            points[method] = column, mmc, seed_mean(list(losses.values())).mean
    return points


def _has_own_link(comparison: Comparison, method: str) -> bool:
    rows = comparison.figures[method].values()
    return any(name.endswith(" before") for row in rows for name in row)


def _price_verdict(points: dict[str, tuple[str, float, float]]) -> str:
    (quiet, (_, low, loss)) = min(points.items(), key=lambda point: point[1][1])
    (sharp, (_, mmc, best)) = min(points.items(), key=lambda point: point[1][2])
    begin = f"{quiet} has the lowest MMC, {low:.2f} %"
    if not isfinite(loss):
        reason = "it answers 0 or 1 on some image and is wrong"
        return f"{begin}, and an infinite log loss IN: {reason}."
    if quiet == sharp:
        return f"{begin}, and the lowest log loss IN, {loss:.4f}: it pays nothing for it."
    more = f"{100 * (loss / best - 1):.0f} % above" if best > 0 else "above"
    cost = f"{loss:.4f}: {more} the lowest, {best:.4f} of {sharp}, whose MMC is {mmc:.2f} %"
    return f"{begin}, with a log loss IN of {cost}."


def _price_table(
    comparison: Comparison, points: dict[str, dict[str, tuple[str, float, float]]]
) -> Markup:
    rows = []
    for method in present(comparison, MMC):
        columns = [by_method.get(method, (None,))[0] for by_method in points.values()]
        losses = (figure_text(comparison, c, method) if c else UNDEFINED for c in columns)
        link = "own" if _has_own_link(comparison, method) else "fitted"
        rows.append([method, figure_text(comparison, MMC, method), *losses, link])
    head = ["method", "MMC, %", *(f"log loss {side}" for side in PARTS), "link"]
    words = "Probabilities of the method's own link, or of the fitted one where it has none."
    return table(head, rows, caption=words, pinned=True)


LENGTHS = {1: "retrieval n=1", 2: "retrieval n=2", 3: "retrieval n=3"}


def _search(comparison: Comparison) -> Markup | None:
    figures = dot_figures(comparison, tuple(LENGTHS.values()))
    if not figures:
        return None
    return section("search", "Search", paragraph(_WORDS["text"]["search"]), side_by_side(*figures))

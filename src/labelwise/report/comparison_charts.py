"""The charts of a comparison: each measure by method, the price of a low MMC, and search.

A method stands best in a column, or is not told apart from the best, or is behind it. MMC is read
from a method's own link, or from the fitted one where it has none; so is the log loss beside it,
or the two would not belong together. An own link that answers 0 or 1 and is wrong has an infinite
one, and no place in the charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isinf
from typing import Literal

from labelwise.markup import UNDEFINED, Markup, figure, join, paragraph, section, table, tag
from labelwise.papers.comparison import Comparison, show_figure
from labelwise.papers.measures import MEASURES
from labelwise.papers.statistics import SeedMean, seed_mean
from labelwise.report.charts import Dots, NamedPoint, Series, dot_plot, line_chart, named_points

_STAGES = {"before": "own link", "after": "the same fit for all"}
_ERRORS = {
    "ECE": "Mean gap of probability and share present, weighted by entries",
    "ACE": "Mean gap of probability and share present, bins alike",
    "MCE": "Largest gap of probability and share present",
}
_SCORES = {
    "log loss": "Mean log loss in nats per entry",
    "Brier": "Mean squared error of the probabilities",
}
_PARTS = {"": "", " IN": ", images with labels", " OUT": ", images without"}

# What a measure is, in a few words.
GLOSS: dict[str, str] = {
    "mAP@class": "Average precision, mean over labels",
    "mAP@sample": "Average precision, mean over images",
    "macro F1": "F1, mean over labels, one threshold chosen on validation",
    **{
        f"{name} {stage}": f"{text}; {words}"
        for name, text in _ERRORS.items()
        for stage, words in _STAGES.items()
    },
    **{
        f"{name}{part} {stage}": f"{text}{where}; {words}"
        for name, text in _SCORES.items()
        for part, where in _PARTS.items()
        for stage, words in _STAGES.items()
    },
    "top accuracy": "Images with labels whose surest label is right",
    "zero-label AUROC": "Chance that an image with labels has a larger top probability than one "
    "without",
    "zero-label MMC": "Mean largest probability on images without labels",
    "promised": "Share of a label's images on lists of which at most 10 % is expected to be wrong",
    **{f"retrieval n={n}": f"Mean average precision of queries of length {n}" for n in (1, 2, 3)},
    "seconds": "Time of one run, as this machine was loaded",
    "host MB": "Largest memory of one run's process",
    "GPU MB": "Largest memory of one run on the GPU",
}

Standing = Literal["best", "level", "behind", "only"]

TONES = 8  # colours of the style sheet; further methods have them again, dashed


def present(comparison: Comparison, name: str) -> dict[str, SeedMean]:
    """Return the mean and interval of a column, of the methods that have a value there."""
    found = comparison.intervals(name)
    return {method: value for method, value in found.items() if isfinite(value.mean)}


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
    return next((method for method, place in places.items() if place == "best"), None)


def runs_shared(comparison: Comparison, name: str) -> int:
    """Return on how many seeds methods and the best one were compared, at the least."""
    return min((gap.over_seeds.n for gap in comparison.differences(name)), default=0)


def scale(name: str) -> float:
    """Return what a column's values are multiplied by to be shown."""
    return 100.0 if MEASURES[name].percent else 1.0


def figure_text(comparison: Comparison, name: str, method: str) -> str:
    """Return a figure as the comparison's own table says it."""
    return show_figure(comparison.intervals(name)[method], MEASURES[name].percent)


def tone(comparison: Comparison, method: str) -> str:
    """Return the class that gives a method its colour on this page."""
    number = list(comparison.figures).index(method)
    return f"m{number % TONES}" + (" dashed" if number >= TONES else "")


GROUPS: dict[str, tuple[str, ...]] = {
    "Ranking and decisions": ("mAP@class", "mAP@sample", "macro F1"),
    "Probabilities as they are": ("ECE before", "ACE before", "MCE before", "log loss before"),
    "Probabilities after the same calibration": ("ECE after", "log loss after", "Brier after"),
    "Images without labels": ("zero-label AUROC", "zero-label MMC"),
}
STYLES = {"best": "after", "only": "after", "level": "after hollow", "behind": "absent"}
WORDS = {"best": ", best", "only": "", "level": ", not told apart from the best", "behind": ""}


def measures(comparison: Comparison) -> Markup | None:
    """Return the section, or nothing where no measure has a value."""
    groups = []
    for title, names in GROUPS.items():
        figures = dot_figures(comparison, names)
        if figures:
            groups.append(join(tag("h3", title), tag("div", *figures, class_="figures")))
    if not groups:
        return None
    return section("measures", "Measure by measure", _standing_key(), *groups)


def dot_figures(comparison: Comparison, names: Sequence[str]) -> list[Markup]:
    """Return a figure for each of the measures that some method has a value of."""
    return [_measure_figure(comparison, name) for name in names if present(comparison, name)]


def _measure_figure(comparison: Comparison, name: str) -> Markup:
    higher, by = MEASURES[name].higher_is_better, scale(name)
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
    spoken = [f"{row.name} {row.text}{WORDS[places[row.name]]}" for row in rows]
    chart = dot_plot(
        rows,
        title=f"{name} of each method",
        x=f"{way} →" if higher else f"← {way}",
        description=f"{'; '.join(spoken)}. {way.capitalize()}.",
    )
    unit = "; per cent" if MEASURES[name].percent else ""
    arrow = "↑" if higher else "↓"
    caption = tag(
        "figcaption",
        tag("b", f"{name} {arrow}"),
        f" {GLOSS[name]}{unit}.{_methods_without(comparison, name)}",
    )
    return tag("figure", caption, chart, class_="plot")


def _methods_without(comparison: Comparison, name: str) -> str:
    """Say which methods have no finite value; one seed without is enough."""
    lost: dict[str, list[str]] = {"Undefined": [], "Infinite": []}
    for method, by_seed in comparison.figures.items():
        counts = {
            "Undefined": sum(name not in row for row in by_seed.values()),
            "Infinite": sum(isinf(row.get(name, 0.0)) for row in by_seed.values()),
        }
        for word, count in counts.items():
            some = f" ({count} of {len(by_seed)} seeds)" if count < len(by_seed) else ""
            lost[word] += [f"{method}{some}"] if count else []
    return "".join(f" {word}: {', '.join(names)}." for word, names in lost.items() if names)


def _standing_key() -> Markup:
    entries = (
        ("after", "the best mean"),
        ("after hollow", "not told apart from the best"),
        ("absent", "told apart from the best"),
    )
    keys = [
        tag(
            "li",
            tag(
                "svg",
                tag("circle", cx=7, cy=7, r=4.6, class_=f"dot {class_}"),
                viewbox="0 0 14 14",
                aria_hidden="true",
            ),
            text,
        )
        for class_, text in entries
    ]
    return join(
        paragraph(
            "Small dots are runs, one per seed; the large dot is their mean, the bar its 95 % "
            "interval over seeds. An arrowhead at its end: the interval goes on. Bars that "
            "overlap decide nothing: methods are told apart by paired differences."
        ),
        tag("ul", *keys, class_="keys"),
    )


MMC = "zero-label MMC"
PARTS = {"IN": "with labels", "OUT": "without labels"}


@dataclass(frozen=True)
class Paid:
    """One method's MMC in per cent against one log loss: the means, and each seed's two figures."""

    method: str
    column: str
    mmc: float
    loss: float
    seeds: Sequence[tuple[float, float]]


def price(comparison: Comparison) -> Markup | None:
    """Return the section, or nothing where there are no images without labels."""
    points = {part: paid(comparison, part) for part in PARTS}
    if not any(points.values()):
        return None
    charts = [_price_chart(comparison, part, found) for part, found in points.items()]
    return section(
        "price",
        "The price of a low MMC",
        paragraph(
            "MMC is the mean largest probability on images without labels. It can be lowered by "
            "shrinking all probabilities: then the log loss of these images (OUT) falls, and that "
            "of the images with labels (IN) rises. A method that is truly better is low on both."
        ),
        paragraph(_price_verdict(points["IN"]), _price_doubt(comparison), class_="note")
        if len(points["IN"]) > 1
        else None,
        tag("div", *charts, class_="figures"),
        _price_table(comparison, points),
    )


def paid(comparison: Comparison, part: str) -> list[Paid]:
    """Return what every method with an MMC pays for it; infinite if it is so on one seed."""
    found = []
    for method, quiet in comparison.column(MMC).items():
        column = f"log loss {part} {'before' if _has_own_link(comparison, method) else 'after'}"
        losses = comparison.column(column)[method]
        if quiet and losses:
            mmc = 100 * seed_mean(list(quiet.values())).mean
            loss = seed_mean(list(losses.values())).mean
            seeds = [(100 * quiet[seed], losses[seed]) for seed in losses]
            found.append(Paid(method, column, mmc, loss, seeds))
    return found


def _has_own_link(comparison: Comparison, method: str) -> bool:
    rows = comparison.figures[method].values()
    return any(name.endswith(" before") for row in rows for name in row)


def _price_chart(comparison: Comparison, part: str, points: Sequence[Paid]) -> Markup | None:
    shown = [
        NamedPoint(tone(comparison, p.method), p.method, p.mmc, p.loss, p.seeds)
        for p in points
        if isfinite(p.loss)
    ]
    if not shown:
        return None
    infinite = [p.method for p in points if not isfinite(p.loss)]
    absent = f" Infinite, so not here: {', '.join(infinite)}." if infinite else ""
    return figure(
        named_points(
            shown,
            title=f"Zero-label MMC against log loss {part}",
            x="← zero-label MMC, per cent",
            y=f"← log loss {part}",
        ),
        f"Log loss {part}.",
        f"Over the images {PARTS[part]}. The lower left corner is the good one.{absent}",
    )


def _price_verdict(points: Sequence[Paid]) -> str:
    quiet, sharp = min(points, key=lambda p: p.mmc), min(points, key=lambda p: p.loss)
    begin = f"{quiet.method} has the lowest MMC, {quiet.mmc:.2f} %"
    if not isfinite(quiet.loss):
        found = "it answers 0 or 1 on some image and is wrong"
        return f"{begin}, and an infinite log loss IN: {found}."
    if quiet is sharp:
        return f"{begin}, and the lowest log loss IN, {quiet.loss:.4f}: it pays nothing for it."
    more = f"{100 * (quiet.loss / sharp.loss - 1):.0f} % above " if sharp.loss > 0 else "above "
    return (
        f"{begin}, with a log loss IN of {quiet.loss:.4f}: {more}the lowest, {sharp.loss:.4f} of "
        f"{sharp.method}, whose MMC is {sharp.mmc:.2f} %."
    )


def _price_doubt(comparison: Comparison) -> str:
    level = [m for m, place in standings(comparison, MMC).items() if place == "level"]
    return f" Its MMC is not told apart from that of {', '.join(level)}." if level else ""


def _price_table(comparison: Comparison, points: dict[str, list[Paid]]) -> Markup:
    losses = {part: {p.method: p for p in found} for part, found in points.items()}
    rows = [
        [
            method,
            figure_text(comparison, MMC, method),
            *(
                figure_text(comparison, by_method[method].column, method)
                if method in by_method
                else UNDEFINED
                for by_method in losses.values()
            ),
            "own" if _has_own_link(comparison, method) else "fitted",
        ]
        for method in present(comparison, MMC)
    ]
    return table(
        ["method", "MMC, %", *(f"log loss {part}" for part in PARTS), "link"],
        rows,
        caption="Probabilities of the method's own link, or of the fitted one where it has none.",
        pinned=True,
    )


LENGTHS = {1: "retrieval n=1", 2: "retrieval n=2", 3: "retrieval n=3"}
CAPTION = "Means over seeds; their intervals stand in the plots of each length."


def search(comparison: Comparison) -> Markup | None:
    """Return the section, or nothing where retrieval was not measured."""
    lines = retrieval_lines(comparison)
    if not lines:
        return None
    longest = best_of(
        comparison, LENGTHS[max(length for line in lines.values() for length in line)]
    )
    series = [
        Series(
            tone(comparison, method) + (" strong" if method == longest else ""),
            method,
            list(line),
            list(line.values()),
        )
        for method, line in lines.items()
    ]
    chart = line_chart(
        series,
        title="Retrieval mAP against query length",
        x="labels in the query",
        y="mAP, per cent",
        whole=True,
        ends=True,
    )
    return section(
        "search",
        "Search",
        paragraph(
            "A query names labels that must be there and labels that must not. "
            "The longer it is, the better its joint probability must be."
        ),
        figure(chart, "Retrieval against query length.", CAPTION),
        tag("div", *dot_figures(comparison, tuple(LENGTHS.values())), class_="figures"),
    )


def retrieval_lines(comparison: Comparison) -> dict[str, dict[int, float]]:
    """Return the means in per cent as ``{method: {length: mean}}``."""
    lines: dict[str, dict[int, float]] = {method: {} for method in comparison.figures}
    for length, name in LENGTHS.items():
        for method, value in present(comparison, name).items():
            lines[method][length] = 100 * value.mean
    return {method: line for method, line in lines.items() if line}

"""One dot plot a measure: every seed, the mean, its 95 % interval, and who is told apart."""

from collections.abc import Sequence

from labelwise.experiments.comparison import Comparison
from labelwise.experiments.measures import MEASURES
from labelwise.report.charts import Dots, dot_plot
from labelwise.report.comparison.how import GLOSS
from labelwise.report.comparison.standing import present, said, scale, standings
from labelwise.report.html import Markup, join, tag
from labelwise.report.words import paragraph, section

__all__ = ["GROUPS", "dot_figures", "measures"]

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
    return section("measures", "Measure by measure", _key(), *groups)


def dot_figures(comparison: Comparison, names: Sequence[str]) -> list[Markup]:
    """Return a figure for each of the measures that some method has a value of."""
    return [_figure(comparison, name) for name in names if present(comparison, name)]


def _figure(comparison: Comparison, name: str) -> Markup:
    higher, by = MEASURES[name].higher_is_better, scale(name)
    column, places = comparison.column(name), standings(comparison, name)
    rows = [
        Dots(
            name=method,
            values={f"seed {seed}": by * value for seed, value in column[method].items()},
            mean=by * value.mean,
            low=by * value.low,
            high=by * value.high,
            text=said(comparison, name, method),
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
        f" {GLOSS[name]}{unit}.{_missing(comparison, name)}",
    )
    return tag("figure", caption, chart, class_="plot")


def _missing(comparison: Comparison, name: str) -> str:
    """Say which methods have no value; one seed without is enough."""
    parts = []
    for method, by_seed in comparison.figures.items():
        lost = sum(name not in row for row in by_seed.values())
        if lost:
            some = f" ({lost} of {len(by_seed)} seeds)" if lost < len(by_seed) else ""
            parts.append(f"{method}{some}")
    return f" Undefined or infinite: {', '.join(parts)}." if parts else ""


def _key() -> Markup:
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
            "Small dots are runs, one a seed; the large dot is their mean, the bar its 95 % "
            "interval over seeds. An arrowhead at its end: the interval goes on. Bars that "
            "overlap decide nothing: methods are told apart by paired differences."
        ),
        tag("ul", *keys, class_="keys"),
    )

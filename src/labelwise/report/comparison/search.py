"""Search: retrieval mAP of every method against the number of labels in the query."""

from labelwise.experiments.comparison import Comparison
from labelwise.report.charts import Series, line_chart
from labelwise.report.comparison.measures import dot_figures
from labelwise.report.comparison.standing import best_of, present, tone
from labelwise.report.html import Markup, tag
from labelwise.report.words import figure, paragraph, section

__all__ = ["LENGTHS", "retrieval_lines", "search"]

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
            "Longer queries need joint probabilities that hold."
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

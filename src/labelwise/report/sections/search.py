"""Search: average precision of queries such as "dog, -beach" against their length."""

from labelwise.evaluate import Evaluation
from labelwise.report.charts import Series, line_chart
from labelwise.report.html import Markup, tag
from labelwise.report.words import figure, paragraph, percent, section, table

__all__ = ["search"]

CAPTION = "Error: standard error of a sampled mean. Left out: queries no image answers."
WHISKERS = "Mean average precision; whiskers are 95 % intervals where queries were sampled."


def search(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where retrieval was not measured."""
    points = [p for p in evaluation.retrieval if p.map is not None]
    if not points:
        return None
    series = Series(
        "after",
        "mean AP of the queries",
        [p.length for p in points],
        [p.map or 0.0 for p in points],
        [1.96 * (p.error or 0.0) for p in points],
    )
    chart = line_chart(
        [series], title="Retrieval mAP", x="labels in the query", y="mAP", whole=True, zero=True
    )
    rows = [
        [
            str(p.length),
            percent(p.map, 2),
            percent(p.error, 2) if p.error else "exact",
            f"{p.queries:,}",
            f"{p.skipped:,}",
        ]
        for p in evaluation.retrieval
    ]
    head = ["length", "mAP", "error", "queries", "left out"]
    return section(
        "search",
        "Search",
        paragraph(
            "A query names labels that must be there and labels that must not. "
            "Longer queries need joint probabilities that hold."
        ),
        tag(
            "div",
            figure(chart, "Retrieval against query length.", WHISKERS),
            table(head, rows, caption=CAPTION),
            class_="figures",
        ),
    )

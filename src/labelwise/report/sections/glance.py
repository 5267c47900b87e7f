"""At a glance: the headline numbers with their intervals, and what to keep in mind."""

from labelwise.evaluate import Evaluation, Figure
from labelwise.report.html import Markup, join, tag
from labelwise.report.words import paragraph, percent, plain, section

__all__ = ["glance"]


def glance(evaluation: Evaluation) -> Markup:
    """Return the tiles and the notes."""
    intervals = any(figure.low is not None for figure in evaluation.headline)
    return section(
        "glance",
        "At a glance",
        tag("ul", *map(_tile, evaluation.headline), class_="tiles"),
        paragraph(
            "Below each number: its 95 % interval from resampling the images. ",
            tag("a", "How everything was computed", href="#how"),
            ".",
            class_="small muted",
        )
        if intervals
        else None,
        *(paragraph(note, class_="note") for note in evaluation.notes),
    )


def show(figure: Figure, value: float | None) -> str:
    """Return one of a figure's values the way the figure is written."""
    if not figure.percent:
        return plain(value)
    fine = figure.value is not None and figure.value < 0.1
    return percent(value, 2 if fine else 1)


def _tile(figure: Figure) -> Markup:
    arrow = {"higher": "higher is better", "lower": "lower is better"}.get(figure.better, "")
    extent = None
    if figure.low is not None and figure.high is not None:
        extent = f"{show(figure, figure.low)} to {show(figure, figure.high)}"
    return tag(
        "li",
        tag("span", figure.name, class_="what"),
        join(tag("span", show(figure, figure.value), class_="number")),
        tag("span", extent or " ", class_="range"),
        tag("span", arrow, class_="range"),
        class_="tile",
        title=figure.how,
    )

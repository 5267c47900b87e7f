"""The price of a low MMC: quietness on images without labels against log loss, IN and OUT.

MMC is read from a method's own link, or from the fitted one where it has none; so is the log loss
here, or the two would not belong together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.experiments.comparison import Comparison
from labelwise.experiments.statistics import interval
from labelwise.report.charts import NamedPoint, named_points
from labelwise.report.comparison.standing import present, said, standings, tone
from labelwise.report.html import Markup, tag
from labelwise.report.words import figure, paragraph, section, table

__all__ = ["PARTS", "Paid", "paid", "price"]

MMC = "zero-label MMC"
PARTS = {"IN": "with labels", "OUT": "without labels"}


@dataclass(frozen=True)
class Paid:
    """One method's MMC in per cent against one log loss: the means, and each seed that has both."""

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
    charts = [
        figure(
            named_points(
                [
                    NamedPoint(tone(comparison, p.method), p.method, p.mmc, p.loss, p.seeds)
                    for p in found
                ],
                title=f"Zero-label MMC against log loss {part}",
                x="← zero-label MMC, per cent",
                y=f"← log loss {part}",
            ),
            f"Log loss {part}.",
            f"Over the images {PARTS[part]}. The lower left corner is the good one.",
        )
        for part, found in points.items()
        if found
    ]
    return section(
        "price",
        "The price of a low MMC",
        paragraph(
            "MMC, the mean largest probability on images without labels, falls when all "
            "probabilities are shrunk, and so can be bought: log loss OUT falls with it, log loss "
            "IN pays. A method that is truly quieter is low on both."
        ),
        paragraph(_verdict(points["IN"]), _doubt(comparison), class_="note")
        if len(points["IN"]) > 1
        else None,
        tag("div", *charts, class_="figures"),
        _numbers(comparison, points),
    )


def paid(comparison: Comparison, part: str) -> list[Paid]:
    """Return the point of every method that has both figures on some seed."""
    found = []
    for method, quiet in comparison.column(MMC).items():
        for stage in ("before", "after"):
            column = f"log loss {part} {stage}"
            losses = comparison.column(column)[method]
            seeds = [(100 * quiet[s], losses[s]) for s in losses if s in quiet]
            if seeds:
                mmc, loss = (interval(list(values)).mean for values in zip(*seeds, strict=True))
                found.append(Paid(method, column, mmc, loss, seeds))
                break
    return found


def _verdict(points: Sequence[Paid]) -> str:
    quiet, sharp = min(points, key=lambda p: p.mmc), min(points, key=lambda p: p.loss)
    begin = f"{quiet.method} has the lowest MMC, {quiet.mmc:.2f} %"
    if quiet is sharp:
        return f"{begin}, and the lowest log loss IN, {quiet.loss:.4f}: it pays nothing for it."
    more = f"{100 * (quiet.loss / sharp.loss - 1):.0f} % above " if sharp.loss > 0 else "above "
    return (
        f"{begin}, with a log loss IN of {quiet.loss:.4f}: {more}the lowest, {sharp.loss:.4f} of "
        f"{sharp.method}, whose MMC is {sharp.mmc:.2f} %."
    )


def _doubt(comparison: Comparison) -> str:
    level = [m for m, place in standings(comparison, MMC).items() if place == "level"]
    return f" Its MMC is not told apart from that of {', '.join(level)}." if level else ""


def _numbers(comparison: Comparison, points: dict[str, list[Paid]]) -> Markup:
    used = {part: {p.method: p.column for p in found} for part, found in points.items()}
    rows = []
    for method in present(comparison, MMC):
        columns = [used[part].get(method) for part in PARTS]
        own = any(column and column.endswith("before") for column in columns)
        rows.append(
            [
                method,
                said(comparison, MMC, method),
                *(said(comparison, column, method) if column else "–" for column in columns),
                "own" if own else "fitted",
            ]
        )
    return table(
        ["method", "MMC, %", *(f"log loss {part}" for part in PARTS), "link"],
        rows,
        caption="Probabilities of the method's own link, or of the fitted one where it has none.",
        pinned=True,
    )

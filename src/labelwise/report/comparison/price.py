"""The price of a low MMC: quietness on images without labels against log loss, IN and OUT.

MMC is read from a method's own link, or from the fitted one where it has none; so is the log loss
here, or the two would not belong together. An own link that answers 0 or 1 and is wrong has an
infinite one, and no place in the charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

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
    charts = [_chart(comparison, part, found) for part, found in points.items()]
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
    """Return what every method with an MMC pays for it; infinite if it is so on one seed."""
    found = []
    for method, quiet in comparison.column(MMC).items():
        column = f"log loss {part} {'before' if _has_own_link(comparison, method) else 'after'}"
        losses = comparison.column(column)[method]
        if quiet:
            mmc = 100 * interval(list(quiet.values())).mean
            loss = interval(list(losses.values())).mean if losses else inf
            seeds = [(100 * quiet[seed], losses[seed]) for seed in losses]
            found.append(Paid(method, column, mmc, loss, seeds))
    return found


def _has_own_link(comparison: Comparison, method: str) -> bool:
    rows = comparison.figures[method].values()
    return any(name.endswith(" before") for row in rows for name in row)


def _chart(comparison: Comparison, part: str, points: Sequence[Paid]) -> Markup | None:
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


def _verdict(points: Sequence[Paid]) -> str:
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


def _doubt(comparison: Comparison) -> str:
    level = [m for m, place in standings(comparison, MMC).items() if place == "level"]
    return f" Its MMC is not told apart from that of {', '.join(level)}." if level else ""


def _numbers(comparison: Comparison, points: dict[str, list[Paid]]) -> Markup:
    losses = {part: {p.method: p for p in found} for part, found in points.items()}
    rows = [
        [
            method,
            said(comparison, MMC, method),
            *(
                said(comparison, by_method[method].column, method)
                if isfinite(by_method[method].loss)
                else "∞"
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

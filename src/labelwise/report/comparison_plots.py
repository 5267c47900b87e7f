"""The charts of a comparison for matplotlib: on axes you already have, or as PNG and SVG files."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from labelwise.papers.comparison import Comparison
from labelwise.papers.measures import MEASURES
from labelwise.report.comparison_charts import (
    GROUPS,
    LENGTHS,
    PARTS,
    paid,
    present,
    retrieval_lines,
    scale,
    standings,
)
from labelwise.report.plots import (
    AFTER,
    TRUE,
    Axes,
    Drawing,
    Figure,
    plain_axes,
    save_drawings,
)

COLUMNS = 3


def measure_dots(axes: Axes, comparison: Comparison, name: str) -> None:
    """Draw one measure: one row per method, one dot per seed, the mean and its 95 % interval."""
    places, column, by = standings(comparison, name), comparison.column(name), scale(name)
    values = present(comparison, name)
    for row, (method, value) in enumerate(values.items()):
        colour = TRUE if places[method] == "behind" else AFTER
        fill = "white" if places[method] == "level" else colour
        if isfinite(value.half_width):
            axes.plot(
                [by * value.low, by * value.high], [row, row], color=colour, linewidth=3, alpha=0.4
            )
        seeds = [by * one for one in column[method].values()]
        axes.plot(seeds, [row + 0.27] * len(seeds), ".", color=colour, markersize=4)
        axes.plot(by * value.mean, row, "o", color=colour, markerfacecolor=fill, markersize=7)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    way = "higher is better →" if MEASURES[name].higher_is_better else "← lower is better"
    axes.set(title=name, xlabel=way)


def price_points(axes: Axes, comparison: Comparison, part: str) -> None:
    """Draw zero-label MMC against log loss of the images ``IN`` or ``OUT``, where it is finite."""
    for point in paid(comparison, part):
        if not isfinite(point.loss):
            continue
        dots = axes.plot(point.mmc, point.loss, "o")
        colour = dots[0].get_color()
        axes.plot([x for x, _ in point.seeds], [y for _, y in point.seeds], ".", color=colour)
        axes.annotate(
            point.method,
            (point.mmc, point.loss),
            xytext=(6, 4),
            textcoords="offset points",
            parse_math=False,
        )
    axes.set(xlabel="zero-label MMC, per cent", ylabel=f"log loss {part}")


def retrieval(axes: Axes, comparison: Comparison) -> None:
    """Draw retrieval mAP against query length, one line per method."""
    for method, line in retrieval_lines(comparison).items():
        axes.plot(list(line), list(line.values()), marker="o", markersize=4, label=method)
    axes.set(xlabel="labels in the query", ylabel="mAP, per cent", xticks=list(LENGTHS))
    axes.legend(frameon=False)


def save_comparison_charts(
    comparison: Comparison, folder: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write every chart that applies to ``folder`` and return the files."""
    names = [n for names in (*GROUPS.values(), tuple(LENGTHS.values())) for n in names]
    shown = [name for name in names if present(comparison, name)]
    charts = {
        "measures": Drawing(_size(comparison, shown), lambda f: _grid(f, comparison, shown)),
        "price": Drawing((9.2, 4.2), lambda f: _prices(f, comparison)),
        "retrieval": Drawing((4.6, 4.2), lambda f: retrieval(plain_axes(f), comparison)),
    }
    applies = {
        "measures": shown,
        "price": paid(comparison, "OUT"),
        "retrieval": retrieval_lines(comparison),
    }
    return save_drawings({n: chart for n, chart in charts.items() if applies[n]}, folder, formats)


def _size(comparison: Comparison, shown: Sequence[str]) -> tuple[float, float]:
    return 4.2 * COLUMNS, -(-len(shown) // COLUMNS) * (0.9 + 0.28 * len(comparison.figures))


def _grid(figure: Figure, comparison: Comparison, shown: Sequence[str]) -> None:
    for number, name in enumerate(shown, 1):
        axes = plain_axes(figure, -(-len(shown) // COLUMNS), COLUMNS, number)
        measure_dots(axes, comparison, name)


def _prices(figure: Figure, comparison: Comparison) -> None:
    for number, part in enumerate(PARTS, 1):
        price_points(plain_axes(figure, 1, len(PARTS), number), comparison, part)

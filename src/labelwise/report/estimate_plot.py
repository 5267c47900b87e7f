"""The chart of an estimate: the share of photos that match, by group, with its interval."""

from collections.abc import Sequence
from pathlib import Path

from labelwise.decide import CountEstimate
from labelwise.errors import SettingsError
from labelwise.report.plots import AFTER, INK, Axes, Drawing, Figure, plain_axes, save_drawings

FORMATS = ("png", "svg")
NAME_LETTERS = 40


def estimate_dots(axes: Axes, estimates: Sequence[CountEstimate]) -> None:
    """Draw one row per group, the total last and in grey: share in per cent, interval, count."""
    for row, one in enumerate(estimates):
        by = 100 / one.photos
        colour = INK if one is estimates[-1] else AFTER
        axes.plot([by * one.low, by * one.high], [row, row], color=colour, linewidth=3, alpha=0.4)
        axes.plot(by * one.count, row, "o", color=colour, markersize=7)
        axes.annotate(
            f"{one.count:,.0f} of {one.photos:,}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            verticalalignment="center",
            fontsize=8,
        )
    names = [_shortened(one.group) or "all photos" for one in estimates]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"per cent of photos, {estimates[-1].confidence:.0%} interval")


def save_estimate_chart(estimates: Sequence[CountEstimate], what: str, path: Path) -> None:
    """Write the chart to a .png or .svg file."""
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise SettingsError(f"a chart is a .png or .svg file, got {path.name}")

    def draw(figure: Figure) -> None:
        figure.suptitle(f"photos that match {_shortened(what)}", fontsize=10, parse_math=False)
        estimate_dots(plain_axes(figure), estimates)

    drawing = Drawing((6.4, 1.4 + 0.32 * len(estimates)), draw)
    save_drawings({path.name.removesuffix(path.suffix): drawing}, path.parent, [path.suffix[1:]])


def _shortened(name: str) -> str:
    """Return the end of a long text: folders differ there."""
    return name if len(name) <= NAME_LETTERS else f"…{name[1 - NAME_LETTERS :]}"

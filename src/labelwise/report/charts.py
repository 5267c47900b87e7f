"""Charts of one model: lines, histograms, a scatter plot and the reliability diagram.

Each is a function from plain numbers to an SVG. A whisker of the reliability diagram is the 95 %
Wilson interval of a bin's share. It takes entries as independent, which entries of one image are
not, so it is a lower bound of the doubt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log1p, log10
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.base.bounds import wilson
from labelwise.base.document import charts_of
from labelwise.base.files import write_text
from labelwise.base.html import Markup, join
from labelwise.base.svg import (
    LETTER,
    Axis,
    Frame,
    bar,
    cut,
    dot,
    legend,
    line,
    path,
    short,
    text,
    ticks,
)
from labelwise.decide import CountEstimate
from labelwise.errors import SettingsError

if TYPE_CHECKING:  # audits are reported without torch
    from labelwise.evaluation import Curve

BOLD = 1.1 * LETTER
ROW = 25.0


@dataclass(frozen=True)
class Dots:
    """One row of a dot plot: small dots are its values by name, the large one is their mean."""

    name: str
    values: Mapping[str, float]
    mean: float
    low: float
    high: float
    text: str
    class_: str = "absent"
    strong: bool = False


def dot_plot(
    rows: Sequence[Dots],
    *,
    title: str,
    x: str,
    description: str,
    ends: tuple[float, float] | None = None,
) -> Markup:
    """Return the plot, rows from top to bottom, with each mean written out at the right.

    The axis holds every value; an interval that would squeeze them ends at the edge with an arrow.
    """
    low, high = limits(rows) if ends is None else ends
    left = BOLD * max(len(cut(row.name, LETTERS)) for row in rows) + 10
    right = BOLD * max(len(row.text) for row in rows) + 12
    lines = [(row + 0.5, "") for row in range(len(rows))]
    short_ticks = max(len(short(tick)) for tick in ticks(low, high, 3)) <= 5
    across = Axis.upto(high, x, low=low, wanted=3 if short_ticks else 2)
    room = {"left": left, "right": right, "top": 2, "height": ROW * len(rows) + 40}
    frame = Frame(across, Axis(len(rows), 0, lines), **room)
    marks = [_dots_row(frame, row, frame.py(position + 0.5)) for position, row in enumerate(rows)]
    return frame.draw(*marks, title=title, description=description)


def limits(rows: Sequence[Dots]) -> tuple[float, float]:
    """Return the ends of the axis: all values, and as much of the bars as leaves these apart."""
    values = [value for row in rows for value in (*row.values.values(), row.mean)]
    low, high = min(values), max(values)
    room = high - low or 0.1 * abs(high) or 1.0
    ends = [end for row in rows for end in (row.low, row.high) if isfinite(end)]
    floor = 0.0 if low >= 0 else low - room
    return (
        max(min([low - 0.05 * room, *ends]), low - room, floor),
        min(max([high + 0.05 * room, *ends]), high + room),
    )


def _dots_row(frame: Frame, row: Dots, y: float) -> Markup:
    weight = "name strong end" if row.strong else "name end"
    own, small = row.values.items(), f"small {row.class_}"
    seeds = [dot(f"{row.name}, {n}: {v:.6g}", frame.px(v), y + 7, 2, small) for n, v in own]
    reach: list[Markup] = []
    if isfinite(row.high - row.low):
        low, high = frame.px(max(row.low, frame.x.low)), frame.px(min(row.high, frame.x.high))
        beyond = [(low, -1)] * (row.low < frame.x.low) + [(high, 1)] * (row.high > frame.x.high)
        reach = [line(low, high, y, y, f"reach {row.class_}")]
        for at, way in beyond:
            tip = (at - 5 * way, y - 4), (at, y), (at - 5 * way, y + 4)
            reach.append(path(tip, f"line {row.class_}"))
    name = text(cut(row.name, LETTERS), frame.left - 8, y + 3.5, weight, full=row.name)
    mean = dot(f"{row.name}: {row.text}", frame.px(row.mean), y, 4.6, row.class_)
    return join(name, *reach, *seeds, mean, text(row.text, frame.width - 1, y + 3.5, weight))


def save_estimate_chart(estimates: Sequence[CountEstimate], what: str, path: Path) -> None:
    """Write the shares of photos that match, by group with the total last, as an SVG file."""
    if path.suffix.lower() != ".svg":
        raise SettingsError(f"A chart is an .svg file, got {path.name}.")
    total, rows = estimates[-1], []
    for estimate in estimates:
        ends = (estimate.count, estimate.low, estimate.high)
        share, low, high = (100 * value / estimate.photos for value in ends)
        words = f"{estimate.count:,.0f} of {estimate.photos:,}"
        style = "absent" if estimate is total else "after"
        rows.append(Dots(estimate.group or "all photos", {}, share, low, high, words, style))
    x = f"per cent of photos, {total.confidence:.0%} interval"
    words = "; ".join(f"{row.name} {row.text}" for row in rows)
    chart = dot_plot(rows, title=f"Photos that match {what}", x=x, description=words)
    write_text(path, next(iter(charts_of(chart).values())))


AS_GIVEN = "as given"  # the only stage, where nothing was calibrated
MANY = 40  # above this many points the dots are left out
LETTERS = 16  # of a name at the end of a line


@dataclass(frozen=True)
class Series:
    """Points of one line; ``errors`` are half-widths of intervals."""

    class_: str
    name: str
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] | None = None


def line_chart(
    series: Sequence[Series], *, title: str, x: str, y: str, whole: bool = False, zero: bool = False
) -> Markup:
    """Return the chart. ``whole`` ticks only at integers; ``zero`` starts the axis at 0."""
    xs = [value for s in series for value in s.x]
    pairs = [pair for s in series for pair in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    tops, lows = [v + e for v, e in pairs], [v - e for v, e in pairs]
    across = Axis.upto(max(xs), x, low=min(xs))
    if whole:
        low, high = min(xs), max(xs)
        marks = range(int(low), int(high) + 1, max(1, -(-int(high - low) // 8)))
        room = 0.3 if high - low < 10 else 0.0
        names = [(float(v), short(v)) for v in marks]
        across = Axis(low - room, max(high, low + 1) + room, names, x)
    frame = Frame(across, Axis.upto(max(tops), y, low=0 if zero else min(lows)), top=34)
    key = legend([(s.class_, s.name) for s in series], x=frame.left, y=12)
    ends = ((s.name, s.y[0], s.x[0], s.y[-1], s.x[-1]) for s in series)
    words = " ".join("{}: from {:.4g} at {:g} to {:.4g} at {:g}.".format(*end) for end in ends)
    return frame.draw(*(_line(frame, s) for s in series), key, title=title, description=words)


def _line(frame: Frame, series: Series) -> Markup:
    style, values = series.class_, [*zip(series.x, series.y, strict=True)]
    points = [(frame.px(x), frame.py(y)) for x, y in values]
    ends = zip(values, series.errors or (), strict=False)
    marks = [_whisker(frame, x, y - error, y + error, style) for (x, y), error in ends]
    if len(points) > 1:
        marks.append(path(points, f"line {style}"))
    for place, (x, y) in zip(points, values, strict=True) if len(points) <= MANY else ():
        marks.append(dot(f"{series.name}, {x:g}: {y:.4g}", *place, 2.8, style))
    return join(*marks)


def _whisker(frame: Frame, x: float, low: float, high: float, class_: str) -> Markup:
    return line(frame.px(x), frame.px(x), frame.py(low), frame.py(high), f"whisker {class_}")


Group = tuple[str, str, Sequence[float]]  # class of its bars, name, heights


def grouped_bars(
    groups: Sequence[Group], names: Sequence[str], *, title: str, x: str, y: str = "images"
) -> Markup:
    """Return bars of several groups beside each other over named cells."""
    peak = max((max(counts, default=0) for _, _, counts in groups), default=0)
    every = -(-len(names) // 10)
    marks = [(position + 0.5, name) for position, name in enumerate(names) if position % every == 0]
    frame = Frame(Axis(0, len(names), marks, x), Axis.upto(max(peak, 1), y), top=34)
    width = 0.8 / len(groups)
    wide = max((frame.px(1) - frame.px(0)) * width - 0.6, 0.6)
    bars = []
    for order, (class_, name, counts) in enumerate(groups):
        for position, (cell, count) in enumerate(zip(names, counts, strict=True)):
            left, top = frame.px(position + 0.1 + order * width), frame.py(count)
            words = f"{name}, {cell}: {count:,}"
            bars.append(bar(words, left, top, wide, frame.py(0) - top, class_))
    key = legend([(class_, name) for class_, name, _ in groups], x=frame.left, y=12)
    words = " ".join(
        f"{name}: " + ", ".join(f"{c} {n:,}" for c, n in zip(names, counts, strict=True)) + "."
        for _, name, counts in groups
    )
    return frame.draw(*bars, key, title=title, description=words)


Point = tuple[str, float, float]  # name, x > 0, y in [0, 1]


def scatter_chart(points: Sequence[Point], *, title: str, x: str, y: str) -> Markup:
    """Return the plot of named points."""
    low = floor(log10(min(p[1] for p in points)))
    high = max(ceil(log10(max(p[1] for p in points))), low + 1)
    marks = [(float(e), short(10.0**e)) for e in range(low, high + 1)]
    frame = Frame(Axis(low, high, marks, x), Axis.unit(y))
    dots = []
    for name, count, level in points:
        words = f"{name}: {level:.1%}, {count:,g}"
        dots.append(dot(words, frame.px(log10(count)), frame.py(level), 3, "cloud after"))
    worst = min(points, key=lambda p: p[2])
    words = f"{len(points)} labels; the lowest is {worst[0]} at {worst[2]:.1%}."
    return frame.draw(*dots, title=title, description=words)


Stage = tuple[str, str, "Curve"]  # class of its marks, name, curve


def thumbnail_frame() -> Frame:
    """Return the frame of a small chart without words, for one label among many."""
    axis = Axis(0, 1, [(0, "0"), (0.5, ""), (1, "1")])
    return Frame(axis, axis, 150, 140, left=18, right=6, top=6, bottom=18)


def filled_bins(curve: "Curve") -> list[tuple[float, float, int]]:
    """Return mean probability, observed share and count of the bins that have entries."""
    bins = zip(curve.confidence, curve.frequency, curve.counts, strict=True)
    return [(c, f, count) for c, f, count in bins if c is not None and f is not None]


def diagonal(frame: Frame) -> Markup:
    """Return the dotted line on which x is y."""
    return path([(frame.px(0), frame.py(0)), (frame.px(1), frame.py(1))], "ideal")


def _stage_marks(frame: Frame, class_: str, name: str, curve: "Curve", *, radius: float) -> Markup:
    bins = filled_bins(curve)
    marks = [_whisker(frame, said, *wilson(seen, count), class_) for said, seen, count in bins]
    if len(bins) > 1:
        marks.append(path([(frame.px(c), frame.py(f)) for c, f, _ in bins], f"line {class_}"))
    for said, seen, count in bins:
        words = f"{name}: {said:.1%} said, {seen:.1%} seen, {count:,} entries"
        marks.append(dot(words, frame.px(said), frame.py(seen), radius, class_))
    return join(*marks)


def reliability_chart(stages: Sequence[Stage], *, title: str, small: bool = False) -> Markup:
    """Return the diagram of one or two stages (before, after) over the counts of the last.

    A ``small`` one, of one label among many, has neither words nor counts.
    """
    frame = Frame(Axis.unit(""), Axis.unit("observed share"), height=326, bottom=100, right=14)
    frame = thumbnail_frame() if small else frame
    marks = [diagonal(frame)]
    marks += [_stage_marks(frame, *stage, radius=2.2 if small else 3.2) for stage in stages]
    if not small:
        names = [(class_, name) for class_, name, _ in stages]
        marks.append(legend(names, x=frame.px(0.03), y=frame.py(0.94)))
        marks.append(_count_strip(frame, stages[-1][2], stages[-1][0]))
    words = []
    for _, name, curve in stages:
        points = (f"{c:.2f} said {f:.2f} seen ({n:,})" for c, f, n in filled_bins(curve))
        words.append(f"{name}: {', '.join(points)}.")
    return frame.draw(*marks, title=title, description=" ".join(words))


def _count_strip(frame: Frame, curve: "Curve", class_: str) -> Markup:
    foot, tall = frame.height - 24, 44
    peak = log1p(max(curve.counts, default=1) or 1)
    bars = []
    for low, high, count in zip(curve.edges, curve.edges[1:], curve.counts, strict=False):
        words, size = f"{low:.2f} to {high:.2f}: {count:,} entries", tall * log1p(count) / peak
        wide = max(frame.px(high) - frame.px(low) - 2, 0.5)
        bars.append(bar(words, frame.px(low) + 1, foot - size, wide, size, class_))
    return join(
        *bars,
        line(frame.px(0), frame.px(1), foot, foot, "axis"),
        text("entries", frame.left - 6, foot - tall / 2 - 3, "tick end"),
        text("(log)", frame.left - 6, foot - tall / 2 + 9, "tick end"),
        text("mean probability", frame.px(0.5), frame.height - 6, "name mid"),
    )


def save_charts(page: str, folder: Path) -> list[Path]:
    """Write every chart of a page to ``folder``, one SVG file each."""
    charts = {folder / f"{name}.svg": chart for name, chart in charts_of(page).items()}
    for file, chart in charts.items():
        write_text(file, chart)
    return list(charts)

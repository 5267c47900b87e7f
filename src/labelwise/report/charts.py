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

from labelwise.decide import CountEstimate
from labelwise.errors import SettingsError
from labelwise.markup.document import charts_of
from labelwise.markup.html import Markup, join, tag
from labelwise.markup.svg import LETTER, Axis, Frame, cut, legend, path, short, ticks
from labelwise.numeric.bounds import wilson
from labelwise.system.files import replacing

if TYPE_CHECKING:  # audits are reported without torch
    from labelwise.evaluation import Curve

# Charts of several methods: a dot plot with a row per name.
#
# Small dots are the single values, the large one is their mean. The axis holds every value; an
# interval that would squeeze them ends at the edge with an arrow.


BOLD = 1.1 * LETTER
ROW = 25.0


@dataclass(frozen=True)
class Dots:
    """One row: its values by what they are called, their mean and interval, and how it is said."""

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
    """Return the plot, rows from top to bottom, with each mean written out at the right."""
    low, high = limits(rows) if ends is None else ends
    left = BOLD * max(len(cut(row.name, LETTERS)) for row in rows) + 10
    right = BOLD * max(len(row.text) for row in rows) + 12
    lines = [(row + 0.5, "") for row in range(len(rows))]
    frame = Frame(
        Axis.upto(high, x, low=low, wanted=_wanted_ticks(low, high)),
        Axis(len(rows), 0, lines),
        left=left,
        right=right,
        top=2,
        height=ROW * len(rows) + 40,
    )
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


def _wanted_ticks(low: float, high: float) -> int:
    """Return how many numbers to want at the axis: fewer where they are long."""
    return 3 if max(len(short(tick)) for tick in ticks(low, high, 3)) <= 5 else 2


def _dots_row(frame: Frame, row: Dots, y: float) -> Markup:
    weight = "name strong" if row.strong else "name"
    seeds = [
        tag(
            "circle",
            tag("title", f"{row.name}, {name}: {value:.6g}"),
            cx=frame.px(value),
            cy=y + 7,
            r=2,
            class_=f"dot small {row.class_}",
        )
        for name, value in row.values.items()
    ]
    return join(
        tag(
            "text",
            tag("title", row.name),
            cut(row.name, LETTERS),
            x=frame.left - 8,
            y=y + 3.5,
            class_=f"{weight} end",
        ),
        _interval_bar(frame, row, y),
        *seeds,
        tag(
            "circle",
            tag("title", f"{row.name}: {row.text}"),
            cx=frame.px(row.mean),
            cy=y,
            r=4.6,
            class_=f"dot {row.class_}",
        ),
        tag("text", row.text, x=frame.width - 1, y=y + 3.5, class_=f"{weight} end"),
    )


def _interval_bar(frame: Frame, row: Dots, y: float) -> Markup | None:
    if not isfinite(row.high - row.low):
        return None
    low, high = max(row.low, frame.x.low), min(row.high, frame.x.high)
    bar = tag("line", x1=frame.px(low), x2=frame.px(high), y1=y, y2=y, class_=f"reach {row.class_}")
    tips = [
        path([(at - 5 * way, y - 4), (at, y), (at - 5 * way, y + 4)], class_=f"line {row.class_}")
        for at, way, beyond in (
            (frame.px(low), -1, row.low < frame.x.low),
            (frame.px(high), 1, row.high > frame.x.high),
        )
        if beyond
    ]
    return join(bar, *tips)


def save_estimate_chart(estimates: Sequence[CountEstimate], what: str, path: Path) -> None:
    """Write the shares of photos that match, by group with the total last, as an SVG file."""
    if path.suffix.lower() != ".svg":
        raise SettingsError(f"A chart is an .svg file, got {path.name}.")
    total = estimates[-1]
    rows = [
        Dots(
            estimate.group or "all photos",
            {},
            100 * estimate.count / estimate.photos,
            100 * estimate.low / estimate.photos,
            100 * estimate.high / estimate.photos,
            f"{estimate.count:,.0f} of {estimate.photos:,}",
            "absent" if estimate is total else "after",
        )
        for estimate in estimates
    ]
    chart = dot_plot(
        rows,
        title=f"Photos that match {what}",
        x=f"per cent of photos, {total.confidence:.0%} interval",
        description="; ".join(f"{row.name} {row.text}" for row in rows),
    )
    with replacing(path) as temporary:
        temporary.write_text(next(iter(charts_of(chart).values())), "utf-8")


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
    series: Sequence[Series],
    *,
    title: str,
    x: str,
    y: str,
    whole: bool = False,
    zero: bool = False,
) -> Markup:
    """Return the chart. ``whole`` ticks only at integers; ``zero`` starts the axis at 0."""
    xs = [value for line in series for value in line.x]
    tops = [v + e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    lows = [v - e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    across = _whole_axis(min(xs), max(xs), x) if whole else Axis.upto(max(xs), x, low=min(xs))
    up = Axis.upto(max(tops), y, low=0 if zero else min(lows))
    frame = Frame(across, up, top=34)
    key = legend([(line.class_, line.name) for line in series], x=frame.left, y=12)
    text = " ".join(
        f"{line.name}: from {line.y[0]:.4g} at {line.x[0]:g} to {line.y[-1]:.4g} at {line.x[-1]:g}."
        for line in series
    )
    return frame.draw(*(_line(frame, s) for s in series), key, title=title, description=text)


def _line(frame: Frame, series: Series) -> Markup:
    points = [(frame.px(x), frame.py(y)) for x, y in zip(series.x, series.y, strict=True)]
    bars = [
        tag(
            "line",
            x1=frame.px(x),
            x2=frame.px(x),
            y1=frame.py(y - error),
            y2=frame.py(y + error),
            class_=f"whisker {series.class_}",
        )
        for x, y, error in zip(series.x, series.y, series.errors or (), strict=False)
    ]
    dots = [
        tag(
            "circle",
            tag("title", f"{series.name}, {x:g}: {y:.4g}"),
            cx=px,
            cy=py,
            r=2.8,
            class_=f"dot {series.class_}",
        )
        for (px, py), x, y in zip(points, series.x, series.y, strict=True)
    ]
    line = path(points, class_=f"line {series.class_}") if len(points) > 1 else None
    return join(*bars, line, *(dots if len(dots) <= MANY else ()))


def _whole_axis(low: float, high: float, title: str) -> Axis:
    step = max(1, -(-int(high - low) // 8))
    marks = [(float(v), short(v)) for v in range(int(low), int(high) + 1, step)]
    room = 0.3 if high - low < 10 else 0.0
    return Axis(low - room, max(high, low + 1) + room, marks, title)


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
    bars = [
        tag(
            "rect",
            tag("title", f"{name}, {cell}: {count:,}"),
            x=frame.px(position + 0.1 + order * width),
            y=frame.py(count),
            width=max((frame.px(1) - frame.px(0)) * width - 0.6, 0.6),
            height=frame.py(0) - frame.py(count),
            class_=f"bar {class_}",
        )
        for order, (class_, name, counts) in enumerate(groups)
        for position, (cell, count) in enumerate(zip(names, counts, strict=True))
    ]
    key = legend([(class_, name) for class_, name, _ in groups], x=frame.left, y=12)
    text = " ".join(
        f"{name}: " + ", ".join(f"{c} {n:,}" for c, n in zip(names, counts, strict=True)) + "."
        for _, name, counts in groups
    )
    return frame.draw(*bars, key, title=title, description=text)


Point = tuple[str, float, float]  # name, x > 0, y in [0, 1]


def scatter_chart(points: Sequence[Point], *, title: str, x: str, y: str) -> Markup:
    """Return the plot of named points."""
    low = floor(log10(min(p[1] for p in points)))
    high = max(ceil(log10(max(p[1] for p in points))), low + 1)
    marks = [(float(e), short(10.0**e)) for e in range(low, high + 1)]
    frame = Frame(Axis(low, high, marks, x), Axis.unit(y))
    dots = [
        tag(
            "circle",
            tag("title", f"{name}: {level:.1%}, {count:,g}"),
            cx=frame.px(log10(count)),
            cy=frame.py(level),
            r=3,
            class_="dot cloud after",
        )
        for name, count, level in points
    ]
    worst = min(points, key=lambda p: p[2])
    text = f"{len(points)} labels; the lowest is {worst[0]} at {worst[2]:.1%}."
    return frame.draw(*dots, title=title, description=text)


Stage = tuple[str, str, "Curve"]  # class of its marks, name, curve


def reliability_chart(stages: Sequence[Stage], *, title: str) -> Markup:
    """Return the diagram of one or two stages (before, after) over the counts of the last."""
    frame = Frame(Axis.unit(""), Axis.unit("observed share"), height=326, bottom=100, right=14)
    last = stages[-1][2]
    strip = _count_strip(frame, last, stages[-1][0])
    key = legend([(class_, name) for class_, name, _ in stages], x=frame.px(0.03), y=frame.py(0.94))
    return frame.draw(
        _diagonal(frame),
        *(_stage_marks(frame, *stage) for stage in stages),
        key,
        strip,
        title=title,
        description=" ".join(_stage_text(name, curve) for _, name, curve in stages),
    )


def reliability_thumbnail(stages: Sequence[Stage], *, title: str) -> Markup:
    """Return a small diagram without words, for one label among many."""
    axis = Axis(0, 1, [(0, "0"), (0.5, ""), (1, "1")])
    frame = Frame(axis, axis, 150, 140, left=18, right=6, top=6, bottom=18)
    return frame.draw(
        _diagonal(frame),
        *(_stage_marks(frame, *stage, radius=2.2) for stage in stages),
        title=title,
        description=" ".join(_stage_text(name, curve) for _, name, curve in stages),
    )


def _filled(curve: "Curve") -> list[tuple[float, float, int]]:
    return [
        (confidence, frequency, count)
        for confidence, frequency, count in zip(
            curve.confidence, curve.frequency, curve.counts, strict=True
        )
        if confidence is not None and frequency is not None
    ]


def _diagonal(frame: Frame) -> Markup:
    return path(
        [(frame.px(0), frame.py(0)), (frame.px(1), frame.py(1))],
        class_="ideal",
    )


def _stage_marks(
    frame: Frame, class_: str, name: str, curve: "Curve", radius: float = 3.2
) -> Markup:
    bins = _filled(curve)
    whiskers = [
        tag(
            "line",
            x1=frame.px(confidence),
            x2=frame.px(confidence),
            y1=frame.py(low),
            y2=frame.py(high),
            class_=f"whisker {class_}",
        )
        for confidence, frequency, count in bins
        for low, high in [wilson(frequency, count)]
    ]
    dots = [
        tag(
            "circle",
            tag("title", f"{name}: {confidence:.1%} said, {frequency:.1%} seen, {count:,} entries"),
            cx=frame.px(confidence),
            cy=frame.py(frequency),
            r=radius,
            class_=f"dot {class_}",
        )
        for confidence, frequency, count in bins
    ]
    line = path([(frame.px(c), frame.py(f)) for c, f, _ in bins], class_=f"line {class_}")
    return join(*whiskers, line if len(bins) > 1 else None, *dots)


def _count_strip(frame: Frame, curve: "Curve", class_: str) -> Markup:
    foot, tall = frame.height - 24, 44
    peak = log1p(max(curve.counts, default=1) or 1)
    bars = [
        tag(
            "rect",
            tag("title", f"{low:.2f} to {high:.2f}: {count:,} entries"),
            x=frame.px(low) + 1,
            y=foot - tall * log1p(count) / peak,
            width=max(frame.px(high) - frame.px(low) - 2, 0.5),
            height=tall * log1p(count) / peak,
            class_=f"bar {class_}",
        )
        for low, high, count in zip(curve.edges, curve.edges[1:], curve.counts, strict=False)
    ]
    base = tag("line", x1=frame.px(0), x2=frame.px(1), y1=foot, y2=foot, class_="axis")
    name = tag("text", "entries", x=frame.left - 6, y=foot - tall / 2 - 3, class_="tick end")
    scale = tag("text", "(log)", x=frame.left - 6, y=foot - tall / 2 + 9, class_="tick end")
    words = tag("text", "mean probability", x=frame.px(0.5), y=frame.height - 6, class_="name mid")
    return join(*bars, base, name, scale, words)


def _stage_text(name: str, curve: "Curve") -> str:
    points = ", ".join(f"{c:.2f} said {f:.2f} seen ({n:,})" for c, f, n in _filled(curve))
    return f"{name}: {points}."


def save_charts(page: str, folder: Path) -> list[Path]:
    """Write every chart of a page to ``folder``, one SVG file each."""
    paths = []
    for name, chart in charts_of(page).items():
        path = folder / f"{name}.svg"
        with replacing(path) as temporary:
            temporary.write_text(chart, "utf-8")
        paths.append(path)
    return paths

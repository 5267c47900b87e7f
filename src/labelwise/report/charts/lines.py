"""Line chart: one or more series over a shared horizontal axis, with optional error bars."""

from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import Axis, Frame, legend, path, short

__all__ = ["Series", "line_chart"]

MANY = 40  # above this many points the dots are left out


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
    xs = [value for line in series for value in line.x]
    tops = [v + e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    lows = [v - e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    across = _whole(min(xs), max(xs), x) if whole else Axis.upto(max(xs), x, low=min(xs))
    frame = Frame(across, Axis.upto(max(tops), y, low=0 if zero else min(lows)), top=34)
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


def _whole(low: float, high: float, title: str) -> Axis:
    step = max(1, -(-int(high - low) // 8))
    marks = [(float(v), short(v)) for v in range(int(low), int(high) + 1, step)]
    room = 0.3 if high - low < 10 else 0.0
    return Axis(low - room, max(high, low + 1) + room, marks, title)

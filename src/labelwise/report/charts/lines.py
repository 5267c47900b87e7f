"""Line chart: one or more series over a shared horizontal axis, with optional error bars."""

from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import LETTER, Axis, Frame, cut, legend, path, short, spread

__all__ = ["Series", "line_chart"]

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
    ends: bool = False,
) -> Markup:
    """Return the chart. ``whole`` ticks only at integers; ``zero`` starts the axis at 0.

    ``ends`` writes the names where the lines end, for more of them than a key could hold.
    """
    xs = [value for line in series for value in line.x]
    tops = [v + e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    lows = [v - e for s in series for v, e in zip(s.y, s.errors or [0.0] * len(s.y), strict=True)]
    across = _whole(min(xs), max(xs), x) if whole else Axis.upto(max(xs), x, low=min(xs))
    up = Axis.upto(max(tops), y, low=0 if zero else min(lows))
    if ends:
        room = LETTER * max(len(cut(line.name, LETTERS)) for line in series) + 20
        frame = Frame(across, up, right=room, height=max(260.0, 13.0 * len(series) + 60))
        key = _names(frame, series)
    else:
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


def _names(frame: Frame, series: Sequence[Series]) -> Markup:
    wall = frame.width - frame.right
    ends = [(frame.px(line.x[-1]), frame.py(line.y[-1])) for line in series]
    places = spread([y for _, y in ends], 13.0)
    below = max(*places, 0.0) - (frame.height - frame.bottom - 4)
    places = [place - max(below, 0.0) for place in places]
    return join(
        *(
            join(
                path([(x + 4, y), (wall + 2, place)], class_=f"leader {line.class_}"),
                tag(
                    "text",
                    tag("title", line.name),
                    cut(line.name, LETTERS),
                    x=wall + 5,
                    y=place + 3.5,
                    class_=f"tone {line.class_}",
                ),
            )
            for line, (x, y), place in zip(series, ends, places, strict=True)
        )
    )


def _whole(low: float, high: float, title: str) -> Axis:
    step = max(1, -(-int(high - low) // 8))
    marks = [(float(v), short(v)) for v in range(int(low), int(high) + 1, step)]
    room = 0.3 if high - low < 10 else 0.0
    return Axis(low - room, max(high, low + 1) + room, marks, title)

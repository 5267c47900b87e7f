"""Dot plot: one row a name, small dots for its values, a large one for their mean, and a bar.

The axis holds every value; a bar that would squeeze them ends at the edge with an arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import LETTER, Axis, Frame, cut, path, short, ticks

__all__ = ["Dots", "dot_plot", "limits"]

LETTERS = 16  # of a name
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


def dot_plot(rows: Sequence[Dots], *, title: str, x: str, description: str) -> Markup:
    """Return the plot, rows from top to bottom, with each mean written out at the right."""
    low, high = limits(rows)
    left = BOLD * max(len(cut(row.name, LETTERS)) for row in rows) + 10
    right = BOLD * max(len(row.text) for row in rows) + 12
    lines = [(place + 0.5, "") for place in range(len(rows))]
    frame = Frame(
        Axis.upto(high, x, low=low, wanted=_wanted(low, high)),
        Axis(len(rows), 0, lines),
        left=left,
        right=right,
        top=2,
        height=ROW * len(rows) + 40,
    )
    marks = [_row(frame, row, frame.py(place + 0.5)) for place, row in enumerate(rows)]
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


def _wanted(low: float, high: float) -> int:
    """Return how many numbers to want at the axis: fewer where they are long."""
    return 3 if max(len(short(tick)) for tick in ticks(low, high, 3)) <= 5 else 2


def _row(frame: Frame, row: Dots, y: float) -> Markup:
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
        _bar(frame, row, y),
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


def _bar(frame: Frame, row: Dots, y: float) -> Markup | None:
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

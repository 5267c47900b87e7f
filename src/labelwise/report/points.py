"""Charts of several methods: a dot plot with a row per name, and named points in the plane.

Both draw small dots for the single values and a large one for their mean. The axis of the dot
plot holds every value; an interval that would squeeze them ends at the edge with an arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from labelwise.markup.html import Markup, join, tag
from labelwise.markup.svg import LETTER, Axis, Frame, cut, path, short, ticks

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
        Axis.upto(high, x, low=low, wanted=_wanted_ticks(low, high)),
        Axis(len(rows), 0, lines),
        left=left,
        right=right,
        top=2,
        height=ROW * len(rows) + 40,
    )
    marks = [_dots_row(frame, row, frame.py(place + 0.5)) for place, row in enumerate(rows)]
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


Box = tuple[float, float, float, float]  # left, top, right, bottom
Place = tuple[float, float, str]  # of a name: to the right of its dot, below it, its anchor

# Beside, above or below the dot; else ever further off, with a line from the dot to the name.
PLACES: tuple[Place, ...] = (
    (8, 3.5, "start"),
    (-8, 3.5, "end"),
    (0, -9, "mid"),
    (0, 16, "mid"),
    *(
        (12 * side, way * far + 3.5, "start" if side > 0 else "end")
        for far in (24, 38, 52, 66)
        for way in (-1, 1)
        for side in (1, -1)
    ),
)


@dataclass(frozen=True)
class NamedPoint:
    """A name, the place of its mean, and the places that it is the mean of."""

    class_: str
    name: str
    x: float
    y: float
    parts: Sequence[tuple[float, float]] = ()


def named_points(points: Sequence[NamedPoint], *, title: str, x: str, y: str) -> Markup:
    """Return the plot of points that are not negative."""
    across = [p.x for p in points] + [part[0] for p in points for part in p.parts]
    up = [p.y for p in points] + [part[1] for p in points for part in p.parts]
    frame = Frame(_axis(across, x), _axis(up, y), top=16, right=16)
    small = [
        tag("circle", cx=frame.px(a), cy=frame.py(b), r=1.8, class_=f"dot small {p.class_}")
        for p in points
        for a, b in p.parts
    ]
    large = [
        tag(
            "circle",
            tag("title", f"{p.name}: {p.x:.4g}, {p.y:.4g}"),
            cx=frame.px(p.x),
            cy=frame.py(p.y),
            r=4.6,
            class_=f"dot {p.class_}",
        )
        for p in points
    ]
    text = " ".join(f"{p.name}: {p.x:.4g} across, {p.y:.4g} up." for p in points)
    return frame.draw(*small, *large, *_names(frame, points), title=title, description=text)


def _axis(values: Sequence[float], title: str) -> Axis:
    """Return an axis with some room on both sides, from 0 where all values are one."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low)
    return Axis.upto(high + room or 1.0, title, low=max(low - room, 0.0) if room else 0.0)


def _names(frame: Frame, points: Sequence[NamedPoint]) -> list[Markup]:
    """Return each name beside its dot, where it hides neither a dot nor another name."""
    centres = [(frame.px(p.x), frame.py(p.y)) for p in points]
    taken: list[Box] = [(a - 5, b - 5, a + 5, b + 5) for a, b in centres]
    names = []
    for point, (a, b) in zip(points, centres, strict=True):
        text = cut(point.name, LETTERS)
        boxes = {place: _box(a, b, place, LETTER * len(text)) for place in PLACES}
        free = (place for place, box in boxes.items() if _fits(frame, box, taken))
        best = next(free, PLACES[0])
        taken.append(boxes[best])
        right, down, anchor = best
        far = abs(down) > 20
        leader = path([(a, b), (a + 0.8 * right, b + down - 3)], class_=f"leader {point.class_}")
        words = tag(
            "text",
            tag("title", point.name),
            text,
            x=a + right,
            y=b + down,
            class_=f"tone {point.class_} {anchor}",
        )
        names.append(join(leader if far else None, words))
    return names


def _box(x: float, y: float, place: Place, wide: float) -> Box:
    right, down, anchor = place
    left = x + right - {"start": 0.0, "mid": wide / 2, "end": wide}[anchor]
    return left, y + down - 9, left + wide, y + down + 3


def _fits(frame: Frame, box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    inside = left > frame.left and right < frame.width and top > 0
    return (
        inside
        and bottom < frame.height - frame.bottom
        and not any(
            left < other[2] and right > other[0] and top < other[3] and bottom > other[1]
            for other in taken
        )
    )

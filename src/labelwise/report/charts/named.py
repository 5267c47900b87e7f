"""Named points: each a large dot at its mean with its name, and small dots for its parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import LETTER, Axis, Frame, cut, path

__all__ = ["NamedPoint", "named_points"]

LETTERS = 16  # of a name

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

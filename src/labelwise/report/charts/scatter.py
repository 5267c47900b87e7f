"""Scatter plot over a logarithmic horizontal axis, such as average precision against count."""

from collections.abc import Sequence
from math import ceil, floor, log10

from labelwise.report.html import Markup, tag
from labelwise.report.svg import Axis, Frame, short

__all__ = ["scatter_chart"]

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

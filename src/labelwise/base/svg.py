"""The frame of every chart: a plot area with two axes, drawn in SVG.

A chart is about 340 units wide, the width of a phone, so that its letters keep their size there.
Colours and strokes are classes; the page's style sheet gives them for light, dark and paper.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

from labelwise.base.html import Markup, join, tag

TITLE = 19.0  # the room of an axis's name that is written upwards
LETTER = 6.2  # the width that a letter of a chart takes, or a little more


@dataclass(frozen=True)
class Axis:
    """One direction of a chart: the values at its ends, its ticks and what it is called."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""

    @staticmethod
    def unit(title: str) -> "Axis":
        return Axis(0, 1, [(t / 4, f"{25 * t}%") for t in range(5)], title)

    @staticmethod
    def upto(high: float, title: str, *, low: float = 0.0, wanted: int = 5) -> "Axis":
        """Return an axis over [low, high], widened to round ticks, and to a span if it has none."""
        if high == low:
            low, high = low - 0.5, high + 0.5
        marks = ticks(low, high, wanted)
        names = [short(mark) for mark in marks]
        if len(set(names)) < len(names):  # too close together for so few digits
            digits = -floor(log10(marks[1] - marks[0]) + 1e-9)
            names = [f"{mark:.{max(digits, 0)}f}" for mark in marks]
        return Axis(marks[0], marks[-1], list(zip(marks, names, strict=True)), title)


@dataclass(frozen=True)
class Frame:
    """The plot area and its two scales; long numbers at a named axis widen the left margin."""

    x: Axis
    y: Axis
    width: float = 340.0
    height: float = 260.0
    left: float = 52.0
    right: float = 12.0
    top: float = 12.0
    bottom: float = 40.0

    def __post_init__(self) -> None:
        if self.y.title:
            numbers = LETTER * max((len(text) for _, text in self.y.ticks), default=0)
            object.__setattr__(self, "left", max(self.left, TITLE + numbers + 6))

    def px(self, value: float) -> float:
        span = self.width - self.left - self.right
        return round(self.left + span * (value - self.x.low) / (self.x.high - self.x.low), 2)

    def py(self, value: float) -> float:
        span = self.height - self.top - self.bottom
        share = (value - self.y.low) / (self.y.high - self.y.low)
        return round(self.height - self.bottom - span * share, 2)

    def draw(self, *marks: Markup, title: str, description: str) -> Markup:
        """Return the chart with its axes, named and described for those who cannot see it."""
        middle = (self.top + self.height - self.bottom) / 2
        centre = (self.left + self.width - self.right) / 2
        foot, right = self.height - self.bottom, self.width - self.right
        turned = f"rotate(-90 11 {middle:g})"
        rows: list[Markup] = []
        for value, words in self.y.ticks:
            rows.append(line(self.left, right, self.py(value), self.py(value), "grid"))
            rows.append(text(words, self.left - 6, self.py(value) + 3.5, "tick end"))
        columns = (text(words, self.px(x), foot + 15, "tick mid") for x, words in self.x.ticks)
        return tag(
            "svg",
            tag("title", title),
            tag("desc", description),
            *rows,
            *columns,
            line(self.left, right, foot, foot, "axis"),
            *marks,
            text(self.x.title, centre, self.height - 6, "name mid") if self.x.title else None,
            text(self.y.title, 11, middle, "name mid", turned) if self.y.title else None,
            viewbox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=f"{title}. {description}",
            class_="chart",
        )


def line(x1: float, x2: float, y1: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=class_)


def text(
    words: str, x: float, y: float, class_: str, transform: str | None = None, full: str = ""
) -> Markup:
    """Return words at a place; ``full`` is what they were cut from."""
    title = tag("title", full) if full else None
    return tag("text", title, words, x=x, y=y, transform=transform, class_=class_)


def dot(words: str, x: float, y: float, radius: float, class_: str) -> Markup:
    """Return a dot that says its words where one points at it."""
    return tag("circle", tag("title", words), cx=x, cy=y, r=radius, class_=f"dot {class_}")


def bar(words: str, x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """Return a bar that says its words where one points at it."""
    shape = {"x": x, "y": y, "width": width, "height": height}
    return tag("rect", tag("title", words), **shape, class_=f"bar {class_}")


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Return the line through points already placed on the chart."""
    return tag("path", d="M" + " L".join(f"{x:g} {y:g}" for x, y in points), class_=class_)


def legend(entries: Sequence[tuple[str, str]], *, x: float, y: float) -> Markup:
    """Return the key of a chart, one line each: the class of the marks, then their name."""
    marks = []
    for row, (class_, name) in enumerate(entries):
        place = {"x": x, "y": y + 14 * row - 8, "width": 10, "height": 10}
        marks.append(tag("rect", **place, class_=f"key {class_}"))
        marks.append(text(name, x + 15, y + 14 * row + 1, "tick"))
    return join(*marks)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return about ``wanted`` round numbers that cover [low, high].

    >>> ticks(0, 7)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    span = max(high - low, 1e-9 * max(abs(high), 1.0))
    scale = 10.0 ** floor(log10(span / wanted))
    step = scale * min(m for m in (1, 2, 5, 10) if m * scale * wanted >= span)
    first, last = floor(low / step + 1e-9), -floor(-high / step + 1e-9)
    return [round(step * n, 12) for n in range(first, last + 1)]


def short(value: float) -> str:
    """Return a number in few letters.

    >>> short(12000), short(0.25), short(3)
    ('12k', '0.25', '3')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def cut(text: str, letters: int) -> str:
    """Return the text, or its beginning where it is longer than ``letters``.

    >>> cut("quasibinary", 20), cut("quasibinary", 6)
    ('quasibinary', 'quasi…')
    """
    return text if len(text) <= letters else text[: letters - 1] + "…"

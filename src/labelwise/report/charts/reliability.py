"""Reliability diagram: observed share against mean probability, with the counts below.

A whisker is the 95 % Wilson interval of a bin's share. It takes entries as independent, which
entries of one image are not, so it is a lower bound of the doubt.
"""

from collections.abc import Sequence
from math import log1p, sqrt

from labelwise.evaluate import Curve
from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import Axis, Frame, legend, path

__all__ = ["reliability_chart", "reliability_thumbnail", "wilson"]

Stage = tuple[str, str, Curve]  # class of its marks, name, curve


def reliability_chart(stages: Sequence[Stage], *, title: str) -> Markup:
    """Return the diagram of one or two stages (before, after) over the counts of the last."""
    frame = Frame(Axis.unit(""), Axis.unit("observed share"), height=326, bottom=100, right=14)
    last = stages[-1][2]
    strip = _counts(frame, last, stages[-1][0])
    key = legend([(class_, name) for class_, name, _ in stages], x=frame.px(0.03), y=frame.py(0.94))
    return frame.draw(
        _diagonal(frame),
        *(_stage(frame, *stage) for stage in stages),
        key,
        strip,
        title=title,
        description=" ".join(_described(name, curve) for _, name, curve in stages),
    )


def reliability_thumbnail(stages: Sequence[Stage], *, title: str) -> Markup:
    """Return a small diagram without words, for one label among many."""
    axis = Axis(0, 1, [(0, "0"), (0.5, ""), (1, "1")])
    frame = Frame(axis, axis, 150, 140, left=18, right=6, top=6, bottom=18)
    return frame.draw(
        _diagonal(frame),
        *(_stage(frame, *stage, radius=2.2) for stage in stages),
        title=title,
        description=" ".join(_described(name, curve) for _, name, curve in stages),
    )


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of ``count`` trials."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _filled(curve: Curve) -> list[tuple[float, float, int]]:
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


def _stage(frame: Frame, class_: str, name: str, curve: Curve, radius: float = 3.2) -> Markup:
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


def _counts(frame: Frame, curve: Curve, class_: str) -> Markup:
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


def _described(name: str, curve: Curve) -> str:
    said = ", ".join(f"{c:.2f} said {f:.2f} seen ({n:,})" for c, f, n in _filled(curve))
    return f"{name}: {said}."

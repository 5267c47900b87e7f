"""Histograms: two counts side by side per cell, or two shares back to back."""

from collections.abc import Sequence

from labelwise.report.html import Markup, join, tag
from labelwise.report.svg import Axis, Frame, legend, ticks

__all__ = ["grouped_bars", "mirrored"]

Group = tuple[str, str, Sequence[int]]  # class of its bars, name, counts


def grouped_bars(
    groups: Sequence[Group], names: Sequence[str], *, title: str, x: str, y: str = "images"
) -> Markup:
    """Return bars of several groups beside each other over named cells."""
    peak = max((max(counts, default=0) for _, _, counts in groups), default=0)
    every = -(-len(names) // 10)
    marks = [(place + 0.5, name) for place, name in enumerate(names) if place % every == 0]
    frame = Frame(Axis(0, len(names), marks, x), Axis.upto(max(peak, 1), y), top=34)
    width = 0.8 / len(groups)
    bars = [
        tag(
            "rect",
            tag("title", f"{name}, {cell}: {count:,}"),
            x=frame.px(place + 0.1 + order * width),
            y=frame.py(count),
            width=max((frame.px(1) - frame.px(0)) * width - 0.6, 0.6),
            height=frame.py(0) - frame.py(count),
            class_=f"bar {class_}",
        )
        for order, (class_, name, counts) in enumerate(groups)
        for place, (cell, count) in enumerate(zip(names, counts, strict=True))
    ]
    key = legend([(class_, name) for class_, name, _ in groups], x=frame.left, y=12)
    text = " ".join(
        f"{name}: " + ", ".join(f"{c} {n:,}" for c, n in zip(names, counts, strict=True)) + "."
        for _, name, counts in groups
    )
    return frame.draw(*bars, key, title=title, description=text)


def mirrored(up: Group, down: Group, edges: Sequence[float], *, title: str, x: str) -> Markup:
    """Return two histograms back to back, each as shares of its own rows and on its own scale."""
    shares = [[count / max(sum(counts), 1) for count in counts] for _, _, counts in (up, down)]
    marks = [ticks(0.0, max(*parts, 0.01), 3) for parts in shares]
    reach = [steps[-1] for steps in marks]
    levels = [(v / reach[0], _percent(v)) for v in marks[0]]
    levels += [(-v / reach[1], _percent(v)) for v in marks[1][1:]]
    frame = Frame(
        Axis(edges[0], edges[-1], Axis.unit("").ticks, x),
        Axis(-1, 1, levels, "share of the images"),
        height=290,
    )
    floor = frame.py(0)
    bars = [
        tag(
            "rect",
            tag("title", f"{name}, {low:.2f} to {high:.2f}: {count:,} images ({share:.1%})"),
            x=frame.px(low) + 0.6,
            y=frame.py(share / top) if sign > 0 else floor,
            width=max(frame.px(high) - frame.px(low) - 1.2, 0.6),
            height=floor - frame.py(share / top),
            class_=f"bar {class_}",
        )
        for sign, (class_, name, counts), parts, top in (
            (1, up, shares[0], reach[0]),
            (-1, down, shares[1], reach[1]),
        )
        for low, high, count, share in zip(edges, edges[1:], counts, parts, strict=False)
    ]
    base = tag(
        "line", x1=frame.px(edges[0]), x2=frame.px(edges[-1]), y1=floor, y2=floor, class_="axis"
    )
    words = join(
        legend([(up[0], f"{up[1]} ({sum(up[2]):,})")], x=frame.left + 6, y=frame.top + 14),
        legend(
            [(down[0], f"{down[1]} ({sum(down[2]):,})")],
            x=frame.px((edges[0] + edges[-1]) / 2) + 20,
            y=frame.height - frame.bottom - 10,
        ),
    )
    text = " ".join(
        f"{name}: " + ", ".join(f"{s:.1%}" for s in parts) + " from 0 to 1."
        for (_, name, _), parts in ((up, shares[0]), (down, shares[1]))
    )
    return frame.draw(*bars, base, words, title=title, description=text)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"

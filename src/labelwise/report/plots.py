"""The report's charts for matplotlib: on axes you already have, or as PNG and SVG files.

figure, axes = plt.subplots()
plots.reliability(axes, evaluation)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.evaluation import Calibration, Curve, Evaluation
from labelwise.numeric.bounds import wilson
from labelwise.report.charts import AS_GIVEN
from labelwise.system.files import replacing

Axes = Any
Figure = Any

AFTER, BEFORE, TRUE, INK = "#0b62a8", "#b3530c", "#6a727b", "#59616a"


def reliability(axes: Axes, evaluation: Evaluation, *, top_k: bool = False) -> None:
    """Draw observed share against mean probability, before and after calibration."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=":")
    for part, name, colour, style in _stages(evaluation):
        curve = part.top_k if top_k else part.pooled
        _curve(axes, curve, f"{name} (ECE {_percent(curve.ece)})", colour, style)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="mean probability", ylabel="observed share")
    axes.set_aspect("equal")
    axes.legend(frameon=False, loc="upper left")


def zero_label(axes: Axes, evaluation: Evaluation) -> None:
    """Draw the largest probability of images with labels (up) and without (down)."""
    zero = evaluation.zero_label
    if zero is None or zero.rows == 0:
        raise ValueError("zero_label needs images without labels and probabilities, got none")
    width = zero.edges[1] - zero.edges[0]
    middles = [edge + width / 2 for edge in zero.edges[:-1]]
    groups = (("with labels", zero.inside, AFTER, 1), ("without", zero.outside, BEFORE, -1))
    for name, counts, colour, sign in groups:
        shares = [sign * count / max(sum(counts), 1) for count in counts]
        axes.bar(middles, shares, width=0.92 * width, color=colour, label=name)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set(xlim=(0, 1), xlabel="largest probability of the image", ylabel="share of the images")
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")  # both ways are shares
    axes.legend(frameon=False)


def set_sizes(axes: Axes, evaluation: Evaluation) -> None:
    """Draw how many labels images have and how many the rule gives them."""
    sets = evaluation.sets
    if sets is None:
        raise ValueError("set_sizes needs an evaluation with a rule, got one without")
    for shift, name, counts, colour in (
        (-0.2, "true", sets.true_sizes, TRUE),
        (0.2, "decided", sets.sizes, AFTER),
    ):
        axes.bar([n + shift for n in range(len(counts))], counts, 0.38, color=colour, label=name)
    axes.set(xlabel="labels per image", ylabel="images")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def retrieval(axes: Axes, evaluation: Evaluation) -> None:
    """Draw retrieval mAP against query length, with 95 % intervals of sampled lengths."""
    points = [p for p in evaluation.retrieval if p.map is not None]
    if not points:
        raise ValueError("retrieval needs measured query lengths, got none")
    axes.errorbar(
        [p.length for p in points],
        [p.map for p in points],
        yerr=[1.96 * (p.error or 0.0) for p in points],
        color=AFTER,
        marker="o",
        markersize=4,
        capsize=2,
    )
    axes.set(xlabel="labels in the query", ylabel="mAP", ylim=(0, 1))
    axes.set_xticks([p.length for p in points])


def save_charts(
    evaluation: Evaluation, folder: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write every chart that applies to ``folder`` and return the files."""

    def drawn(draw: Callable[[Axes, Evaluation], None]) -> Drawing:
        return Drawing((4.6, 4.2), lambda figure: draw(plain_axes(figure), evaluation))

    charts = {name: drawn(draw) for name, draw in _applicable(evaluation).items()}
    return save_drawings(charts, folder, formats)


@dataclass(frozen=True)
class Drawing:
    """The size of a figure in inches, and what draws on it."""

    size: tuple[float, float]
    draw: Callable[[Figure], None]


def save_drawings(
    drawings: Mapping[str, Drawing], folder: str | Path, formats: Sequence[str]
) -> list[Path]:
    """Write each drawing in each format to ``folder`` and return the files."""
    from matplotlib import figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = []
    for name, drawing in drawings.items():
        canvas = FigureCanvasAgg(figure.Figure(figsize=drawing.size, layout="constrained"))
        drawing.draw(canvas.figure)
        for form in formats:
            path = Path(folder) / f"{name}.{form}"
            with replacing(path) as temporary:
                canvas.figure.savefig(temporary, format=form, dpi=160)
            written.append(path)
    return written


def plain_axes(figure: Figure, *place: int) -> Axes:
    """Return axes with two spines, alone on the figure or at ``rows, columns, number``."""
    axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _applicable(evaluation: Evaluation) -> dict[str, Callable[[Axes, Evaluation], None]]:
    zero = evaluation.zero_label
    charts: dict[str, tuple[bool, Callable[[Axes, Evaluation], None]]] = {
        "reliability": (evaluation.final is not None, reliability),
        "reliability-top-k": (evaluation.final is not None, _reliability_top_k),
        "zero-label": (zero is not None and zero.rows > 0, zero_label),
        "set-sizes": (evaluation.sets is not None, set_sizes),
        "retrieval": (any(p.map is not None for p in evaluation.retrieval), retrieval),
    }
    return {name: draw for name, (applies, draw) in charts.items() if applies}


def _reliability_top_k(axes: Axes, evaluation: Evaluation) -> None:
    reliability(axes, evaluation, top_k=True)


def _stages(evaluation: Evaluation) -> list[tuple[Calibration, str, str, str]]:
    if evaluation.after is None:
        if evaluation.before is None:
            raise ValueError("reliability needs probabilities, got an evaluation of ranks only")
        return [(evaluation.before, AS_GIVEN, AFTER, "-")]
    first = [] if evaluation.before is None else [(evaluation.before, "before", BEFORE, "--")]
    return [*first, (evaluation.after, "after", AFTER, "-")]


def _curve(axes: Axes, curve: Curve, name: str, colour: str, style: str) -> None:
    bins = [
        (confidence, seen, *wilson(seen, count))
        for confidence, seen, count in zip(
            curve.confidence, curve.frequency, curve.counts, strict=True
        )
        if confidence is not None and seen is not None
    ]
    confidence, seen, low, high = (list(column) for column in zip(*bins, strict=True))
    axes.plot(confidence, seen, style, color=colour, marker="o", markersize=4, label=name)
    axes.vlines(confidence, low, high, color=colour, linewidth=1, alpha=0.5)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}%"

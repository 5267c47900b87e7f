"""Training: the numbers logged in ``metrics.jsonl``, one chart a quantity."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from labelwise.report.charts import Series, line_chart
from labelwise.report.html import Markup, tag
from labelwise.report.words import figure, section

__all__ = ["History", "curves", "training"]

History = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]

POINTS = 400
CHARTS = 9
CLOCK = "step"
STYLES = ("after", "before", "present", "absent")
QUIET = frozenset({CLOCK, "epoch", "epoch_loss", "images_per_second", "seconds", "best"})
NAMES = {  # key of a record: chart, line
    "loss": ("Loss", "training"),
    "val_map": ("Validation mAP", "over labels"),
    "val_map_sample": ("Validation mAP", "over images"),
    "val_log_loss": ("Validation log loss", "validation"),
    "link.log_normalizer": ("Normaliser, log C", "log C of the quasibinary link"),
    "lr": ("Learning rate", "learning rate"),
}


def training(history: History | None) -> Markup | None:
    """Return the section, or nothing where no number was logged more than once."""
    charts = []
    for title, lines in list(curves(history or ()).items())[:CHARTS]:
        series = [
            Series(style, name, [x for x, _ in points], [y for _, y in points])
            for style, (name, points) in zip(STYLES, lines.items(), strict=False)
        ]
        chart = line_chart(series, title=f"{title} over training", x="step", y=title)
        ends = "; ".join(f"{name} ends at {points[-1][1]:.4g}" for name, points in lines.items())
        charts.append(figure(chart, f"{title}.", f"{ends}."))
    if not charts:
        return None
    return section("training", "Training", tag("div", *charts, class_="figures"))


def curves(history: History) -> dict[str, dict[str, Points]]:
    """Return the lines of every chart; known quantities first, then what else was logged."""
    found: dict[str, dict[str, Points]] = {chart: {} for chart, _ in NAMES.values()}
    for record in history:
        if not _is_number(record.get(CLOCK)):
            continue
        for key, value in record.items():
            if key not in QUIET and _is_number(value):
                chart, line = NAMES.get(key, (key, key))
                found.setdefault(chart, {}).setdefault(line, []).append((record[CLOCK], value))
    lasting = {
        chart: {line: _thinned(points) for line, points in lines.items() if len(points) > 1}
        for chart, lines in found.items()
    }
    return {chart: lines for chart, lines in lasting.items() if lines}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _thinned(points: Points) -> Points:
    step = -(-len(points) // POINTS)
    return [*points[:-1:step], points[-1]]

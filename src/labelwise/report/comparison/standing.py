"""Where a method stands in a column: best, not told apart from the best, or behind it."""

from math import isfinite
from typing import Literal

from labelwise.experiments.comparison import Comparison, show_figure
from labelwise.experiments.measures import MEASURES
from labelwise.experiments.statistics import Difference, Interval, compare_to_best

__all__ = ["Standing", "best_of", "present", "runs_shared", "said", "scale", "standings", "tone"]

Standing = Literal["best", "level", "behind", "only"]

TONES = 8  # colours of the style sheet; further methods have them again, dashed


def present(comparison: Comparison, name: str) -> dict[str, Interval]:
    """Return the mean and interval of a column, of the methods that have a value there."""
    found = comparison.intervals(name)
    return {method: value for method, value in found.items() if isfinite(value.mean)}


def standings(comparison: Comparison, name: str) -> dict[str, Standing]:
    """Return the standing of every method that has a value; a single one is ``only``."""
    gaps = _gaps(comparison, name)
    values = present(comparison, name)
    if not gaps:
        return dict.fromkeys(values, "only")
    behind = {gap.first for gap in gaps if gap.distinguishable}
    best = gaps[0].second
    return {
        method: "best" if method == best else "behind" if method in behind else "level"
        for method in values
    }


def best_of(comparison: Comparison, name: str) -> str | None:
    """Return the method with the best mean, if there are two to choose from."""
    places = standings(comparison, name)
    return next((method for method, place in places.items() if place == "best"), None)


def runs_shared(comparison: Comparison, name: str) -> int:
    """Return on how many seeds methods and the best one were compared, at the least."""
    return min((gap.interval.n for gap in _gaps(comparison, name)), default=0)


def scale(name: str) -> float:
    """Return what a column's values are multiplied by to be shown."""
    return 100.0 if MEASURES[name].percent else 1.0


def said(comparison: Comparison, name: str, method: str) -> str:
    """Return a figure as the comparison's own table says it."""
    return show_figure(comparison.intervals(name)[method], MEASURES[name].percent)


def tone(comparison: Comparison, method: str) -> str:
    """Return the class that gives a method its colour on this page."""
    number = list(comparison.figures).index(method)
    return f"m{number % TONES}" + (" dashed" if number >= TONES else "")


def _gaps(comparison: Comparison, name: str) -> list[Difference]:
    column = comparison.column(name)
    values = {method: column[method] for method in present(comparison, name)}
    return compare_to_best(values, higher_is_better=MEASURES[name].higher_is_better)

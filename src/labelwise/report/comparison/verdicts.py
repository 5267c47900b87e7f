"""What came out: the best method of each judged measure, and what is and is not told apart."""

from labelwise.experiments.comparison import JUDGED, Comparison
from labelwise.experiments.measures import MEASURES
from labelwise.report.comparison.standing import best_of, runs_shared, said, standings
from labelwise.report.html import Markup, tag
from labelwise.report.words import paragraph, section

__all__ = ["verdicts"]

FEW = 3  # methods that a tile names


def verdicts(comparison: Comparison) -> Markup:
    """Return the section: tiles, then the comparison's own sentences."""
    tiles = [_tile(comparison, name) for name in JUDGED if best_of(comparison, name)]
    return section(
        "verdicts",
        "What came out",
        tag("ul", *tiles, class_="tiles three") if tiles else None,
        tag("ul", *(tag("li", text) for text in comparison.verdicts()), class_="said"),
        paragraph(tag("a", "How everything was computed", href="#how"), ".", class_="small muted"),
    )


def _tile(comparison: Comparison, name: str) -> Markup:
    best = best_of(comparison, name) or ""
    way = "highest" if MEASURES[name].higher_is_better else "lowest"
    unit = " %" if MEASURES[name].percent else ""
    return tag(
        "li",
        tag("span", f"{name}, {way}", class_="what"),
        tag("span", best, class_="number word"),
        tag("span", said(comparison, name, best) + unit, class_="range"),
        tag("span", _doubt(comparison, name), class_="range"),
        class_="tile",
    )


def _doubt(comparison: Comparison, name: str) -> str:
    if runs_shared(comparison, name) < 2:
        return "one seed cannot tell luck from skill"
    level = [m for m, place in standings(comparison, name).items() if place == "level"]
    if not level:
        return "told apart from all others"
    listed = ", ".join(level) if len(level) <= FEW else f"{len(level)} others"
    return f"not told apart from {listed}"

"""The page of a comparison: its headline and its parts, in the order in which they are read."""

from labelwise.experiments.comparison import Comparison
from labelwise.report.comparison.how import how, tuned
from labelwise.report.comparison.measures import measures
from labelwise.report.comparison.price import price
from labelwise.report.comparison.search import search
from labelwise.report.comparison.tables import all_numbers, knobs
from labelwise.report.comparison.verdicts import verdicts
from labelwise.report.document import document

__all__ = ["comparison_page"]


def comparison_page(comparison: Comparison, *, data: str = "", tries: int | None = None) -> str:
    """Return the whole page as text; ``data`` and ``tries`` are said where they are known."""
    return document(
        f"{data}: methods compared" if data else "Methods compared",
        _facts(comparison, tries),
        [
            ("verdicts", "What came out", verdicts(comparison)),
            ("measures", "Measures", measures(comparison)),
            ("price", "Price of a low MMC", price(comparison)),
            ("search", "Search", search(comparison)),
            ("table", "All numbers", all_numbers(comparison)),
            ("knobs", "Settings", knobs(comparison)),
            ("how", "How", how(comparison, tries)),
        ],
    )


def _facts(comparison: Comparison, tries: int | None) -> str:
    methods = list(comparison.figures)
    seeds = sorted({seed for by_seed in comparison.figures.values() for seed in by_seed})
    parts = [
        f"{len(methods)} {'method' if len(methods) == 1 else 'methods'}: {', '.join(methods)}.",
        f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}: {', '.join(map(str, seeds))}.",
        tuned(tries),
    ]
    return " ".join(part for part in parts if part)

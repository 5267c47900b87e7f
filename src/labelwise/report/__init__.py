"""The report: one HTML file, drawn in SVG, complete in itself.

Names are imported when they are first used: an evaluation of scores is written without torch.
"""

from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.report.comparison import write_comparison
    from labelwise.report.examples import Example, ExampleGroup, Guess, choose_examples
    from labelwise.report.page import write_report

__all__ = [
    "Example",
    "ExampleGroup",
    "Guess",
    "choose_examples",
    "write_comparison",
    "write_report",
]

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "comparison": ("write_comparison",),
            "examples": ("Example", "ExampleGroup", "Guess", "choose_examples"),
            "page": ("write_report",),
        },
    )

"""The report: one HTML file, drawn in SVG, complete in itself."""

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

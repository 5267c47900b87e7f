"""The report: one HTML file, drawn in SVG, complete in itself; and the charts for matplotlib."""

from labelwise.report import plots
from labelwise.report.comparison import write_comparison
from labelwise.report.comparison_plots import save_comparison_charts
from labelwise.report.examples import Example, ExampleGroup, Guess, choose_examples
from labelwise.report.page import write_report

__all__ = [
    "Example",
    "ExampleGroup",
    "Guess",
    "choose_examples",
    "plots",
    "save_comparison_charts",
    "write_comparison",
    "write_report",
]

"""The report: one HTML file, drawn in SVG, complete in itself; and the charts for matplotlib."""

from labelwise.report import plots
from labelwise.report.examples import Example, ExampleGroup, Guess, choose_examples
from labelwise.report.write import write_report

__all__ = ["Example", "ExampleGroup", "Guess", "choose_examples", "plots", "write_report"]

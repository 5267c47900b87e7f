"""One kind of chart a file; each is a function from plain numbers to an SVG."""

from labelwise.report.charts.dots import Dots, dot_plot
from labelwise.report.charts.histogram import grouped_bars, mirrored
from labelwise.report.charts.lines import Series, line_chart
from labelwise.report.charts.named import NamedPoint, named_points
from labelwise.report.charts.reliability import reliability_chart, reliability_thumbnail
from labelwise.report.charts.scatter import scatter_chart

__all__ = [
    "Dots",
    "NamedPoint",
    "Series",
    "dot_plot",
    "grouped_bars",
    "line_chart",
    "mirrored",
    "named_points",
    "reliability_chart",
    "reliability_thumbnail",
    "scatter_chart",
]

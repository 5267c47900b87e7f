"""The page of a comparison: one part a file, each a function from a comparison to markup."""

from labelwise.report.comparison.page import comparison_page
from labelwise.report.comparison.plots import save_comparison_charts

__all__ = ["comparison_page", "save_comparison_charts"]

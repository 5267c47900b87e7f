"""All numbers: the full table, every run behind it, and what each method was trained with."""

from labelwise.experiments.comparison import Comparison, show_figure
from labelwise.experiments.measures import MEASURES
from labelwise.experiments.statistics import interval
from labelwise.report.comparison.standing import standings
from labelwise.report.html import Markup
from labelwise.report.words import NONE, Cell, details, paragraph, section, table

__all__ = ["all_numbers", "knobs"]

UNITS = "per cent but log loss, Brier, seconds and MB"


def all_numbers(comparison: Comparison) -> Markup:
    """Return the section: one row a measure, one column a method, the best of each row bold."""
    header, cells = comparison.table(list(MEASURES))
    shown = [name for name in MEASURES if any(comparison.column(name).values())]
    rows: list[list[str | Cell]] = [
        [title, *(Cell(row[place], strong=standing.get(row[0]) == "best") for row in cells)]
        for place, (title, name) in enumerate(zip(header[1:], shown, strict=True), 1)
        for standing in [standings(comparison, name)]
    ]
    runs: list[list[str | Cell]] = [
        [
            method,
            Cell(str(seed), seed),
            *(_figure(figures.get(name), MEASURES[name].percent) for name in shown),
        ]
        for method, by_seed in comparison.figures.items()
        for seed, figures in by_seed.items()
    ]
    return section(
        "table",
        "All numbers",
        table(
            ["", *comparison.figures],
            rows,
            caption=f"Mean ± half the 95 % interval over seeds, {UNITS}. Bold: the best mean.",
            pinned=True,
        ),
        details(
            "Every run",
            table(
                ["method", "seed", *shown],
                runs,
                caption=f"One row a run, {UNITS}.",
                sortable=True,
                pinned=True,
            ),
        ),
    )


def knobs(comparison: Comparison) -> Markup | None:
    """Return the section, or nothing where no settings are known."""
    names = list(dict.fromkeys(name for values in comparison.knobs.values() for name in values))
    if not names:
        return None
    rows = [
        [method, *(str(values.get(name, NONE)) for name in names)]
        for method, values in comparison.knobs.items()
    ]
    return section(
        "knobs",
        "Settings chosen",
        paragraph("What each method was trained with; everything else is the same for all."),
        table(["method", *names], rows, caption="A dash: the method has no such setting."),
    )


def _figure(value: float | None, percent: bool) -> Cell:
    if value is None:
        return Cell(NONE)
    return Cell(show_figure(interval([value]), percent), value)

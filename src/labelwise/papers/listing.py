"""What of the papers can be run here: their tables, figures, cells and rows."""

from pathlib import Path

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.papers.computed import COMPUTED
from labelwise.papers.figures import FIGURES
from labelwise.papers.protocols import EXPERIMENTS
from labelwise.papers.reproduce import cells_of, find_experiment, has_data, where_to_put
from labelwise.papers.survey import SurveyPlan

SURVEYED = "survey"
IN_PART = ("000-table1", "000-table3", "001-table3", "001-fig3")  # some of their cells, by us
NOT_RUN = (
    *("000-supplement-table1", "001-vqa", "002-tableC"),
    *("003-table2", "003-appendix", "003-appendixE", "004-table1", "004-table2"),
)
Listed = tuple[list[str], list[list[str]], str | None]  # header, rows, title


def rows_of(table: str, root: Path) -> list[Listed]:
    """Return the cells and rows of a table, with the figures that are printed of them."""
    if table in COMPUTED:
        raise SettingsError(f"{table} is computed and has no rows to list; run it")
    experiment, cells, lines = find_experiment(table), cells_of(table), []
    if len(cells) > 1:
        places = (None if has_data(cell, root) else where_to_put(cell, root) for cell in cells)
        ready = [[cell.name, place or "yes"] for cell, place in zip(cells, places, strict=True)]
        lines.append((["cell", "can run now"], ready, f"{table} has {len(cells)} cells"))
    printed, rows = experiment.published, []
    for name, row in experiment.rows.items():
        figures = printed.rows.get(name, (None,) * len(printed.columns))
        rows.append([name, row.runs, *("–" if f is None else f"{f:g}" for f in figures)])
    return [*lines, (["row", "runs", *printed.columns], rows, f"{printed.title}, as printed")]


def status_of(table: str) -> str:
    """Return whether evidence/reproduction.md has runs of a table."""
    return "not run" if table in NOT_RUN else "in part" if table in IN_PART else "run"


def _cost(table: str) -> list[str]:
    """Return the row of a table that was not run: its data, and the runs of one seed."""
    cells = cells_of(table)
    data = ", ".join(dict.fromkeys(cell.data for cell in cells))
    runs = [(len(cell.rows), cell.protocol.get("recipe.epochs")) for cell in cells]
    epochs = dict.fromkeys(str(count) for _, count in runs)
    cost = f"{sum(count for count, _ in runs)} runs of {' or '.join(epochs)} epochs"
    return [table, data, cost]


def tables_and_figures(root: Path) -> list[Listed]:
    """Return all tables and figures with what we ran and what can be run now, then what is left."""
    rows = []
    for table in dict.fromkeys(experiment.table for experiment in EXPERIMENTS.values()):
        cells = cells_of(table)
        ready = [cell for cell in cells if has_data(cell, root)]
        words = "yes" if ready else where_to_put(cells[0], root)
        if 0 < len(ready) < len(cells):
            words = ", ".join(cell.cell for cell in ready)
        count = "" if len(cells) == 1 else str(len(cells))
        rows.append([table, cells[0].published.title, count, status_of(table), words])
    for table, computed in COMPUTED.items():
        rows.append([table, computed.title, "", status_of(table), "yes, computed"])
    try:
        words = ", ".join(SurveyPlan(root).places())
    except LabelwiseError as error:
        words = str(error)
    title = "Every method: all labels, a tenth, one per image, noise, half of the images"
    rows.append([SURVEYED, title, "", "run", words])
    drawn = []
    for name, figure in FIGURES.items():
        table = figure.table or "formulas alone"
        drawn.append([name, figure.title, status_of(figure.table), table])
    return [
        (["table", "what (its first cell)", "cells", "by us", "can run now"], rows, None),
        (["figure", "what", "by us", "drawn from"], drawn, None),
        (["not run by us", "data", "cost of one seed"], [_cost(cost) for cost in NOT_RUN], None),
    ]

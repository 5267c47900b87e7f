"""What of the papers can be run here: their tables, figures, cells and rows."""

from pathlib import Path

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.papers.computed import COMPUTED
from labelwise.papers.figures import FIGURES
from labelwise.papers.protocols import DATASETS, EXPERIMENTS, TRANSFER
from labelwise.papers.reproduce import cells_of, find_experiment, has_data, where_to_put
from labelwise.papers.sources import holds_files
from labelwise.papers.survey import SurveyPlan
from labelwise.papers.transfer import TITLE, available_sets, where_to_put_set

TRANSFERRED, SURVEYED = "002-tableA", "survey"
Listed = tuple[list[str], list[list[str]], str | None]  # header, rows, title


def rows_of(table: str, root: Path) -> list[Listed]:
    """Return the cells and rows of a table, with the figures that are printed of them."""
    if table in COMPUTED:
        raise SettingsError(f"{table} is computed and has no rows to list; run it")
    if table == TRANSFERRED:
        there = available_sets(root).items()
        listed = [[name, "yes" if ready else where_to_put_set(name, root)] for name, ready in there]
        return [(["row", "can run now"], listed, TITLE)]
    experiment, cells, found = find_experiment(table), cells_of(table), []
    if len(cells) > 1:
        ready = [
            [cell.name, "yes" if has_data(cell, root) else where_to_put(cell, root)]
            for cell in cells
        ]
        found.append((["cell", "can run now"], ready, f"{table} has {len(cells)} cells"))
    printed, rows = experiment.published, []
    for name, row in experiment.rows.items():
        figures = printed.rows.get(name, (None,) * len(printed.columns))
        shown = ("–" if figure is None else f"{figure:g}" for figure in figures)
        rows.append([name, row.runs, *shown])
    return [*found, (["row", "runs", *printed.columns], rows, f"{printed.title}, as printed")]


def tables_and_figures(root: Path) -> list[Listed]:
    """Return all tables with what can be run of them now, and all figures."""
    rows = []
    for table in dict.fromkeys(experiment.table for experiment in EXPERIMENTS.values()):
        cells = cells_of(table)
        ready = [cell for cell in cells if has_data(cell, root)]
        words = "yes" if ready else where_to_put(cells[0], root)
        if 0 < len(ready) < len(cells):
            words = ", ".join(cell.cell for cell in ready)
        count = "" if len(cells) == 1 else str(len(cells))
        rows.append([table, cells[0].published.title, count, words])
    sets = [name for name, ready in available_sets(root).items() if ready]
    words = ", ".join(sets) or where_to_put_set(next(iter(TRANSFER)), root)
    rows.append([TRANSFERRED, "Two-way loss, Table A: transfer study", str(len(TRANSFER)), words])
    for table, computed in COMPUTED.items():
        there = [name for name in computed.sets if holds_files(root / DATASETS[name].folder)]
        words = ", ".join(there) or (
            f"put {' or '.join(computed.sets)} below {root}" if computed.sets else "yes, computed"
        )
        rows.append([table, computed.title, str(len(computed.sets) or ""), words])
    try:
        words = ", ".join(SurveyPlan(root).places())
    except LabelwiseError as error:
        words = str(error)
    title = "Every method: all labels, a tenth, one per image, noise, half of the images"
    rows.append([SURVEYED, title, "", words])
    drawn = [[name, one.title, one.table or "formulas alone"] for name, one in FIGURES.items()]
    return [
        (["table", "what (its first cell)", "cells", "can run now"], rows, None),
        (["figure", "what", "drawn from"], drawn, None),
    ]

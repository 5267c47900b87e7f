"""CSV files for people: written whole or not at all, and no cell is a formula in a spreadsheet."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from labelwise.system.files import replacing
from labelwise.system.text import as_cell


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; texts go through :func:`as_cell`, None is an empty cell."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(_cells(header))
        table.writerows(map(_cells, rows))


def _cells(row: Sequence[object]) -> list[object]:
    return [as_cell(value) if isinstance(value, str) else value for value in row]

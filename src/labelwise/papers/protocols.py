"""EXPERIMENTS: every table of the papers as runnable cells, read from ``tables.toml``.

A cell is a printed table on one data set with one backbone. Its name is the table's; where a table
has several cells, data set and backbone follow after points (``001-table3.voc.vit-b-32``). A
missing figure ("failed to converge", "not in the text") is None.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from math import isnan
from typing import Any, Literal

from labelwise.papers import columns
from labelwise.papers.measures import FinishedRun
from labelwise.papers.statistics import SeedMean
from labelwise.papers.verdicts import Claim, ClaimedRun

Values = Mapping[str, Any]
Figures = Callable[[FinishedRun], dict[str, float]]


@dataclass(frozen=True)
class Dataset:
    """A data set of the papers: its reader, its folder below the data root, where to get it."""

    format: str
    folder: str
    how_to_get: str
    has_validation: bool = False
    holds_features: bool = False


@dataclass(frozen=True)
class PublishedTable:
    """One printed table: what its columns are, and the printed figures of each row."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    remark: str = ""


@dataclass(frozen=True)
class FigureOf:
    """A figure of a table: a column, of these rows the highest or lowest, or their range."""

    column: str
    rows: tuple[str, ...]
    take: Literal["highest", "lowest", "range"] = "highest"

    def value(self, table: Mapping[str, Mapping[str, SeedMean]]) -> float | None:
        """Return the figure, None if one of its rows has not been run."""
        values = [
            table[row][self.column].mean for row in self.rows if self.column in table.get(row, {})
        ]
        if len(values) < len(self.rows):
            return None
        lowest, highest = min(values), max(values)
        return {"highest": highest, "lowest": lowest, "range": highest - lowest}[self.take]


@dataclass(frozen=True)
class TableClaim:
    """A sentence of a paper as a relation, such as ``temperature > margin``, of named figures."""

    claim: str
    holds: str
    figures: Mapping[str, FigureOf]
    printed: str = ""

    def verdict(self, table: Mapping[str, Mapping[str, SeedMean]], seeds: int) -> str | None:
        """Return the claim, our figures and the verdict as a sentence; None if rows are missing."""
        names = Claim(self.claim, self.holds).names
        values = [self.figures[name].value(table) for name in names]
        if any(value is None for value in values):
            return None
        ours = ", ".join(f"{value:.6f}" for value in values)
        judged = Claim(self.claim, self.holds, self.printed, (ClaimedRun(ours, "", seeds),))
        shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(names, values, strict=True))
        return f"{self.claim}: {judged.verdict} ({shown})."


@dataclass(frozen=True)
class Row:
    """What distinguishes a row: its settings, and where it differs from the rest of its table.

    ``figures`` replaces the table's, ``hold_out`` takes validation images nevertheless, ``runs``
    says when it is run, and ``note`` is said with the deviations if it is. It starts where the row
    ``after`` ended, of the same seed. ``stated`` is what the paper states for this row alone, where
    it is not what we run.
    """

    values: Values
    figures: Figures | None = None
    hold_out: bool = False
    runs: Literal["always", "if named", "not with --quick"] = "always"
    note: str = ""
    after: str | None = None
    stated: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One printed table on one data set with one backbone: rows, recipe, figures, what differs.

    ``figures`` computes the printed columns from a run. ``data_options`` are for the reader of the
    paper's own data. ``validation`` says that images are held out for what is fitted after
    training; ``one_positive`` that training images keep one known label each. ``seed_key`` names a
    further setting that takes the seed (the split of CIFAR60+40). ``unstated`` names the keys that
    are our guess, ``stated`` what the paper states and we do otherwise (see ``deviations``, which
    finds the rest). ``claims`` are what it says of the table in words alone.
    """

    table: str
    data: str
    rows: Mapping[str, Row]
    protocol: Values
    quick: Values
    figures: Figures
    published: PublishedTable
    cell: str = ""
    data_options: Values = field(default_factory=dict)
    validation: bool = True
    one_positive: bool = False
    seed_key: str | None = None
    stated: Values = field(default_factory=dict)
    unstated: frozenset[str] = frozenset()
    deviations: tuple[str, ...] = ()
    claims: tuple[TableClaim, ...] = ()

    @property
    def name(self) -> str:
        """The table's name, with the cell's after a point if it has any."""
        return f"{self.table}.{self.cell}" if self.cell else self.table


_FILE = tomllib.loads(files("labelwise.papers").joinpath("tables.toml").read_text("utf-8"))


def _recipe(given: Values) -> dict[str, Any]:
    """Return settings with those of the recipe that they ``use``; ``~`` is none."""
    start = _recipe(_FILE["recipe"][given["use"]]) if "use" in given else {}
    own = {k: None if value == "~" else value for k, value in given.items() if k != "use"}
    return start | own


def _figures(given: str | list[Any]) -> Figures:
    """Return the function of ``columns`` with this name, or the one it makes of its argument."""
    if isinstance(given, str):
        figures: Figures = getattr(columns, given)
        return figures
    name, argument = given
    made: Figures = getattr(columns, name)(argument)
    return made


def _row(given: dict[str, Any]) -> Row:
    values, stated = _recipe(given.pop("set")), _recipe(given.pop("stated", {}))
    figures = _figures(given.pop("figures")) if "figures" in given else None
    return Row(values, figures, stated=stated, **given)


def _claim(given: dict[str, Any]) -> TableClaim:
    figures = {
        name: FigureOf(one["column"], tuple(one["rows"]), one["take"])
        for name, one in given.pop("figures").items()
    }
    return TableClaim(figures=figures, **given)


def _experiment(name: str, given: dict[str, Any]) -> Experiment:
    printed = {
        row: tuple(None if isnan(figure) else figure for figure in figures)
        for row, figures in given.pop("printed").items()
    }
    titles, remark = tuple(given.pop("columns")), given.pop("remark", "")
    unstated = given.pop("unstated", [])
    return Experiment(
        table=given.pop("table", name),
        rows=ROWS[given.pop("rows")],
        protocol=_recipe(given.pop("recipe")),
        quick=_recipe(given.pop("quick")),
        figures=_figures(given.pop("figures")),
        published=PublishedTable(given.pop("title"), titles, printed, remark),
        stated=_recipe(given.pop("stated", {})),
        unstated=frozenset(key for one in unstated for key in _FILE["unstated"].get(one, [one])),
        deviations=tuple(given.pop("deviations", ())),
        claims=tuple(map(_claim, given.pop("claims", ()))),
        **given,
    )


FROZEN = _recipe({"use": "frozen"})
DATASETS = {name: Dataset(**given) for name, given in _FILE["dataset"].items()}
ROWS = {
    name: {row: _row(given) for row, given in rows.items()} for name, rows in _FILE["rows"].items()
}
EXPERIMENTS = {name: _experiment(name, given) for name, given in _FILE["table"].items()}
PUBLISHED = {name: experiment.published for name, experiment in EXPERIMENTS.items()}
# Two-way, Table A: what is transferred to: name, classes, train and test images.
TRANSFER: dict[str, tuple[str, int, int, int]] = {
    name: (given[0], given[1], given[2], given[3]) for name, given in _FILE["transfer"].items()
}

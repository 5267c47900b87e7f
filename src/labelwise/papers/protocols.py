"""EXPERIMENTS: every table of the papers as runnable cells, read from ``tables.toml``.

A cell is a printed table on one data set with one backbone. Its name is the table's; where a table
has several cells, data set and backbone follow after points (``001-table3.voc.vit-b-32``). A
missing figure ("failed to converge", "not in the text") is None.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from math import hypot, isnan
from typing import Any, Literal

from labelwise.errors import SettingsError
from labelwise.papers import columns
from labelwise.papers.comparison import SeedMean
from labelwise.papers.measures import FinishedRun

# A claim is a relation between figures, such as ``spa > bce``. A run
#
#     bears it out    every inequality holds significantly: the 95 % interval of its gap over seeds,
#                     sqrt(h_a^2 + h_b^2), is above 0; a strict one by half to twice the printed gap
#     half            some of it holds, or all of it and not by that much, or not significantly
#     does not        no inequality holds

LEAST, MOST = 0.5, 2.0  # of the printed gap: "roughly in size"
COMES_OUT, IN_PART, DOES_NOT = "comes out", "in part", "does not"
TERM = re.compile(r"(?:(\d*\.?\d+) x )?([a-z]\w*)(?: ([+-]) (\d*\.?\d+))?|(\d*\.?\d+)")


Term = tuple[float, str | None, float]  # factor * name + offset; a number alone has no name


@dataclass(frozen=True)
class Relation:
    """``larger > smaller``, or not less than it."""

    larger: Term
    smaller: Term
    strict: bool

    def gap(self, figures: Mapping[str, float]) -> float:
        larger, smaller = (
            factor * (0.0 if name is None else figures[name]) + offset
            for factor, name, offset in (self.larger, self.smaller)
        )
        return larger - smaller

    def spread(self, halves: Mapping[str, float]) -> float:
        sides = (self.larger, self.smaller)
        return hypot(*(factor * halves[name] for factor, name, _ in sides if name))


def relations_of(holds: str) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
    """Return the inequalities of a claim such as ``a > b >= 2 x c; d < 1``, and their names."""
    relations, names = [], []
    for claim in holds.split(";") if holds else ():
        pieces = re.split(r" (<=|>=|<|>) ", claim.strip())
        terms = [_term(piece) for piece in pieces[::2]]
        names += [name for _, name, _ in terms if name is not None]
        for left, sign, right in zip(terms, pieces[1::2], terms[1:], strict=False):
            larger, smaller = (left, right) if sign.startswith(">") else (right, left)
            relations.append(Relation(larger, smaller, "=" not in sign))
    return tuple(relations), tuple(dict.fromkeys(names))


def outcome(
    relations: Sequence[Relation], figures: Mapping[str, float], printed: Mapping[str, float]
) -> float:
    """Return 1 if all of it holds, and roughly in size, 0 if nothing does, else a half."""
    held, sized = [], []
    for relation in relations:
        gap = relation.gap(figures)
        held.append(gap > 0 if relation.strict else gap >= 0)
        least = relation.gap(printed) if printed and relation.strict else 0.0
        sized.append(not least or LEAST * least <= gap <= MOST * least)
    return 1.0 if all(held) and all(sized) else 0.5 if any(held) else 0.0


def is_significant(
    relations: Sequence[Relation], figures: Mapping[str, float], halves: Mapping[str, float]
) -> bool:
    """Return whether every gap is above 0 beyond the spread of seeds."""
    return all(one.gap(figures) > one.spread(halves) for one in relations)


def _term(text: str) -> Term:
    match = TERM.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"a claim compares names or numbers, as 2 x a - 0.5, got {text!r}")
    factor, name, sign, offset, number = match.groups()
    if number is not None:
        return 0.0, None, float(number)
    return float(factor or 1), name, float(f"{sign or ''}{offset or 0}")


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

    def value(self, table: Mapping[str, Mapping[str, SeedMean]]) -> SeedMean | None:
        values = [table[row][self.column] for row in self.rows if self.column in table.get(row, {})]
        if len(values) < len(self.rows):
            return None
        values.sort(key=lambda value: value.mean)
        lowest, highest = values[0], values[-1]
        if self.take != "range":
            return highest if self.take == "highest" else lowest
        gap, half = highest.mean - lowest.mean, hypot(lowest.half_width, highest.half_width)
        return SeedMean(gap, gap - half, gap + half, min(lowest.n, highest.n))


@dataclass(frozen=True)
class TableClaim:
    """A sentence of a paper as a relation, such as ``temperature > margin``, of named figures."""

    claim: str
    holds: str
    figures: Mapping[str, FigureOf]

    def verdict(self, table: Mapping[str, Mapping[str, SeedMean]], seeds: int) -> str | None:
        relations, names = relations_of(self.holds)
        found = {name: self.figures[name].value(table) for name in names}
        values = {name: value for name, value in found.items() if value is not None}
        if len(values) < len(found):
            return None
        means = {name: value.mean for name, value in values.items()}
        halves = {name: value.half_width for name, value in values.items()}
        held = outcome(relations, means, {})
        if held == 1 and (seeds < 2 or not is_significant(relations, means, halves)):
            held = 0.5
        verdict = COMES_OUT if held == 1 else IN_PART if held else DOES_NOT
        shown = ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
        return f"{self.claim}: {verdict} ({shown})."


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
        return f"{self.table}.{self.cell}" if self.cell else self.table


STATED = tomllib.loads(files("labelwise.papers").joinpath("tables.toml").read_text("utf-8"))


def _recipe(given: Values) -> dict[str, Any]:
    """Return settings with those of the recipe that they ``use``; ``~`` is none."""
    start = _recipe(STATED["recipe"][given["use"]]) if "use" in given else {}
    return start | {k: None if v == "~" else v for k, v in given.items() if k != "use"}


def _figures(given: str | list[Any]) -> Figures:
    name, *argument = [given] if isinstance(given, str) else given
    function = getattr(columns, name)
    return lambda run: function(run, *argument)


def _row(given: dict[str, Any]) -> Row:
    values, stated = _recipe(given.pop("set")), _recipe(given.pop("stated", {}))
    figures = _figures(given.pop("figures")) if "figures" in given else None
    return Row(values, figures, stated=stated, **given)


def _table_claim(given: dict[str, Any]) -> TableClaim:
    figures = {
        name: FigureOf(figure["column"], tuple(figure["rows"]), figure["take"])
        for name, figure in given.pop("figures").items()
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
        unstated=frozenset(key for one in unstated for key in STATED["unstated"].get(one, [one])),
        deviations=tuple(given.pop("deviations", ())),
        claims=tuple(map(_table_claim, given.pop("claims", ()))),
        **given,
    )


FROZEN = _recipe({"use": "frozen"})
DATASETS = {name: Dataset(**given) for name, given in STATED["dataset"].items()}
ROWS = {
    name: {row: _row(given) for row, given in rows.items()} for name, rows in STATED["rows"].items()
}
EXPERIMENTS = {name: _experiment(name, given) for name, given in STATED["table"].items()}
PUBLISHED = {name: experiment.published for name, experiment in EXPERIMENTS.items()}

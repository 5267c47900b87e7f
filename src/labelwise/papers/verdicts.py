"""Verdicts on the papers' claims, by one rule.

A claim is a relation between figures, such as ``spa > bce``. A run

    bears it out    every inequality of the claim holds; a strict one by between half and twice the
                    printed gap (where a gap is printed), and in more than one seed
    half            some of it holds, or all of it and not by that much, or in one seed, or not in
                    every seed (``held: some``)
    does not        no inequality holds

and a claim **comes out** if every run bears it out, **does not** if none bears out any of it, else
it holds **in part**. A claim about curves has nothing to compare and is judged by eye (``seen``).

The figures of a run are words of the claims file, or are read from a result file, which holds what
a command of `labelwise reproduce` wrote, seed by seed: then mean, interval, the number of seeds
and whether the claim held in every seed are computed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from labelwise.errors import SettingsError
from labelwise.papers.comparison import show_figure
from labelwise.papers.statistics import seed_mean
from labelwise.types import nearest

LEAST, MOST = 0.5, 2.0  # of the printed gap: "roughly in size"
COMES_OUT, IN_PART, DOES_NOT, NOT_RUN = "comes out", "in part", "does not", "not run"
TERM = re.compile(r"(?:(\d*\.?\d+) x )?([a-z]\w*)(?: ([+-]) (\d*\.?\d+))?|(\d*\.?\d+)")
NOT_FIGURES = re.compile(r"± *\d*\.?\d+|\]\([^)]*\)|`[^`]*`|[;:(].*$| for .*$")


@dataclass(frozen=True)
class Quantity:
    """``factor * name + offset``, or a number alone."""

    name: str | None
    factor: float
    offset: float

    def value(self, figures: Mapping[str, float]) -> float:
        """Return the value, given the figures by name."""
        return self.factor * (0.0 if self.name is None else figures[self.name]) + self.offset


@dataclass(frozen=True)
class Relation:
    """``larger > smaller``, or not less than it."""

    larger: Quantity
    smaller: Quantity
    strict: bool

    def gap(self, figures: Mapping[str, float]) -> float:
        """Return by how much it holds."""
        return self.larger.value(figures) - self.smaller.value(figures)


@dataclass(frozen=True)
class ClaimedRun:
    """What a run gave, in words and figures, over how many seeds; None where nothing is drawn."""

    ours: str
    run: str
    seeds: int | None = None
    held: str | None = None


@dataclass(frozen=True)
class Claim:
    """A claim, what is printed for it, the runs that test it; ``todo`` names what would."""

    claim: str
    holds: str = ""
    published: str = ""
    runs: tuple[ClaimedRun, ...] = ()
    seen: str | None = None
    todo: str = ""
    relations: tuple[Relation, ...] = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        relations, names = _parsed(self.holds) if self.holds else ((), ())
        object.__setattr__(self, "relations", relations)
        object.__setattr__(self, "names", names)
        if self.runs and not relations and self.seen is None:
            raise SettingsError(f"{self.claim!r} has runs, so say in holds what is claimed")
        if relations and self.published and _outcome(relations, self._printed(), None) < 1:
            raise SettingsError(f"{self.claim!r} does not hold for what is printed")

    def _printed(self) -> dict[str, float] | None:
        return self.figures(self.published) if self.published else None

    def figures(self, text: str) -> dict[str, float]:
        """Return the figures in a text by the names of the claim."""
        found = figures_in(text)
        if len(found) != len(self.names):
            raise SettingsError(
                f"{self.claim!r} is about {', '.join(self.names)}, got {len(found)} figures in "
                f"{text!r}"
            )
        return dict(zip(self.names, found, strict=True))

    @property
    def verdict(self) -> str:
        """The verdict, by the rule of this module."""
        if self.seen is not None:
            return self.seen
        if not self.runs:
            return NOT_RUN
        printed = self._printed()
        outcomes = [self._outcome(run, printed) for run in self.runs]
        if all(outcome == 1 for outcome in outcomes):
            return COMES_OUT
        return IN_PART if any(outcomes) else DOES_NOT

    def _outcome(self, run: ClaimedRun, printed: Mapping[str, float] | None) -> float:
        if run.held == "some":
            return 0.5
        outcome = _outcome(self.relations, self.figures(run.ours), printed)
        strict = any(relation.strict for relation in self.relations)
        return min(outcome, 0.5) if run.seeds == 1 and strict else outcome


def _outcome(
    relations: Sequence[Relation],
    figures: Mapping[str, float] | None,
    printed: Mapping[str, float] | None,
) -> float:
    """Return 1 if all of it holds, and roughly in size, 0 if nothing does, else a half."""
    if figures is None:
        return 0.0
    held, sized = [], []
    for relation in relations:
        gap = relation.gap(figures)
        held.append(gap > 0 if relation.strict else gap >= 0)
        least = 0.0 if printed is None or not relation.strict else relation.gap(printed)
        sized.append(not least or LEAST * least <= gap <= MOST * least)
    if all(held) and all(sized):
        return 1.0
    return 0.5 if any(held) else 0.0


def figures_in(text: str) -> list[float]:
    """Return the figures of a text in their order, without spreads, links and what is remarked."""
    kept = NOT_FIGURES.sub("", text)
    return [float(number) for number in re.findall(r"\d*\.?\d+", kept)]


def _parsed(text: str) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
    """Return the inequalities of a claim, and the names in them as they first come."""
    relations, named = [], []
    for part in text.split(";"):
        pieces = re.split(r" (<=|>=|<|>) ", part.strip())
        terms = [_term(piece) for piece in pieces[::2]]
        named += [term.name for term in terms if term.name is not None]
        for left, sign, right in zip(terms, pieces[1::2], terms[1:], strict=False):
            larger, smaller = (left, right) if sign.startswith(">") else (right, left)
            relations.append(Relation(larger, smaller, "=" not in sign))
    return tuple(relations), tuple(dict.fromkeys(named))


def _term(text: str) -> Quantity:
    match = TERM.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"a claim compares names or numbers, as 2 x a - 0.5, got {text!r}")
    factor, name, sign, offset, number = match.groups()
    if number is not None:
        return Quantity(None, 0.0, float(number))
    return Quantity(name, float(factor or 1), float(f"{sign or ''}{offset or 0}"))


@dataclass(frozen=True)
class RunResults:
    """What a command wrote: figures by row, one mapping per seed, and the command."""

    command: str
    figures: Mapping[str, Sequence[Mapping[str, float]]]

    @classmethod
    def load(cls, file: Path) -> "RunResults":
        """Return the results of a file that :meth:`save` wrote."""
        content = json.loads(file.read_text(encoding="utf-8"))
        return cls(content["command"], content["figures"])

    def save(self, file: Path) -> None:
        """Write the results, one line per row."""
        lines = [f" {json.dumps(row)}: {json.dumps(runs)}" for row, runs in self.figures.items()]
        start = f'{{"command": {json.dumps(self.command)}, "figures": {{\n'
        file.write_text(start + ",\n".join(lines) + "\n}}\n", encoding="utf-8")

    def by_seed(self, row: str, column: str) -> list[float]:
        """Return the figures of a row, seed by seed."""
        if row not in self.figures:
            raise SettingsError(
                f"{self.command!r} has no row {row!r}{nearest(row, list(self.figures))}"
            )
        runs = self.figures[row]
        if any(column not in run for run in runs):
            raise SettingsError(f"row {row!r} of {self.command!r} has no figure {column!r}")
        return [float(run[column]) for run in runs]


def read_claims(
    text: str, results: Mapping[str, RunResults] | None = None
) -> dict[str, list[Claim]]:
    """Return the claims by paper from the text of a claims file (YAML) and the results it names."""
    content: dict[str, list[dict[str, Any]]] = yaml.load(text, Loader=yaml.BaseLoader)  # texts
    return {
        paper: [_claim(results or {}, **one) for one in claims] for paper, claims in content.items()
    }


def _claim(
    results: Mapping[str, RunResults], runs: Sequence[dict[str, Any]] = (), **parts: str
) -> Claim:
    claim = Claim(**parts)  # type: ignore[arg-type]  # runs is not among its parts
    return replace(claim, runs=tuple(_claimed_run(claim, results, run) for run in runs))


def _claimed_run(
    claim: Claim, results: Mapping[str, RunResults], given: dict[str, Any]
) -> ClaimedRun:
    """Return a run of the claims file, its figures read from results where it names them."""
    if "results" not in given:
        return ClaimedRun(**{**given, "seeds": int(given["seeds"])} if "seeds" in given else given)
    name, run, pairs = given["results"], given["run"], given["figures"]
    if name not in results:
        raise SettingsError(f"there are no results {name!r}{nearest(name, list(results))}")
    if len(pairs) != len(claim.names):
        raise SettingsError(f"{run!r} must have one figure for each name of the claim, got {pairs}")
    columns = [results[name].by_seed(row, column) for row, column in pairs]
    seeds = min(map(len, columns))
    over_seeds = [seed_mean(values) for values in columns]
    ours = ", ".join(show_figure(one, percent=False) for one in over_seeds)
    means = {one: found.mean for one, found in zip(claim.names, over_seeds, strict=True)}
    each = [
        dict(zip(claim.names, (values[seed] for values in columns), strict=True))
        for seed in range(seeds)
    ]
    some = _holds(claim.relations, means) and not all(_holds(claim.relations, one) for one in each)
    return ClaimedRun(ours, run, seeds, "some" if some else None)


def _holds(relations: Sequence[Relation], figures: Mapping[str, float]) -> bool:
    gaps = [(relation.gap(figures), relation.strict) for relation in relations]
    return all(gap > 0 if strict else gap >= 0 for gap, strict in gaps)


def claims_table(claims: Sequence[Claim]) -> str:
    """Return the claims, what is printed, our runs and the verdicts as a Markdown table."""
    lines = ["| claim | published | ours | run | verdict |", "|---|---|---|---|---|"]
    for claim in claims:
        ours = "; ".join(run.ours for run in claim.runs)
        runs = "; ".join(_with_seeds(run) for run in claim.runs) or claim.todo
        by_eye = " (by eye)" if claim.seen is not None and claim.published else ""
        cells = (claim.claim, claim.published, ours, runs, f"**{claim.verdict}**{by_eye}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _with_seeds(run: ClaimedRun) -> str:
    if run.seeds is None:
        return run.run
    return f"{run.run} ({run.seeds} {'seed' if run.seeds == 1 else 'seeds'})"

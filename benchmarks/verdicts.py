"""Write the tables of evidence/reproduction.md: the papers' claims, our runs, and the verdicts.

    python benchmarks/verdicts.py            write them
    python benchmarks/verdicts.py --check    fail if the page has others
    python benchmarks/verdicts.py --take runs/002-margin c-head.002-margin "labelwise reproduce ..."
                                             keep the figures that this command wrote there

Claims stand in claims.yaml beside this file, figures there or in results/; the rule of one run is
that of labelwise.papers.protocols. A claim **comes out** if every run bears it out, **does not** if
none bears out any of it, else it holds **in part**. A claim about curves is judged by eye
(``seen``). Figures are words of the claims file, or are read from a file of results, seed by seed:
then the gaps are paired. Of words a figure without ``±`` is not tested, unless the log tells that
it was (``held: significantly``). What is computed without chance has no seeds.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import yaml

from labelwise.errors import SettingsError
from labelwise.papers.comparison import seed_mean, show_figure
from labelwise.papers.protocols import (
    COMES_OUT,
    DOES_NOT,
    IN_PART,
    Relation,
    is_significant,
    outcome,
    relations_of,
)
from labelwise.papers.survey import SurveyCell, interval
from labelwise.types import nearest

CLAIMS = Path(__file__).with_name("claims.yaml")
RESULTS = Path(__file__).parent / "results" / "papers"
SURVEY = Path(__file__).with_name("survey")
COSTS = ("seconds", "host MB", "GPU MB")
PAGE = Path(__file__).parents[1] / "evidence" / "reproduction.md"


NOT_RUN = "not run"
NOT_FIGURES = re.compile(r"\]\([^)]*\)|`[^`]*`|[;:(].*$| for .*$")
FIGURE = re.compile(r"(\d*\.?\d+)(?:\]? *± *(\d*\.?\d+))?")


@dataclass(frozen=True)
class ClaimedRun:
    """What a run gave, in words and figures, over how many seeds; None where nothing is drawn.

    ``held`` says how far the claim held: ``significantly``, or in ``some`` seeds.
    """

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

    def __post_init__(self) -> None:
        if self.runs and not self.relations and self.seen is None:
            raise SettingsError(f"{self.claim!r} has runs, so say in holds what is claimed")
        if self._printed and outcome(self.relations, self._printed, {}) < 1:
            raise SettingsError(f"{self.claim!r} does not hold for what is printed")

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        return relations_of(self.holds)[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return relations_of(self.holds)[1]

    @cached_property
    def _printed(self) -> dict[str, float]:
        return self.figures(self.published) if self.relations and self.published else {}

    def figures(self, text: str) -> dict[str, float]:
        """Return the figures in a text by the names of the claim."""
        figures = figures_in(text)
        if len(figures) != len(self.names):
            raise SettingsError(
                f"{self.claim!r} is about {', '.join(self.names)}, got {len(figures)} figures in "
                f"{text!r}"
            )
        return dict(zip(self.names, figures, strict=True))

    @property
    def verdict(self) -> str:
        """The verdict, by the rule of this module."""
        if self.seen is not None:
            return self.seen
        outcomes = [self._outcome_of(run) for run in self.runs]
        if all(outcome == 1 for outcome in outcomes):
            return COMES_OUT if outcomes else NOT_RUN
        return IN_PART if any(outcomes) else DOES_NOT

    def _outcome_of(self, run: ClaimedRun) -> float:
        if run.held == "some":
            return 0.5
        figures = self.figures(run.ours)
        held = outcome(self.relations, figures, self._printed)
        if held < 1 or run.held == "significantly" or (run.seeds is None and run.held is None):
            return held
        found = FIGURE.findall(NOT_FIGURES.sub("", run.ours))
        halves = dict(zip(self.names, (float(half or inf) for _, half in found), strict=True))
        told = (run.seeds or 0) > 1 and is_significant(self.relations, figures, halves)
        return 1.0 if told else 0.5


def figures_in(text: str) -> list[float]:
    """Return the figures of a text in their order, without spreads, links and what is remarked."""
    return [float(number) for number, _ in FIGURE.findall(NOT_FIGURES.sub("", text))]


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
    if "survey" in given:
        cell = SurveyCell.load(SURVEY / f"{given['survey']}.json")
        found = [interval(cell, row, "mAP@class") for row in given["figures"]]
        ours = ", ".join(f"{100 * mean:.2f} ± {100 * half:.2f}" for mean, half in found)
        return ClaimedRun(ours, given["run"], cell.facts["made"]["seeds"])
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
    each = [
        dict(zip(claim.names, (values[seed] for values in columns), strict=True))
        for seed in range(seeds)
    ]
    gaps = [seed_mean([one.gap(figures) for figures in each]) for one in claim.relations]
    sure = all(gap.low > 0 for gap in gaps)
    some = all(gap.mean > 0 for gap in gaps)
    return ClaimedRun(ours, run, seeds, "significantly" if sure else "some" if some else None)


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


def kept_results() -> dict[str, RunResults]:
    """Return the results of all files that are kept, by name."""
    return {file.stem: RunResults.load(file) for file in sorted(RESULTS.glob("*.json"))}


def take(folder: Path, name: str, command: str) -> None:
    """Keep the figures that `labelwise reproduce` wrote into a folder, without what runs cost."""
    written = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    figures = {
        row: [
            {
                column: float(f"{value:.6g}")
                for column, value in run.items()
                if column not in COSTS and isinstance(value, float)
            }
            for run in runs
        ]
        for row, runs in written.items()
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    RunResults(command, figures).save(RESULTS / f"{name}.json")


def with_tables(page: str, claims: str) -> str:
    """Return the page with the table of each paper under its heading made anew."""
    for paper, found in read_claims(claims, kept_results()).items():
        section = re.compile(rf"(^## {paper}:.*?)^\| claim .*?\n(?!\|)", re.DOTALL | re.MULTILINE)
        table = claims_table(found)
        page, count = section.subn(lambda match, table=table: match[1] + table, page, count=1)
        if count != 1:
            raise SystemExit(f"{PAGE}: no table of claims below the heading of paper {paper}")
    return page


def main() -> None:
    if "--take" in sys.argv:
        folder, name, command = sys.argv[sys.argv.index("--take") + 1 :]
        take(Path(folder), name, command)
        return
    page = PAGE.read_text(encoding="utf-8")
    made = with_tables(page, CLAIMS.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has other tables; run python benchmarks/verdicts.py")


if __name__ == "__main__":
    main()

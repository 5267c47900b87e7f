"""What a paper says in words about a table of ours, judged by the rule of ``verdicts``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from labelwise.papers.statistics import SeedMean
from labelwise.papers.verdicts import Claim, ClaimedRun


@dataclass(frozen=True)
class FigureOf:
    """A figure of a table: a column, of these rows the highest or lowest, or their range."""

    column: str
    rows: tuple[str, ...]
    take: Literal["highest", "lowest", "range"] = "highest"

    def value(self, table: Mapping[str, Mapping[str, SeedMean]]) -> float | None:
        """Return the figure, None if one of its rows has not been run."""
        found = [
            table[row][self.column].mean for row in self.rows if self.column in table.get(row, {})
        ]
        if len(found) < len(self.rows):
            return None
        lowest, highest = min(found), max(found)
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

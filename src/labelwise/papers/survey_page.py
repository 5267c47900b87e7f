"""The page of a survey, made of its results files alone: sentences, mean ranks, tables.

A difference between two methods on one data set is judged by Nadeau and Bengio's test for images
that are dealt again (2003), over J seeds whose differences have the deviation s:

    t = d / (s sqrt(1 / J + test images / training images)),    J - 1 degrees of freedom

and Holm's rule over all pairs and sets that one sentence is about. Ranks are over methods, equal
figures share the mean of theirs; Nemenyi's critical difference is q sqrt(k (k + 1) / 6 N) for k
methods on N sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import friedmanchisquare, rankdata, studentized_range

from labelwise.errors import SettingsError
from labelwise.methods import find_method
from labelwise.numeric.special import stdtr, stdtrit
from labelwise.papers.survey import CELLS, RATES, SurveyCell

Expected = Literal["better", "worse", "level", "mixed"]
HIGHER = ("mAP@class", "macro F1", "micro F1")
PERCENT = (*HIGHER, "ACE before", "ACE after")
COLUMNS = (
    *("mAP@class", "macro F1", "micro F1", "log loss before", "log loss after"),
    *("ACE before", "ACE after", "seconds"),
)
DRAWN = (  # in the diagram of ranks: few enough for a critical difference to tell something
    *("bce", "asl-official", "spa", "two-way", "softmax", "quasibinary"),
    *("an", "wan", "role", "ll-r"),
)
WIDTH, LEFT, RIGHT, LINE = 760, 150, 610, 15


def values_of(cell: SurveyCell, method: str, column: str) -> list[float]:
    """Return the figures of a method by seed; none where one of them is undefined."""
    runs = cell.methods[method].figures if method in cell.methods else ()
    return [run[column] for run in runs] if all(column in run for run in runs) else []


def p_value(cell: SurveyCell, first: str, second: str, column: str) -> tuple[float, float]:
    """Return by how much the first method is better, and the p-value of the corrected test."""
    pairs = zip(values_of(cell, first, column), values_of(cell, second, column), strict=True)
    sign = 1 if column in HIGHER else -1
    gaps = [sign * (one - other) for one, other in pairs]
    spread = stdev(gaps) * sqrt(_inflation(cell, len(gaps)))
    if not spread:
        return fmean(gaps), 0.0 if fmean(gaps) else 1.0
    return fmean(gaps), float(2 * stdtr(len(gaps) - 1, -abs(fmean(gaps)) / spread))


def _inflation(cell: SurveyCell, seeds: int) -> float:
    images = cell.facts["made"]["images"]
    return 1 / seeds + float(images["test"] / images["train"])


@dataclass(frozen=True)
class Sentence:
    """Advice, and the test it rests on: a method against others by a column, in every set."""

    text: str
    cell: str
    column: str
    method: str
    against: tuple[str, ...]
    expect: Expected

    def finding(self, cells: Sequence[SurveyCell]) -> str:
        """Return what the results say; raise if that is not what the sentence says."""
        here = [cell for cell in cells if cell.cell == self.cell]
        tested = {
            (cell.data, other): p_value(cell, self.method, other, self.column)
            for cell in here
            for other in self.against
        }
        better, worse = set(), set()
        ordered = sorted(tested.items(), key=lambda item: item[1][1])
        for left, ((data, _), (gap, p)) in zip(range(len(ordered), 0, -1), ordered, strict=True):
            if p > 0.05 / left:
                break
            (better if gap > 0 else worse).add(data)
        found = "mixed" if better and worse else "better" if better else "worse"
        found = found if better or worse else "level"
        if found != self.expect:
            raise SettingsError(
                f"{self.text!r} rests on {self.expect!r}, and the results say {found!r} "
                f"(better on {sorted(better) or 'none'}, worse on {sorted(worse) or 'none'})"
            )
        others = ", ".join(f"`{name}`" for name in self.against)
        return (
            f"{self.column}: `{self.method}` against {others} is significantly better on "
            f"{len(better)} and worse on {len(worse)} of {len(here)} sets"
        )


def ranks_of(cell: SurveyCell, column: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the rank of each method, 1 the best; equal figures share the mean of their ranks."""
    sign = -1 if column in HIGHER else 1
    means = [fmean(values_of(cell, m, column) or [sign * inf]) for m in methods]
    losses = [inf if mean in (inf, -inf) else float(f"{sign * mean:.6g}") for mean in means]
    return dict(zip(methods, rankdata(losses).tolist(), strict=True))


def critical_difference(methods: int, sets: int) -> float:
    """Return by how much mean ranks must differ, by Nemenyi's test at 5 %."""
    quantile = float(studentized_range.ppf(0.95, methods, inf)) / sqrt(2)
    return quantile * sqrt(methods * (methods + 1) / (6 * sets))


def complete(cells: Sequence[SurveyCell]) -> list[SurveyCell]:
    """Return the cells that have as many methods as the largest, in the order of the survey."""
    most = max(len(cell.methods) for cell in cells)
    order = list(CELLS)
    kept = [cell for cell in cells if len(cell.methods) == most]
    return sorted(kept, key=lambda cell: (order.index(cell.cell), cell.data))


def page(cells: Sequence[SurveyCell], sentences: Sequence[Sentence], before: str) -> str:
    """Return the page: what was advised, then one table for everything that is known of labels."""
    lines = [before.rstrip(), ""]
    lines += [f"{n}. {one.text} ({one.finding(cells)}.)" for n, one in enumerate(sentences, 1)]
    lines += [""] if sentences else []
    for name, words in CELLS.items():
        here = [cell for cell in cells if cell.cell == name]
        if here:
            lines += [f"## {words[0].upper()}{words[1:]}", "", *_table(here), ""]
    return "\n".join(lines)


def _table(cells: Sequence[SurveyCell]) -> list[str]:
    """Return the table of one kind of knowledge, by the mean rank of mAP over sets."""
    methods = list(cells[0].methods)
    ranks = [ranks_of(cell, "mAP@class", methods) for cell in cells]
    mean_rank = {method: fmean(rank[method] for rank in ranks) for method in methods}
    lines = [_how(cells)]
    if len(cells) > 1:
        p = float(friedmanchisquare(*([rank[m] for rank in ranks] for m in methods)).pvalue)
        lines += [
            f"Friedman's test of equal ranks: p = {p:.1e}. The critical difference of mean ranks "
            f"of {len(methods)} methods is {critical_difference(len(methods), len(cells)):.1f}."
        ]
    header = ["method", "probabilities", "mean rank"]
    header += [f"mAP {cell.data}" for cell in cells] + [*COLUMNS[1:], "learning rates"]
    rows = []
    for method in sorted(methods, key=lambda name: (mean_rank[name], name)):
        row = [f"`{method}`", find_method(method).probabilities, f"{mean_rank[method]:.1f}"]
        row += [_spread(cell, method, "mAP@class") for cell in cells]
        row += [_mean(cells, method, column) for column in COLUMNS[1:]]
        rows.append([*row, " ".join(_rate(cell, method) for cell in cells)])
    table = [header, ["---"] * len(header), *rows]
    return [*lines, "", *("| " + " | ".join(row) + " |" for row in table)]


def _how(cells: Sequence[SurveyCell]) -> str:
    parts = []
    for cell in cells:
        made = cell.facts["made"]
        images = " / ".join(f"{count:,}" for count in made["images"].values())
        parts.append(f"{cell.data} {images}, {made['labels']} labels")
    seeds = cells[0].facts["made"]["seeds"]
    return f"Images for training / validation / test: {'; '.join(parts)}. {seeds} seeds."


def _spread(cell: SurveyCell, method: str, column: str) -> str:
    """Return mean and half the corrected 95 % interval over seeds."""
    values = values_of(cell, method, column)
    if len(values) < 3:
        return f"{100 * fmean(values):.1f}"
    half = stdtrit(len(values) - 1, 0.975) * stdev(values) * sqrt(_inflation(cell, len(values)))
    return f"{100 * fmean(values):.1f} ± {100 * float(half):.1f}"


def _mean(cells: Sequence[SurveyCell], method: str, column: str) -> str:
    found = [values_of(cell, method, column) for cell in cells]
    if not all(found):
        return "–"
    mean = fmean(fmean(values) for values in found)
    return f"{100 * mean:.1f}" if column in PERCENT else "∞" if mean == inf else f"{mean:.3f}"


def _rate(cell: SurveyCell, method: str) -> str:
    """Return the chosen learning rate, marked where it is the last that was tried on a side."""
    one = cell.methods[method]
    tried = [float(lr) for lr in one.tries]
    near = min(tried, key=lambda lr: abs(lr - one.rate))
    edge = "!" if near in (min(tried), max(tried)) and len(tried) >= len(RATES) else ""
    return f"{one.rate:.2g}{edge}"


def diagram(cells: Sequence[SurveyCell], column: str = "mAP@class") -> str:
    """Return critical-difference diagrams of ``DRAWN`` methods, one for each kind of knowledge."""
    parts, top = [], 10
    for name, words in CELLS.items():
        here = [cell for cell in cells if cell.cell == name and set(DRAWN) <= set(cell.methods)]
        if len(here) > 1:
            ranks = [ranks_of(cell, column, DRAWN) for cell in here]
            means = {method: fmean(rank[method] for rank in ranks) for method in DRAWN}
            parts += _panel(f"{words}, {len(here)} sets", means, len(here), top)
            top += 60 + LINE * (len(DRAWN) + 1) // 2
    frame = f'viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>\n' + "\n".join(parts) + "\n</svg>\n"


def _panel(title: str, means: Mapping[str, float], sets: int, top: int) -> list[str]:
    step = (RIGHT - LEFT) / (len(means) - 1)

    def at(rank: float) -> float:
        return LEFT + (rank - 1) * step

    gap, axis = critical_difference(len(means), sets), top + 30
    lines = [
        f'<text x="10" y="{top + 8}" font-weight="bold">{title}</text>',
        _line(at(1), axis, at(len(means)), axis),
        _line(at(1), top + 18, at(1 + gap), top + 18, 3),
        f'<text x="{at(1 + gap) + 5:.1f}" y="{top + 22}">critical difference {gap:.1f}</text>',
    ]
    order = sorted(means, key=lambda name: means[name])
    for place, name in enumerate(order):
        left = place < len(order) / 2
        y = axis + LINE * (1 + (place if left else len(order) - 1 - place))
        x, anchor = (LEFT - 10, "end") if left else (RIGHT + 10, "start")
        lines += [
            _line(at(means[name]), axis, at(means[name]), y),
            _line(at(means[name]), y, x, y),
            f'<text x="{x}" y="{y + 4}" text-anchor="{anchor}">{name} {means[name]:.1f}</text>',
        ]
    return lines


def _line(x: float, y: float, to_x: float, to_y: float, width: int = 1) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="#333" stroke-width="{width}"/>'

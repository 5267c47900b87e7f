"""The page of a survey, made of its results files alone: sentences, mean ranks, tables.

A difference between two methods on one data set is judged by Nadeau and Bengio's test for images
that are dealt again (2003), over J seeds whose differences have the deviation s:

    t = d / (s sqrt(1 / J + test images / training images)),    J - 1 degrees of freedom

and Holm's rule over all comparisons of all sentences of the page. Ranks are over methods, equal
figures share the mean of theirs; Nemenyi's critical difference is q sqrt(k (k + 1) / 6 N) for k
methods on N sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Literal

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
    """A test that was looked at, of a method against others by a column, and what it advises.

    Without a ``text`` it advises nothing, and is shown all the same. ``{lead}`` in a text is the
    largest mean by which one of the others is ahead of the method on a data set.
    """

    cell: str
    column: str
    method: str
    against: tuple[str, ...]
    expect: Expected
    text: str = ""


@dataclass(frozen=True)
class Finding:
    """What the results say of a test: its sentence, better and worse of so many comparisons."""

    text: str
    better: int
    worse: int
    count: int


def findings(
    cells: Sequence[SurveyCell], sentences: Sequence[Sentence], *, check: bool = True
) -> list[Finding]:
    """Return what the results say of each; raise if that is not what a sentence expects.

    Holm's rule runs over all comparisons of all sentences: they were chosen by their results.
    """
    tested = [
        (number, *p_value(cell, one.method, other, one.column))
        for number, one in enumerate(sentences)
        for cell in cells
        if cell.cell == one.cell
        for other in one.against
    ]
    better, worse = [0] * len(sentences), [0] * len(sentences)
    for left, (number, gap, p) in enumerate(sorted(tested, key=lambda one: one[2])):
        if p > 0.05 / (len(tested) - left):
            break
        (better if gap > 0 else worse)[number] += 1
    found = []
    for number, one in enumerate(sentences):
        up, down = better[number], worse[number]
        word = "mixed" if up and down else "better" if up else "worse" if down else "level"
        if check and word != one.expect:
            raise SettingsError(
                f"{one.text or one!r} rests on {one.expect!r}, and the results say {word!r} "
                f"(better in {up}, worse in {down} comparisons)"
            )
        gaps = [gap for at, gap, _ in tested if at == number]
        lead = f"{100 * max(0.0, -min(gaps)):.1f}" if one.column in PERCENT else f"{-min(gaps):.3f}"
        found.append(Finding(one.text.replace("{lead}", lead), up, down, len(gaps)))
    return found


def ranks_of(cell: SurveyCell, column: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the rank of each method, 1 the best.

    Means that agree to four decimals are equal, and share the mean of their ranks.
    """
    sign = -1 if column in HIGHER else 1
    means = [fmean(values_of(cell, m, column) or [sign * inf]) for m in methods]
    losses = [inf if mean in (inf, -inf) else round(sign * mean, 4) for mean in means]
    from scipy.stats import rankdata

    return dict(zip(methods, rankdata(losses).tolist(), strict=True))


def critical_difference(methods: int, sets: int) -> float:
    """Return by how much mean ranks must differ, by Nemenyi's test at 5 %."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(0.95, methods, inf)) / sqrt(2)
    return quantile * sqrt(methods * (methods + 1) / (6 * sets))


def complete(cells: Sequence[SurveyCell]) -> list[SurveyCell]:
    """Return the cells that have as many methods as the largest, in the order of the survey."""
    most = max(len(cell.methods) for cell in cells)
    order = list(CELLS)
    kept = [cell for cell in cells if len(cell.methods) == most]
    return sorted(kept, key=lambda cell: (order.index(cell.cell), cell.data))


def page(cells: Sequence[SurveyCell], sentences: Sequence[Sentence], before: str) -> str:
    """Return the page: what was advised, then one table for everything that is known of labels.

    ``before`` says where the SENTENCES go; its ``{tests}`` and ``{comparisons}`` are how many were
    looked at.
    """
    found = list(zip(sentences, findings(cells, sentences), strict=True))
    advice = []
    for number, (one, finding) in enumerate(((one, f) for one, f in found if f.text), 1):
        others = ", ".join(f"`{name}`" for name in one.against)
        advice += [
            f"{number}. **{finding.text}** {one.column}, {CELLS[one.cell]}: `{one.method}` is "
            f"significantly better than {others} in {finding.better} and worse in {finding.worse} "
            f"of {finding.count} comparisons."
        ]
    total = sum(one.count for _, one in found)
    for mark, words in (
        ("SENTENCES", "\n".join(advice)),
        ("{tests}", str(len(found))),
        ("{comparisons}", f"{total:,}"),
    ):
        before = before.replace(mark, words)
    lines = [before.rstrip(), ""]
    for name, words in CELLS.items():
        here = [cell for cell in cells if cell.cell == name]
        if here:
            lines += [f"## {words[0].upper()}{words[1:]}", "", *_table(here), ""]
    if found:
        header = ["known", "figure", "method", "against", "better", "worse", "comparisons"]
        rows = [
            [
                *(one.cell, one.column, f"`{one.method}`"),
                ", ".join(f"`{name}`" for name in one.against),
                *map(str, (f.better, f.worse, f.count)),
            ]
            for one, f in found
        ]
        lines += ["## Every test we looked at", "", *_markdown([header, *rows]), ""]
    return "\n".join(lines)


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def _table(cells: Sequence[SurveyCell]) -> list[str]:
    """Return the table of one kind of knowledge, by the mean rank of mAP over sets."""
    methods = list(cells[0].methods)
    ranks = [ranks_of(cell, "mAP@class", methods) for cell in cells]
    mean_rank = {method: fmean(rank[method] for rank in ranks) for method in methods}
    lines = [_how(cells)]
    if len(cells) > 1:
        from scipy.stats import friedmanchisquare

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
    return [*lines, "", *_markdown([header, *rows])]


def _how(cells: Sequence[SurveyCell]) -> str:
    parts = []
    for cell in cells:
        made = cell.facts["made"]
        images = " / ".join(f"{count:,}" for count in made["images"].values())
        parts.append(f"{cell.data} {images}, {made['labels']} labels")
    seeds = cells[0].facts["made"]["seeds"]
    return f"Images for training / validation / test: {'; '.join(parts)}. {seeds} seeds."


def interval(cell: SurveyCell, method: str, column: str) -> tuple[float, float]:
    """Return mean and half the corrected 95 % interval over seeds."""
    values = values_of(cell, method, column)
    if len(values) < 3:
        return fmean(values), inf
    half = stdtrit(len(values) - 1, 0.975) * stdev(values) * sqrt(_inflation(cell, len(values)))
    return fmean(values), float(half)


def _spread(cell: SurveyCell, method: str, column: str) -> str:
    mean, half = interval(cell, method, column)
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if half < inf else "")


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

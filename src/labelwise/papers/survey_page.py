"""The page of a survey, made of its results files alone: mean ranks and tables.

Images are dealt again for every seed, so seeds share images. The variance of a mean over J seeds is
that over seeds times 1 / J + test images / training images (Nadeau and Bengio 2003). Ranks are over
methods, equal figures share the mean of theirs; Nemenyi's critical difference is
q sqrt(k (k + 1) / 6 N) for k methods on N sets.
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev

from labelwise.methods import find_method
from labelwise.numeric.special import stdtrit
from labelwise.papers.survey import CELLS, RATES, SurveyCell

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


def inflation(cell: SurveyCell, seeds: int) -> float:
    """Return what the variance over seeds is multiplied by for the variance of a mean."""
    images = cell.facts["made"]["images"]
    return 1 / seeds + float(images["test"] / images["train"])


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


def page(cells: Sequence[SurveyCell], before: str) -> str:
    """Return the page: what goes before, then one table for everything known of labels."""
    lines = [before.rstrip(), ""]
    for name, words in CELLS.items():
        here = [cell for cell in cells if cell.cell == name]
        if here:
            lines += [f"## {words[0].upper()}{words[1:]}", "", *_table(here), ""]
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the header first."""
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
    return [*lines, "", *markdown([header, *rows])]


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
    half = stdtrit(len(values) - 1, 0.975) * stdev(values) * sqrt(inflation(cell, len(values)))
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
    result = cell.methods[method]
    tried = [float(lr) for lr in result.tries]
    near = min(tried, key=lambda lr: abs(lr - result.rate))
    edge = "!" if near in (min(tried), max(tried)) and len(tried) >= len(RATES) else ""
    return f"{result.rate:.2g}{edge}"

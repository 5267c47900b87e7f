"""Write evidence/survey.md from the results of `labelwise papers run survey`.

    python benchmarks/survey.py FOLDER     keep these results in benchmarks/survey, write the page
    python benchmarks/survey.py            write the page from the results that are kept
    python benchmarks/survey.py --check    fail if the page is another one, or a sentence is wrong

The page is survey/page.md, the sentences of survey/sentences.toml with what their tests found, the
tables, and survey/more.md. A sentence that the results do not bear out stops the program. Two
methods are compared on one data set by Nadeau and Bengio's test for images that are dealt again
(2003), over J seeds whose differences have the deviation s:

    t = d / (s sqrt(1 / J + test images / training images)),    J - 1 degrees of freedom

and Holm's rule runs over all comparisons of all sentences.
"""

import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from labelwise.base.special import stdtr
from labelwise.errors import SettingsError
from labelwise.papers.comparison import table_lines
from labelwise.papers.survey import (
    CELLS,
    HIGHER,
    PERCENT,
    SurveyCell,
    complete,
    critical_difference,
    inflation,
    interval,
    page,
    ranks_of,
    values_of,
)

Expected = Literal["better", "worse", "level", "mixed"]

KEPT = Path(__file__).with_name("survey")
EVIDENCE = Path(__file__).parents[1] / "evidence"

DRAWN = (  # in the diagram of ranks: few enough for a critical difference to tell something
    *("bce", "asl-official", "spa", "two-way", "softmax", "quasibinary"),
    *("an", "wan", "role", "ll-r"),
)
WIDTH, LEFT, RIGHT, LINE = 760, 150, 610, 15


def made() -> dict[Path, str]:
    """Return the page and its diagram, by file."""
    cells = complete(_cells(KEPT))
    stated = tomllib.loads((KEPT / "sentences.toml").read_text(encoding="utf-8"))
    sentences = [
        Sentence(**{**one, "against": tuple(one["against"])})
        for one in (*stated["sentence"], *stated["looked"])
    ]
    text = advised(cells, sentences, (KEPT / "page.md").read_text(encoding="utf-8"))
    more = (KEPT / "more.md").read_text(encoding="utf-8")
    text += more.replace("FINETUNED", small_table("head", _cells(KEPT / "finetuned")))
    return {EVIDENCE / "survey.md": text, EVIDENCE / "survey.svg": diagram(cells)}


def p_value(cell: SurveyCell, first: str, second: str, column: str) -> tuple[float, float]:
    """Return by how much the first method is better, and the p-value of the corrected test."""
    pairs = zip(values_of(cell, first, column), values_of(cell, second, column), strict=True)
    sign = 1 if column in HIGHER else -1
    gaps = [sign * (one - other) for one, other in pairs]
    spread = stdev(gaps) * sqrt(inflation(cell, len(gaps)))
    if not spread:
        return fmean(gaps), 0.0 if fmean(gaps) else 1.0
    return fmean(gaps), float(2 * stdtr(len(gaps) - 1, -abs(fmean(gaps)) / spread))


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


def advised(cells: Sequence[SurveyCell], sentences: Sequence[Sentence], before: str) -> str:
    """Return the page with its sentences, in place of SENTENCES, and every test at the end.

    ``{tests}`` and ``{comparisons}`` of ``before`` are how many were looked at.
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
    header = ["known", "figure", "method", "against", "better", "worse", "comparisons"]
    rows = [
        [
            *(one.cell, one.column, f"`{one.method}`"),
            ", ".join(f"`{name}`" for name in one.against),
            *map(str, (f.better, f.worse, f.count)),
        ]
        for one, f in found
    ]
    tests = ["## Every test we looked at", "", *table_lines(header, rows), ""]
    return page(cells, before) + "\n" + "\n".join(tests) + "\n"


def _cells(folder: Path) -> list[SurveyCell]:
    return [SurveyCell.load(file) for file in sorted(folder.glob("*.json"))]


def small_table(first: str, cells: Sequence[SurveyCell]) -> str:
    """Return a table of cells, one row a method; ``first`` says what tells the cells apart."""
    columns = (
        "macro F1",
        "micro F1",
        "log loss before",
        "log loss after",
        "ACE before",
        "ACE after",
    )
    rows = [[first, "known", "method", "mAP", *columns, "seconds", "rate"]]
    for cell in cells:
        for method, found in cell.methods.items():
            mean, half = interval(cell, method, "mAP@class")
            tried = [float(lr) for lr in found.tries]
            edge = "!" if found.rate in (min(tried), max(tried)) else ""
            figures = [values_of(cell, method, column) for column in columns]
            shown = [
                "–"
                if not one
                else f"{fmean(one):.3f}"
                if "loss" in name
                else f"{100 * fmean(one):.1f}"
                for name, one in zip(columns, figures, strict=True)
            ]
            seconds = f"{fmean(values_of(cell, method, 'seconds')):.1f}"
            start = [cell.data, cell.cell, f"`{method}`", f"{100 * mean:.1f} ± {100 * half:.1f}"]
            rows.append([*start, *shown, seconds, f"{found.rate:g}{edge}"])
    return "\n".join(table_lines(rows[0], rows[1:]))


def _percent(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.1f}"


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
    for place, name in enumerate(order):  # a bar joins methods that do not differ significantly
        last = max(n for n, other in enumerate(order) if means[other] - means[name] <= gap)
        before = max(
            (n for n, o in enumerate(order) if place and means[o] - means[order[place - 1]] <= gap),
            default=-1,
        )
        if last > place and last > before:
            y = axis + 4 + 3 * (place % 3)
            lines.append(_line(at(means[name]) - 2, y, at(means[order[last]]) + 2, y, 2))
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


def main(arguments: list[str]) -> None:
    for folder in (Path(one) for one in arguments if not one.startswith("--")):
        for file in folder.glob("*.*.json"):
            shutil.copy(file, KEPT / file.name)
    for file, text in made().items():
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file} differs from its results; run python benchmarks/survey.py")


if __name__ == "__main__":
    main(sys.argv[1:])

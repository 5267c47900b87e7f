"""Write evidence/survey.md from the results of `labelwise papers run survey`.

    python benchmarks/survey.py FOLDER     keep these results in benchmarks/survey, write the page
    python benchmarks/survey.py            write the page from the results that are kept
    python benchmarks/survey.py --check    fail if the page is another one, or a sentence is wrong

The page comes with a figure and with all runs as one Parquet file.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from labelwise.base.special import stdtr, stdtrit
from labelwise.errors import SettingsError
from labelwise.papers.comparison import table_lines
from labelwise.papers.survey import (
    CELLS,
    HIGHER,
    PERCENT,
    SurveyCell,
    complete,
    inflation,
    interval,
    page,
    values_of,
)

Expected = Literal["better", "worse", "level", "mixed"]

KEPT = Path(__file__).with_name("survey")
EVIDENCE = Path(__file__).parents[1] / "evidence"

DRAWN = (  # in the figure, below bce
    *("asl-official", "spa", "two-way", "softmax", "quasibinary"),
    *("an", "wan", "epr", "role", "ll-r", "average-k"),
)
LEFT, PANEL, ROW, TOP = 100, 212, 20, 46  # of the figure, in pixels
LOWEST, HIGHEST = -12.0, 4.0  # points of mAP that a panel shows
COLOUR, CIRCLE, BEYOND = "#2b6cb0", "M-3 0 A3 3 0 1 0 3 0 A3 3 0 1 0 -3 0", "M0 -4 L-5 0 L0 4 Z"


def made() -> dict[Path, str]:
    """Return the page and its figure, by file."""
    every = _cells(KEPT)
    cells, again, alike = complete(every), _cells(KEPT / "again"), _cells(KEPT / "alike")
    stated = tomllib.loads((KEPT / "sentences.toml").read_text(encoding="utf-8"))
    sentences = [
        Sentence(**{**one, "against": tuple(one["against"])})
        for one in (*stated["sentence"], *stated["looked"])
    ]
    before = (KEPT / "page.md").read_text(encoding="utf-8")
    text = advised(cells, sentences, before.replace("HIDDEN", hidden(again, alike, sentences)))
    more = (KEPT / "more.md").read_text(encoding="utf-8")
    finetuned = _cells(KEPT / "finetuned")
    text += more.replace("FINETUNED", small_table("data", finetuned))
    text += sources([*every, *again, *alike, *finetuned])
    return {EVIDENCE / "survey.md": text, EVIDENCE / "survey.svg": figure(cells)}


def as_table() -> pa.Table:
    """Return one row per run: where it comes from, its method and seed, and its figures."""
    folders = {"": "frozen", "again": "frozen, again", "alike": "frozen, validation alike"}
    rows: list[dict[str, object]] = []
    for folder, tier in (*folders.items(), ("finetuned", "fine-tuned")):
        for cell in _cells(KEPT / folder):
            made_by = {key: cell.facts[key] for key in ("command", "commit", "machine")}
            for method, found in cell.methods.items():
                at = {"tier": tier, "data": cell.data, "known": cell.cell, "method": method}
                at |= {"learning rate": found.rate, **made_by}
                rows += [{**at, "seed": seed, **run} for seed, run in enumerate(found.figures)]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    short = [  # figures are kept with five digits
        field.with_type(pa.float32()) if field.type == pa.float64() else field
        for field in table.schema
    ]
    return table.cast(pa.schema(short))


def hidden(
    again: Sequence[SurveyCell], alike: Sequence[SurveyCell], sentences: Sequence["Sentence"]
) -> str:
    """Return what changes where validation is hidden as training is, both run by one commit."""
    if not again or not alike:
        return "They have not been run again yet."
    here = {cell.cell for cell in alike}
    known = {method for cell in alike for method in cell.methods}
    asked = [
        replace(one, against=against)
        for one in sentences
        if one.cell in here and one.method in known
        for against in [tuple(name for name in one.against if name in known)]
        if against
    ]
    pairs = list(
        zip(
            asked,
            *(findings(cells, asked, check=False) for cells in (again, alike)),
            strict=True,
        )
    )
    header = ["known", "figure", "method", "against", "complete", "hidden alike", "changes"]
    rows, changed = [], 0
    for one, *both in pairs:
        words = [_word(f) for f in both]
        changed += words[0] != words[1]
        shown = [
            f"{w} ({f.better} / {f.worse} of {f.count})" for w, f in zip(words, both, strict=True)
        ]
        mark = "" if words[0] == words[1] else "advice" if one.text else "yes"
        against = ", ".join(f"`{name}`" for name in one.against)
        rows.append([one.cell, one.column, f"`{one.method}`", against, *shown, mark])
    header_2 = [
        "method",
        *(
            f"{kind}: {what}"
            for kind in CELLS
            if kind in here
            for what in ("mAP", "alike", "log loss after", "alike")
        ),
    ]
    means = []
    for method in (name for name in again[0].methods if name in known):
        row = [f"`{method}`"]
        for kind in (kind for kind in CELLS if kind in here):
            for column, scale, digits in (("mAP@class", 100, 1), ("log loss after", 1, 3)):
                for cells in (again, alike):
                    values = [fmean(values_of(c, method, column)) for c in cells if c.cell == kind]
                    row.append(f"{scale * fmean(values):.{digits}f}")
        means.append(row)
    advice = sum(row[-1] == "advice" for row in rows)
    start = (
        f"Of {len(rows)} tests, {changed} come out otherwise; {advice} of them carry advice. "
        "Shown are what the results say, and in how many comparisons the method is better / worse."
    )
    return "\n".join([start, "", *table_lines(header, rows), "", *table_lines(header_2, means)])


def _word(finding: "Finding") -> str:
    up, down = finding.better, finding.worse
    return "mixed" if up and down else "better" if up else "worse" if down else "level"


def sources(cells: Sequence[SurveyCell]) -> str:
    """Return which command and commit every figure of the page comes from."""
    made_by: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        key = (cell.facts["command"], cell.facts["commit"], cell.facts["machine"])
        made_by.setdefault(key, []).append(f"{cell.data}.{cell.cell}")
    header = ["results", "command", "commit", "machine"]
    rows = [
        [", ".join(sorted(set(names))), f"`{command}`", f"`{commit}`", machine]
        for (command, commit, machine), names in made_by.items()
    ]
    return "\n".join(["", "## Where the figures come from", "", *table_lines(header, rows), ""])


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
        word = _word(Finding("", up, down, 0))
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
            rows.append([*start, *shown, seconds, f"{found.rate:.3g}{edge}"])
    return "\n".join(table_lines(rows[0], rows[1:]))


def gap_to_bce(cells: Sequence[SurveyCell], method: str) -> tuple[float, float]:
    """Return the mean gap to bce in points of mAP over data sets, and half its 95 % interval.

    The variance of the mean over n sets is the sum of the sets' corrected variances over n squared,
    with the degrees of freedom of one set.
    """
    gaps, variance = [], 0.0
    for cell in cells:
        pairs = zip(
            values_of(cell, method, HIGHER[0]), values_of(cell, "bce", HIGHER[0]), strict=True
        )
        own = [100 * (one - other) for one, other in pairs]
        gaps.append(fmean(own))
        variance += stdev(own) ** 2 * inflation(cell, len(own))
    return fmean(gaps), float(stdtrit(len(own) - 1, 0.975)) * sqrt(variance) / len(gaps)


def figure(cells: Sequence[SurveyCell]) -> str:
    """Return an SVG: the gap of methods to bce, a panel for each kind of labels, with intervals."""
    width, height = LEFT + PANEL * len(CELLS) + 10, TOP + ROW * len(DRAWN) + 30
    title = "mAP beside bce, points; mean over data sets and its 95 % interval"
    lines = [_text(8, 16, f"{title}; a triangle: below {LOWEST:g}", "bold")]
    lines += [_text(8, TOP + ROW * (n + 0.7), name) for n, name in enumerate(DRAWN)]
    for number, (kind, words) in enumerate(CELLS.items()):
        left = LEFT + PANEL * number

        def at(points: float, left: int = left) -> float:
            share = (min(max(points, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
            return left + 8 + (PANEL - 20) * share

        bottom = TOP + ROW * len(DRAWN)
        lines.append(_text(left + 4, TOP - 10, words))
        lines.append(_line(at(0), TOP, at(0), bottom, "#888"))
        lines += [_text(at(tick) - 6, bottom + 14, f"{tick:d}") for tick in (-10, -5, 0)]
        here = [cell for cell in cells if cell.cell == kind]
        for row, method in enumerate(DRAWN):
            mean, half = gap_to_bce(here, method)
            y = TOP + ROW * (row + 0.5)
            lines.append(_line(at(mean - half), y, at(mean + half), y, COLOUR))
            shape = BEYOND if mean < LOWEST else CIRCLE
            place = f"translate({at(mean):.1f} {y:.1f})"
            lines.append(f'<path transform="{place}" d="{shape}" fill="{COLOUR}"/>')
    frame = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>\n' + "\n".join(lines) + "\n</svg>\n"


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{text}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def main(arguments: list[str]) -> None:
    for folder in (Path(one) for one in arguments if not one.startswith("--")):
        for file in folder.glob("*.*.json"):
            shutil.copy(file, KEPT / file.name)
    if "--check" not in arguments:
        pq.write_table(as_table(), EVIDENCE / "survey.parquet", compression="zstd")
    for file, text in made().items():
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file} differs from its results; run python benchmarks/survey.py")


if __name__ == "__main__":
    main(sys.argv[1:])

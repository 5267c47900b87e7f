"""What a survey found, as plain data and as a page.

In every cell (a data set and what is known of its labels) methods are ranked by each measure; equal
ones share a rank. One is *level* with the best where the comparison does not tell them apart: all
pairs of methods are decided together by Shaffer's rule, against the spread over seeds and over test
images. The power of promises is ranked too, but only its spread over seeds is known, so nothing is
told apart by it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import DataError
from labelwise.papers.comparison import Comparison, show_figure
from labelwise.papers.measures import MEASURES
from labelwise.papers.statistics import SeedMean
from labelwise.system.files import replacing

COLUMNS = (
    *("mAP@class", "log loss before", "log loss after", "ACE before", "ACE after"),
    "promised",
)
JUDGED = tuple(name for name in COLUMNS if name != "promised")
RANKED = ("mAP@class", "log loss after", "ACE before", "promised")
RESULTS, PAGE = "survey.json", "survey.md"
PICTURES = ("image_size", "squash")  # settings of the backbone of photos, idle without one
LEVEL = "≈"
KNOWN_WORDS = {
    "full": "all labels known",
    "tenth": "a tenth of the entries known",
    "single": "one present label known per image",
}
DIGITS = 6


@dataclass(frozen=True)
class Surveyed:
    """One figure of a method: its mean, half its interval (None: too few seeds), rank, level."""

    mean: float
    half: float | None
    rank: int
    level: bool

    def text(self, name: str, seeds: int) -> str:
        """Return the figure as the page shows it: the best bold, those level with it marked."""
        spread = float("inf") if self.half is None else self.half
        shown = show_figure(
            SeedMean(self.mean, self.mean - spread, self.mean + spread, seeds),
            MEASURES[name].percent,
        )
        if self.rank == 1:
            return f"**{shown}**"
        return f"{shown} {LEVEL}" if self.level else shown


@dataclass(frozen=True)
class SurveyCell:
    """A data set and what is known of it: images by split, labels, figures by method and column."""

    data: str
    known: str
    images: Mapping[str, int]
    labels: int
    methods: Mapping[str, Mapping[str, Surveyed]]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.data}.{self.known}"

    @classmethod
    def of(
        cls, data: str, known: str, images: Mapping[str, int], labels: int, found: Comparison
    ) -> "SurveyCell":
        """Return the cell of a comparison."""
        methods: dict[str, dict[str, Surveyed]] = {name: {} for name in found.figures}
        for column in COLUMNS:
            means = {m: one for m, one in found.intervals(column).items() if isfinite(one.mean)}
            sign = -1.0 if MEASURES[column].higher_is_better else 1.0
            losses = {method: sign * one.mean for method, one in means.items()}
            level = set()
            if column in JUDGED:
                gaps = found.differences(column)
                level = {gap.first for gap in gaps if not gap.distinguishable}
            for method, one in means.items():
                methods[method][column] = Surveyed(
                    _rounded(one.mean),
                    _rounded(one.half_width) if isfinite(one.half_width) else None,
                    1 + sum(loss < losses[method] for loss in losses.values()),
                    method in level,
                )
        return cls(data, known, dict(images), labels, methods)

    def markdown(self, seeds: int) -> list[str]:
        """Return the cell as a table, the best mAP first."""
        last = len(self.methods) + 1
        order = sorted(
            self.methods,
            key=lambda m: self.methods[m]["mAP@class"].rank if self.methods[m] else last,
        )
        header = [f"{name} {'↑' if MEASURES[name].higher_is_better else '↓'}" for name in COLUMNS]
        rows = [
            [
                f"`{method}`",
                *(
                    self.methods[method][name].text(name, seeds)
                    if name in self.methods[method]
                    else "–"
                    for name in COLUMNS
                ),
            ]
            for method in order
        ]
        return _table(["method", *header], rows)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Survey:
    """The cells there are, by name, and how they were made."""

    cells: Mapping[str, SurveyCell]
    facts: Mapping[str, Any]

    def with_cell(self, cell: SurveyCell) -> "Survey":
        """Return the survey with one more cell."""
        return Survey({**self.cells, cell.name: cell}, self.facts)

    def joined(self, other: "Survey") -> "Survey":
        """Return the cells of both; raise if they were made otherwise.

        How photos became features must agree only where both have photos.
        """
        with_photos = self if self.facts["backbone"] else other
        both = self.facts["backbone"] and other.facts["backbone"]
        alike = self.facts == other.facts if both else _apart(self.facts) == _apart(other.facts)
        if not alike:
            raise DataError(
                "surveys are joined if their seeds, tries and settings are the same, got "
                f"{dict(self.facts)} and {dict(other.facts)}"
            )
        return Survey({**self.cells, **other.cells}, with_photos.facts)

    def save(self, folder: Path) -> None:
        """Write ``survey.json`` and ``survey.md``."""
        for name, text in ((RESULTS, self.plain()), (PAGE, self.markdown())):
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def plain(self) -> str:
        """Return the survey as JSON."""
        cells = {
            name: {
                "images": cell.images,
                "labels": cell.labels,
                "methods": {
                    method: {c: [f.mean, f.half, f.rank, f.level] for c, f in figures.items()}
                    for method, figures in cell.methods.items()
                },
            }
            for name, cell in self.cells.items()
        }
        lines = json.dumps({"facts": dict(self.facts), "cells": cells}, allow_nan=False)
        return lines.replace('"], "', '"],\n"').replace("]}, ", "]},\n") + "\n"

    @staticmethod
    def load(file: Path) -> "Survey":
        """Return the survey that :meth:`save` wrote."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            cells = {}
            for name, one in content["cells"].items():
                data, _, known = name.rpartition(".")
                methods = {
                    method: {column: Surveyed(*figure) for column, figure in figures.items()}
                    for method, figures in one["methods"].items()
                }
                cells[name] = SurveyCell(data, known, one["images"], one["labels"], methods)
            return Survey(cells, content["facts"])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{file} is not the result of a survey ({error})") from None

    def markdown(self) -> str:
        """Return all tables as Markdown: mean ranks first, then every cell."""
        lines = [self._how(), ""]
        for known in dict.fromkeys(cell.known for cell in self.cells.values()):
            chosen = [cell for cell in self.cells.values() if cell.known == known]
            sets = ", ".join(cell.data for cell in chosen)
            lines += [f"## Mean ranks, {KNOWN_WORDS[known]}", ""]
            lines += [f"Over {sets}; in brackets on how many of them a method is best or level "]
            lines[-1] += "with the best."
            lines += ["", *_ranks(chosen), ""]
        for cell in self.cells.values():
            counts = ", ".join(f"{count:,} {split}" for split, count in cell.images.items())
            lines += [f"## {cell.data}, {KNOWN_WORDS[cell.known]}", ""]
            lines += [f"Images: {counts}; {cell.labels} labels.", ""]
            lines += [*cell.markdown(self.facts["seeds"]), ""]
        return "\n".join(lines)

    def _how(self) -> str:
        facts = self.facts
        tries = "1 try" if facts["tries"] == 1 else f"{facts['tries']} tries"
        words = f"{facts['seeds']} seeds, {tries} of each method"
        if facts["backbone"]:
            words += f", photos as features of {facts['backbone']}"
        changed = ", ".join(f"{key} {value}" for key, value in facts["changed"].items())
        words += f", set: {changed}" if changed else ""
        return f"Made with {words}{', the quick budget' if facts['quick'] else ''}."


def _ranks(cells: Sequence[SurveyCell]) -> list[str]:
    """Return the table of mean ranks over cells, by mAP; a method without a figure is last."""
    names = list(dict.fromkeys(method for cell in cells for method in cell.methods))
    ranks: dict[str, list[float]] = {}
    rows = []
    for method in names:
        shown, ranks[method] = [f"`{method}`"], []
        for column in RANKED:
            figures = [cell.methods.get(method, {}).get(column) for cell in cells]
            places = [
                float(len(cell.methods)) if figure is None else float(figure.rank)
                for cell, figure in zip(cells, figures, strict=True)
            ]
            ranks[method].append(float(np.mean(places)))
            first = sum(f is not None and (f.rank == 1 or f.level) for f in figures)
            none = all(figure is None for figure in figures)
            told = f" ({first})" if column in JUDGED else ""
            shown.append("–" if none else f"{ranks[method][-1]:.1f}{told}")
        rows.append(shown)
    rows.sort(key=lambda row: ranks[row[0].strip("`")])
    return _table(["method", *RANKED], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]


def _apart(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts apart from those of photos."""
    changed = {key: value for key, value in facts["changed"].items() if key not in PICTURES}
    return {**facts, "backbone": None, "changed": changed}

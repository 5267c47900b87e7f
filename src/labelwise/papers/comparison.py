"""Comparison: the figures of all methods and seeds, as a table and in plain words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, isinf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labelwise.errors import DataError
from labelwise.evaluation.evaluation import Number
from labelwise.papers.measures import MEASURES
from labelwise.papers.statistics import (
    Covariance,
    Difference,
    SeedMean,
    compare_to_best,
    seed_mean,
    verdict,
)
from labelwise.system.files import write_text
from labelwise.system.pydantic_errors import first_fault

HEADLINE = (
    *("mAP@class", "mAP@sample", "macro F1", "ECE before", "ACE before", "MCE before", "ECE after"),
    *("log loss before", "log loss after", "Brier after", "zero-label AUROC", "zero-label MMC"),
    *("promised", "retrieval n=3", "seconds", "host MB", "GPU MB"),
)
INFINITE = "infinite"
JUDGED = (
    *("mAP@class", "mAP@sample", "ACE before"),
    *("log loss before", "log loss after", "Brier after"),
)


@dataclass(frozen=True)
class SweepChoice:
    """The value of a swept option that is best on validation: ``scores`` by value, over seeds."""

    method: str
    option: str
    metric: str
    value: str | None
    scores: Mapping[str, float | None]

    def __str__(self) -> str:
        scores = ", ".join(
            f"{value}: {'undefined' if score is None else f'{score:.4f}'}"
            for value, score in self.scores.items()
        )
        if self.value is None:
            return f"{self.method}: {self.metric} on validation chooses no {self.option} ({scores})"
        return (
            f"{self.method}: {self.option}={self.value} has the best {self.metric} on validation "
            f"({scores})"
        )


@dataclass(frozen=True)
class Comparison:
    """``figures[method][seed][column]``, and the settings each method was trained with.

    An undefined figure is left out, an infinite one is ``inf``. ``image_covariance[column]`` is the
    covariance of the methods' mean figures over the choice of test images, for judged columns;
    over the choice of ``groups`` of them, where they come in groups, with the degrees of freedom
    ``image_freedom[column]``. ``choices`` are the best values of a sweep.
    """

    figures: Mapping[str, Mapping[int, Mapping[str, float]]]
    settings: Mapping[str, Mapping[str, object]]
    image_covariance: Mapping[str, Covariance] = field(default_factory=dict)
    choices: tuple[SweepChoice, ...] = ()
    groups: int | None = None
    image_freedom: Mapping[str, float] = field(default_factory=dict)

    def column(self, name: str) -> dict[str, dict[int, float]]:
        """Return ``{method: {seed: value}}``; a method undefined on one seed has no values."""
        return {
            method: {seed: row[name] for seed, row in by_seed.items()}
            if all(name in row for row in by_seed.values())
            else {}
            for method, by_seed in self.figures.items()
        }

    def intervals(self, name: str) -> dict[str, SeedMean]:
        return {
            method: seed_mean(list(by_seed.values()))
            for method, by_seed in self.column(name).items()
        }

    def verdicts(self, names: Sequence[str] = JUDGED) -> list[str]:
        return [
            verdict(
                name,
                self.differences(name),
                higher_is_better=MEASURES[name].higher_is_better,
                images=name in self.image_covariance,
                groups=self.groups,
            )
            for name in names
        ]

    def differences(self, name: str) -> list[Difference]:
        return compare_to_best(
            {method: by_seed for method, by_seed in self.column(name).items() if by_seed},
            higher_is_better=MEASURES[name].higher_is_better,
            image_covariance=self.image_covariance.get(name),
            freedom=self.image_freedom.get(
                name, inf if self.groups is None else max(self.groups - 1, 1)
            ),
        )

    def cells(self, names: Sequence[str] = HEADLINE) -> tuple[list[str], list[list[str]]]:
        shown = [name for name in names if any(self.column(name).values())]
        columns = {name: self.intervals(name) for name in shown}
        header = ["method", *(f"{n} {'↑' if MEASURES[n].higher_is_better else '↓'}" for n in shown)]
        rows = [
            [
                method,
                *(show_figure(columns[name][method], MEASURES[name].percent) for name in shown),
            ]
            for method in self.figures
        ]
        return header, rows

    def markdown(self) -> str:
        settings = [
            f"- {method}: {', '.join(f'{key} {value}' for key, value in values.items())}"
            for method, values in self.settings.items()
        ]
        verdicts = [f"- {sentence}" for sentence in (*self.choices, *self.verdicts())]
        return "\n".join(
            [*table_lines(*self.cells()), "", *verdicts, "", "Trained with:", "", *settings, ""]
        )

    def save(self, folder: Path) -> None:
        plain = json.dumps(_without_infinity(asdict(self)), indent=1, allow_nan=False)
        for name, text in (("comparison.json", plain), ("comparison.md", self.markdown())):
            write_text(folder / name, text)

    @staticmethod
    def load(folder: Path) -> "Comparison":
        path = folder / "comparison.json"
        try:
            stated = StatedComparison.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; run `labelwise compare` first") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise DataError(
                f"{path} is damaged, or of another version: {first_fault(error)}; run the same "
                "`labelwise compare` again, finished runs are not repeated"
            ) from None
        figures = {
            method: {
                seed: {name: inf if v == INFINITE else float(v) for name, v in row.items()}
                for seed, row in by_seed.items()
            }
            for method, by_seed in stated.figures.items()
        }
        return Comparison(**{**dict(stated), "figures": figures})


class StatedComparison(BaseModel):
    """What ``comparison.json`` says: infinity is a word there."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    figures: dict[str, dict[int, dict[str, Number | Literal["infinite"]]]]
    settings: dict[str, dict[str, Any]]
    image_covariance: dict[str, dict[str, dict[str, Number]]]
    choices: tuple[SweepChoice, ...] = ()
    groups: int | None = Field(default=None, ge=1)
    image_freedom: dict[str, Annotated[Number, Field(ge=1)]] = {}

    @model_validator(mode="after")
    def _of_one_shape(self) -> "StatedComparison":
        if not self.figures or not all(self.figures.values()):
            raise ValueError("every method must have figures of a seed")
        for name, matrix in self.image_covariance.items():
            by_method = self.figures.items()
            measured = {m for m, seeds in by_method if any(name in row for row in seeds.values())}
            known = matrix.keys()
            if not measured <= known or any(known - row.keys() for row in matrix.values()):
                raise ValueError(f"image_covariance of {name!r} must have every method twice")
        return self


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def table_page(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    below: str = "",
) -> str:
    """Return a table with its title, a sentence and notes as Markdown."""
    parts = [f"### {title}", "\n".join(table_lines(header, rows)), below]
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def show_figure(value: SeedMean, percent: bool) -> str:
    """Return a mean with half its interval: '81.7 ± 0.4', or only the mean of one run."""
    if not value.n:
        return "–"
    if isinf(value.mean):
        return "∞"
    scale = 100 if percent else 1
    size = abs(scale * value.mean)
    digits = 4 if size < 1 and not percent else 2 if size < 1000 else 0
    mean = f"{scale * value.mean:.{digits}f}"
    half = scale * value.half_width
    return f"{mean} ± {half:.{digits}f}" if isfinite(half) else mean


def _without_infinity(value: Any) -> Any:
    """Return plain data as JSON can hold it: infinity as a word, since null would be undefined."""
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    return INFINITE if isinstance(value, float) and isinf(value) else value

"""Comparison: the figures of all methods and seeds, as a table and in plain words.

Intervals over seeds, paired differences, and what they allow us to say.

    interval    mean ± t(n-1, 97.5 %) s / sqrt(n), from three seeds on
    difference  d = mean of a_i - b_i, seed by seed: runs of one seed share data and order
                var d = s_d^2 / n + sum over test images m of (U_am - U_bm)^2
    verdict     all pairs of methods sorted by p, the j-th held against 5 % / t_j
    redrawn     every seed deals all images again: 1 / n becomes 1 / n + test / training images, in
                both variances, and no term of test images is added (Nadeau and Bengio 2003)

The best method is found on the data that then judges it, so all m (m - 1) / 2 pairs are tested. t_j
is the largest number of pairs that can be equal when j - 1 are not (Shaffer 1986: equal methods
form groups, and a group of g has g (g - 1) / 2 pairs). The chance of any false claim in a table is
then at most 5 %.

U_am is how much image m moves the mean figure of a (the infinitesimal jackknife); of images in
groups, what all images of group m move. Degrees of freedom are Satterthwaite's: the images' are
taken as many, the groups' are those of :func:`labelwise.base.groups.freedom_of`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from math import inf, isfinite, isinf, isnan, nan, sqrt
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labelwise.base.files import together, write_text
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.special import stdtr, stdtrit
from labelwise.errors import DataError
from labelwise.evaluation.evaluation import Number
from labelwise.papers.measures import MEASURES

Covariance = Mapping[str, Mapping[str, float]]
ENOUGH = 3  # runs that an interval over seeds needs


@dataclass(frozen=True)
class SeedMean:
    """A mean over n runs with its 95 % interval; infinite with fewer than ``ENOUGH`` runs."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """``first - second`` over shared seeds: its interval, p value, and what all pairs allow."""

    first: str
    second: str
    over_seeds: SeedMean
    p_value: float
    distinguishable: bool = False


def seed_mean(values: Sequence[float], redrawn: float = 0.0) -> SeedMean:
    """Return the mean of the defined values with its 95 % interval over runs.

    ``redrawn`` is test / training images where every run has its own deal of all images.
    """
    kept = np.array([value for value in values if not isnan(value)])
    if not len(kept):
        return SeedMean(nan, nan, nan, 0)
    mean = float(kept.mean())
    if len(kept) < ENOUGH or isinf(mean):
        return SeedMean(mean, -inf, inf, len(kept))
    spread = float(kept.std(ddof=1)) * sqrt(1 / len(kept) + redrawn)
    half = float(stdtrit(len(kept) - 1, 0.975)) * spread
    return SeedMean(mean, mean - half, mean + half, len(kept))


def over_images(seeds: SeedMean, by_images: float, freedom: float = inf) -> SeedMean:
    """Return the interval over seeds and test images, of the variance that these give the mean."""
    if seeds.n < ENOUGH or isinf(seeds.mean) or isnan(seeds.mean):
        return seeds
    by_seeds = (seeds.half_width / float(stdtrit(seeds.n - 1, 0.975))) ** 2
    if by_seeds + by_images == 0:  # the same on each seed: that says nothing of another draw
        return replace(seeds, low=-inf, high=inf)
    parts = by_seeds**2 / (seeds.n - 1) + by_images**2 / freedom
    joint = (by_seeds + by_images) ** 2 / parts if parts else inf
    half = float(stdtrit(min(joint, 1e9), 0.975)) * sqrt(by_seeds + by_images)
    return replace(seeds, low=seeds.mean - half, high=seeds.mean + half)


def paired_difference(
    first: str,
    second: str,
    values: Mapping[str, Mapping[int, float]],
    image_covariance: Covariance | None = None,
    freedom: float = inf,
    redrawn: float = 0.0,
) -> Difference:
    """Return ``values[first] - values[second]`` over shared seeds, with the variance of images."""
    seeds = sorted(set(values[first]) & set(values[second]))
    gaps = [values[first][seed] - values[second][seed] for seed in seeds]
    over_seeds = seed_mean(gaps, redrawn)
    if over_seeds.n < 2:
        return Difference(first, second, over_seeds, 1.0)
    by_seeds = float(np.var(gaps, ddof=1)) * (1 / over_seeds.n + redrawn)
    by_images = 0.0
    if image_covariance is not None:
        first_row, other = image_covariance[first], image_covariance[second]
        by_images = max(first_row[first] + other[second] - 2 * first_row[second], 0.0)
    spread = sqrt(by_seeds + by_images)
    if spread == 0:
        return Difference(first, second, over_seeds, 1.0 if over_seeds.mean == 0 else 0.0)
    parts = by_seeds**2 / (over_seeds.n - 1) + by_images**2 / freedom
    joint = (by_seeds + by_images) ** 2 / parts if parts else inf
    p_value = float(2 * stdtr(joint, -abs(over_seeds.mean) / spread))
    return Difference(first, second, over_seeds, p_value)


def compare_to_best(
    values: Mapping[str, Mapping[int, float]],
    *,
    higher_is_better: bool,
    image_covariance: Covariance | None = None,
    freedom: float = inf,
    redrawn: float = 0.0,
) -> list[Difference]:
    """Return the difference of every method to the best one, decided among all pairs."""
    means = {name: seed_mean(list(by_seed.values())).mean for name, by_seed in values.items()}
    defined = {name: mean for name, mean in means.items() if isfinite(mean)}
    if len(defined) < 2:
        return []
    best = (max if higher_is_better else min)(defined, key=defined.__getitem__)
    others = [name for name in defined if name != best]
    pairs = [(name, best) for name in others] + list(combinations(others, 2))
    gaps = [paired_difference(*pair, values, image_covariance, freedom, redrawn) for pair in pairs]
    told_apart = zip(gaps, shaffer([gap.p_value for gap in gaps], len(defined)), strict=True)
    decided = [replace(gap, distinguishable=x) for gap, x in told_apart if gap.second == best]
    return sorted(decided, key=lambda gap: gap.p_value)


def shaffer(p_values: Sequence[float], methods: int) -> list[bool]:
    """Return which of all pairs of the methods are told apart, at most 5 % for any error."""
    possible = np.array(sorted(_equal_pairs(methods)))
    order, told_apart = np.argsort(p_values, kind="stable"), [False] * len(p_values)
    for rejected, pair in enumerate(order.tolist()):
        left = possible[possible <= len(p_values) - rejected].max()
        if p_values[pair] > 0.05 / left:
            break
        told_apart[pair] = True
    return told_apart


@lru_cache
def _equal_pairs(methods: int) -> frozenset[int]:
    """Return how many pairs can be equal: a group of g equal methods, and those of the rest."""
    if methods < 2:
        return frozenset({0})
    return frozenset(
        group * (group - 1) // 2 + rest
        for group in range(1, methods + 1)
        for rest in _equal_pairs(methods - group)
    )


def verdict(
    metric: str,
    differences: Sequence[Difference],
    *,
    higher_is_better: bool,
    images: bool = False,
    groups: int | None = None,
    redrawn: float = 0.0,
) -> str:
    """Say which methods differ significantly from the best one, and which do not."""
    if not differences:
        return f"{metric}: fewer than two methods have a value, so there is nothing to compare."
    best = differences[0].second
    runs = min(gap.over_seeds.n for gap in differences)
    if runs < 2:
        return f"{metric}: {best} is ahead, but one seed cannot tell luck from skill."
    behind = [gap.first for gap in differences if gap.distinguishable]
    level = [gap.first for gap in differences if not gap.distinguishable]
    word = "higher" if higher_is_better else "lower"
    parts = []
    if behind:
        drawn = "test images" if groups is None else f"{groups:,} groups of test images"
        chance = f"{runs} seeds and of the {drawn}" if images else f"{runs} seeds"
        if redrawn:
            chance = f"{runs} deals of all images into training, validation and test"
        parts.append(f"{best} is {word} than {listed(behind)} beyond the spread of {chance}")
    if level:
        parts.append(f"{best} does not differ significantly from {listed(level)}")
    return f"{metric}: {'; '.join(parts)}."


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


COSTS = ("seconds", "host MB", "GPU MB")
HEADLINE = (
    *("mAP@class", "mAP@sample", "macro F1", "ECE before", "ACE before", "MCE before", "ECE after"),
    *("log loss before", "log loss after", "Brier after", "zero-label AUROC", "zero-label MMC"),
    *("promised", "retrieval n=3", *COSTS),
)
INFINITE = "infinite"
SOLVED, STEPPED = "solved to its optimum, L2 weight chosen on held-out rows", "gradient steps"
CORRECTION = (
    "Significant: all pairs of methods are corrected together by Shaffer's rule, at most 5 % for "
    "any false claim about a measure."
)
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
        said = f"{self.metric} on validation chooses no {self.option}"
        if self.value is not None:
            said = f"{self.option}={self.value} has the best {self.metric} on validation"
        return f"{self.method}: {said} ({scores})"


@dataclass(frozen=True)
class Comparison:
    """``figures[method][seed][column]``, and the settings each method was trained with.

    An undefined figure is left out, an infinite one is ``inf``. ``image_covariance[column]`` is the
    covariance of the methods' mean figures over the choice of test images, for judged columns;
    over the choice of ``groups`` of them, where they come in groups, with the degrees of freedom
    ``image_freedom[column]``. ``choices`` are the best values of a sweep. ``redrawn`` is test /
    training images where every seed deals all images again, and 0 where all seeds share them.
    """

    figures: Mapping[str, Mapping[int, Mapping[str, float]]]
    settings: Mapping[str, Mapping[str, object]]
    image_covariance: Mapping[str, Covariance] = field(default_factory=dict)
    choices: tuple[SweepChoice, ...] = ()
    groups: int | None = None
    image_freedom: Mapping[str, float] = field(default_factory=dict)
    redrawn: float = 0.0

    def column(self, name: str) -> dict[str, dict[int, float]]:
        """Return ``{method: {seed: value}}``; a method undefined on one seed has no values."""
        return {
            method: {seed: row[name] for seed, row in by_seed.items()}
            if all(name in row for row in by_seed.values())
            else {}
            for method, by_seed in self.figures.items()
        }

    def intervals(self, name: str) -> dict[str, SeedMean]:
        """Return each mean with its interval over seeds and, of a judged column, test images.

        Seeds that share all images say nothing of other images, so another column has no interval
        then, unless it is what a run costs. A judged one has none where nothing varies.
        """
        columns, drawn = self.column(name).items(), self.image_covariance.get(name, {})
        freedom = self.image_freedom.get(name, inf)
        if not (drawn or self.redrawn or name in COSTS):
            means = {method: seed_mean(list(by_seed.values())) for method, by_seed in columns}
            return {method: replace(mean, low=-inf, high=inf) for method, mean in means.items()}
        return {
            method: over_images(
                seed_mean(list(by_seed.values()), self.redrawn),
                drawn.get(method, {}).get(method, 0.0),
                freedom,
            )
            for method, by_seed in columns
        }

    @property
    def solved(self) -> list[str]:
        """The methods that were solved to their optimum."""
        return [name for name, one in self.settings.items() if one.get("trained") == SOLVED]

    def unequal(self) -> str:
        """Return who was solved to an optimum where others were not, nothing if all are alike."""
        others = [name for name in self.settings if name not in self.solved]
        if not self.solved or not others:
            return ""
        return (
            f"Not all methods were trained alike: {listed(self.solved)} {SOLVED}; {listed(others)} "
            "took gradient steps. A difference between the two kinds may come from that."
        )

    def verdicts(self, names: Sequence[str] = JUDGED) -> list[str]:
        """Return what training was unequal, what came out of each measure, and the correction."""
        sentences = [
            verdict(
                name,
                self.differences(name),
                higher_is_better=MEASURES[name].higher_is_better,
                images=name in self.image_covariance,
                groups=self.groups,
                redrawn=self.redrawn,
            )
            for name in names
        ]
        return [*filter(None, [self.unequal()]), *sentences, CORRECTION]

    def differences(self, name: str) -> list[Difference]:
        freedom = inf if self.groups is None else max(self.groups - 1, 1)
        return compare_to_best(
            {method: by_seed for method, by_seed in self.column(name).items() if by_seed},
            higher_is_better=MEASURES[name].higher_is_better,
            image_covariance=self.image_covariance.get(name),
            freedom=self.image_freedom.get(name, freedom),
            redrawn=self.redrawn,
        )

    def cells(self, names: Sequence[str] = HEADLINE) -> tuple[list[str], list[list[str]]]:
        shown = [name for name in names if any(self.column(name).values())]
        columns = {name: self.intervals(name) for name in shown}
        header = ["method", *(f"{n} {'↑' if MEASURES[n].higher_is_better else '↓'}" for n in shown)]
        rows = []
        for method in self.figures:
            figures = (show_figure(columns[name][method], MEASURES[name].percent) for name in shown)
            rows.append([method, *figures])
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
        with together():
            write_text(folder / "comparison.json", plain)
            write_text(folder / "comparison.md", self.markdown())

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
    settings: dict[str, dict[str, object]]
    image_covariance: dict[str, dict[str, dict[str, Number]]]
    choices: tuple[SweepChoice, ...] = ()
    groups: int | None = Field(default=None, ge=1)
    image_freedom: dict[str, Annotated[Number, Field(ge=1)]] = {}
    redrawn: float = Field(default=0.0, ge=0)

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
    size, half = abs(scale * value.mean), scale * value.half_width
    digits = 4 if size < 1 and not percent else 2 if size < 1000 else 0
    mean = f"{scale * value.mean:.{digits}f}"
    return f"{mean} ± {half:.{digits}f}" if isfinite(half) else mean


def _without_infinity(value: object) -> object:
    """Return plain data as JSON can hold it: infinity as a word, since null would be undefined."""
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    return INFINITE if isinstance(value, float) and isinf(value) else value

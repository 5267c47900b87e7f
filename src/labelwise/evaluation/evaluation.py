"""Evaluation: everything measured on one table of predictions, as plain data.

Numbers are Python floats, ``None`` where undefined (never zero, never NaN); lists are tuples.
The value goes to JSON and back unchanged, so that a report can be drawn again at any time.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from labelwise.base.files import write_text
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.text import counted
from labelwise.errors import DataError

Number = Annotated[float, Field(ge=-1e15, le=1e15)]  # what can be drawn and written out
Count = Annotated[int, Field(ge=0, le=2**62)]
Share = Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)]  # up to rounding
Level = Annotated[int, Field(ge=1, le=10**6)]
Shares = tuple[Share | None, ...]
Counts = tuple[Count, ...]
LOG_LOSS = "Log loss"  # the one headline figure that can be infinite


@dataclass(frozen=True)
class Figure:
    """One number with its 95 % interval, the direction that is better, and how it was computed."""

    name: str
    value: Number | None
    how: str
    low: Number | None = None
    high: Number | None = None
    better: str = "higher"
    percent: bool = True

    @property
    def why_no_interval(self) -> str:
        """Return why there is no interval, "" where there is one or nothing was tried."""
        _, begin, reason = self.how.partition("No interval: ")
        return begin + reason


@dataclass(frozen=True)
class DataFacts:
    """What was evaluated; ``groups`` are those the rows come in, None where each is alone."""

    rows: Count
    labels: Count
    known: Count
    unknown: Count
    present: Count
    zero_label_rows: Count
    split: str | None
    scores: str
    groups: int | None = None


@dataclass(frozen=True)
class RankingFigures:
    """Average precisions, those of mAP over labels within ``map_class_bound``."""

    map_class: Share | None
    map_sample: Share | None
    undefined_labels: tuple[str, ...]
    undefined_rows: Count
    how: str
    map_class_bound: Number = 0.0


@dataclass(frozen=True)
class Curve:
    """A reliability curve: per bin its edges, mean probability, observed share and count."""

    edges: tuple[Share, ...]
    confidence: Shares
    frequency: Shares
    counts: Counts
    ece: Share | None
    ace: Share | None
    mce: Share | None
    entries: str

    def __post_init__(self) -> None:
        bins = len(self.counts)
        if not len(self.edges) - 1 == len(self.confidence) == len(self.frequency) == bins:
            raise ValueError("a curve must have one edge more than bins, and a value for each bin")
        pairs = zip(self.frequency, self.counts, strict=True)
        if any(share is not None and not count for share, count in pairs):
            raise ValueError("a bin without entries has no share")


@dataclass(frozen=True)
class Calibration:
    """How far one set of probabilities is from the truth.

    ``brier = reliability - resolution + uncertainty + within_bins`` over the pooled bins.
    ``per_label`` holds the curves of the worst labels only; every label's ECE is in its row.
    ``infinite`` counts certain answers that were wrong; with any, the log loss is undefined.
    """

    stage: str
    pooled: Curve
    top_k: Curve
    k: Level
    label_mean_ece: Share | None
    log_loss: Number | None
    brier: Number | None
    reliability: Number | None
    resolution: Number | None
    uncertainty: Number | None
    within_bins: Number | None
    per_label: dict[str, Curve]
    how: str
    infinite: Count = 0
    smooth_ece: Share | None = None


@dataclass(frozen=True)
class Sets:
    """The label sets of a rule against the true ones; histogram cell n counts rows of n labels.

    The true sizes are of the rows whose labels are all known. ``stated`` is how often whole sets
    are right against their probability, the product over all labels.
    """

    rule: str
    macro_f1: Share | None
    micro_f1: Share | None
    sample_f1: Share | None
    cf1: Share | None
    hamming: Share | None
    subset_accuracy: Share | None
    mean_size: Number
    mean_true_size: Number | None
    sizes: Counts
    true_sizes: Counts
    how: str
    stated: Curve | None = None

    @property
    def true_size(self) -> float | None:
        """How many labels an image has; None unless all labels of every image are known."""
        return self.mean_true_size if sum(self.true_sizes) == sum(self.sizes) else None

    def size_note(self) -> tuple[str, ...]:
        """Return a sentence if the sets are far larger or smaller than the true ones, else none."""
        true = self.true_size
        if true is None or not far_apart(self.mean_size, true):
            return ()
        more = "more" if self.mean_size > true else "fewer"
        return (
            f"The rule gives {self.mean_size:.2f} labels per image and the truth has "
            f"{true:.2f}: far {more}; `--rule auto` chooses one by F over images.",
        )


def far_apart(chosen: float, true: float) -> bool:
    """Return whether an image has twice or half the labels it should, by half a label or more."""
    return abs(chosen - true) >= 0.5 and not true / 2 < chosen < 2 * true


@dataclass(frozen=True)
class StageScores:
    """MMC of one stage, and the proper scores on images with labels (IN) and without (OUT)."""

    stage: str
    mmc: Share | None
    log_loss_in: Number | None
    log_loss_out: Number | None
    brier_in: Number | None
    brier_out: Number | None


@dataclass(frozen=True)
class ZeroLabel:
    """Images reviewed and found to carry no label (OUT) against the others (IN).

    ``share`` is the part of OUT rows; the score of "nothing here" is the product of 1 - p.
    Histogram cells split [0, 1] evenly by the largest probability of an image. ``by_stage`` has
    a row for each stage, and one for answering every image with the labels' shares.
    """

    rows: Count
    share: Share
    false_alarms: Share | None
    auroc_nothing: Share | None
    auroc_max: Share | None
    fpr95: Share | None
    mmc: Share | None
    edges: tuple[Share, ...]
    inside: Counts
    outside: Counts
    how: str
    by_stage: tuple[StageScores, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.edges) - 1 == len(self.inside) == len(self.outside):
            raise ValueError("a histogram must have one edge more than cells")


@dataclass(frozen=True)
class RetrievalPoint:
    """Mean average precision over the queries of one length, with its standard error."""

    length: Level
    map: Share | None
    error: Number | None
    queries: Count
    skipped: Count
    sampled: bool


@dataclass(frozen=True)
class ShotGroup:
    """Labels grouped by how often they occur in training, with their mean figures."""

    name: str
    labels: Count
    defined: Count
    mean_ap: Share | None
    mean_recall: Share | None


@dataclass(frozen=True)
class LabelRow:
    """One label; its average precision is within ``ap_bound``, 0 where it is exact."""

    name: str
    known: Count
    present: Count
    ap: Share | None
    ece_before: Share | None = None
    ece_after: Share | None = None
    mean_prob: Share | None = None
    threshold: Number | None = None
    precision: Share | None = None
    recall: Share | None = None
    f1: Share | None = None
    ap_bound: Number = 0.0


@dataclass(frozen=True)
class LevelFigures:
    """The labels at one depth of a taxonomy, 1 at the top; means are over labels that have one."""

    level: Level
    labels: Count
    present: Count
    mean_ap: Share | None
    log_loss: Number | None
    ece: Share | None
    mean_f1: Share | None


@dataclass(frozen=True)
class ExclusiveRow:
    """Labels that exclude each other; ``clashes`` break the rule in labels, ``broken`` in sets."""

    labels: tuple[str, ...]
    needs_one: bool
    known: Count
    clashes: Count
    right: Count | None = None
    accuracy: Share | None = None
    low: Share | None = None
    high: Share | None = None
    broken: Count | None = None


@dataclass(frozen=True)
class LabelCurves:
    """Curves of one label: of all photos where ``part`` is "", else of one subgroup.

    Points of ``roc`` are (false positive rate, sensitivity), of ``precision_recall`` (recall,
    precision), from the highest score down.
    """

    label: str
    part: str
    known: Count
    present: Count
    auroc: Share | None
    auroc_low: Share | None
    auroc_high: Share | None
    ap: Share | None
    roc: tuple[tuple[Share, Share], ...]
    precision_recall: tuple[tuple[Share, Share], ...]
    reliability: Curve | None


@dataclass(frozen=True)
class SubgroupFigure:
    """A figure of one subgroup; ``p_value`` that it equals the others', corrected for all tests."""

    name: str
    value: Number | None
    low: Number | None
    high: Number | None
    p_value: Share | None

    @property
    def differs(self) -> bool:
        """Whether it can be told from the figure of the other photos, at 5 %."""
        return self.p_value is not None and self.p_value <= 0.05


@dataclass(frozen=True)
class SubgroupRow:
    """One subgroup of the photos: the column and value that make it, its size, its figures."""

    by: str
    name: str
    photos: Count
    groups: Count
    figures: tuple[SubgroupFigure, ...]


@dataclass(frozen=True)
class Evaluation:
    """All figures of one table of predictions; a part that does not apply is ``None`` or empty."""

    # What is read is taken as it stands or refused: "7" is not 7, and a misspelt entry is an error.
    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    data: DataFacts
    headline: tuple[Figure, ...]
    ranking: RankingFigures
    rows: tuple[LabelRow, ...]
    link: str | None = None
    calibrator: str | None = None
    before: Calibration | None = None
    after: Calibration | None = None
    sets: Sets | None = None
    zero_label: ZeroLabel | None = None
    retrieval: tuple[RetrievalPoint, ...] = ()
    retrieval_how: str = ""
    shots: tuple[ShotGroup, ...] = ()
    levels: tuple[LevelFigures, ...] = ()
    exclusive: tuple[ExclusiveRow, ...] = ()
    curves: tuple[LabelCurves, ...] = ()
    subgroups: tuple[SubgroupRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def final(self) -> Calibration | None:
        """The calibration of the probabilities in use: after a calibrator, if there was one."""
        return self.after or self.before

    def is_infinite(self, figure: Figure) -> bool:
        """Whether a headline figure without a value is infinite, and not undefined."""
        certain_and_wrong = self.final is not None and self.final.infinite > 0
        return figure.name == LOG_LOSS and figure.value is None and certain_and_wrong

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False, ensure_ascii=False)

    @staticmethod
    def from_json(text: str | bytes) -> "Evaluation":
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            raise DataError(f"not an evaluation: {first_fault(error)}") from None

    def save(self, path: Path) -> None:
        write_text(path, self.to_json())

    @staticmethod
    def load(path: Path) -> "Evaluation":
        try:
            return Evaluation.from_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


@cache
def _adapter() -> TypeAdapter[Evaluation]:
    return TypeAdapter(Evaluation)


# What an evaluation means for someone who wants to use the model: one sentence, one word, a hint.
#
# The word compares with the best answer that ignores the photo: the same labels for every photo,
# chosen by how frequent they are. Skill is the share of the way from that baseline to perfection.

Word = Literal["useless", "weak", "usable", "good", "excellent"]
WORDS: dict[float, Word] = {0.85: "excellent", 0.65: "good", 0.4: "usable", 0.15: "weak"}
TRUSTED, ROUGH = 0.02, 0.05  # mean distance of probabilities from the truth
FEW = 50  # photos below which a test says little, positives below which a label needs more photos


@dataclass(frozen=True)
class Verdict:
    """How good a model is, in words; ``skill`` is 0 for the baseline and 1 for perfection."""

    word: Word
    skill: float
    tags: str
    trust: str
    hint: str

    def __str__(self) -> str:
        return f"{self.tags} {self.trust}\nVerdict: {self.word}. {self.hint}"


def verdict(evaluation: Evaluation) -> Verdict:
    """Return how good a model is, compared with always answering by frequency."""
    rows = [row for row in evaluation.rows if row.known]
    skills = []
    shares = [row.present / row.known for row in rows if row.ap is not None]
    chance = sum(shares) / len(shares) if shares else 0.0  # mean AP of a ranking at random
    mean_ap = evaluation.ranking.map_class
    if mean_ap is not None and chance < 1:
        skills.append((mean_ap - chance) / (1 - chance))
    how = "" if mean_ap is None else f" (mAP {100 * mean_ap:.0f} %)"
    tags = f"It ranks labels and gives no tags{how}."
    if rates := _precision_recall(evaluation, rows):
        precision, recall = rates
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        # Pooled F1 of the best constant answer: the most frequent labels, for every photo.
        total, right, given, baseline = sum(row.present for row in rows), 0, 0, 0.0
        for row in sorted(rows, key=lambda row: row.present / row.known, reverse=True):
            right, given = right + row.present, given + row.known
            baseline = max(baseline, 2 * right / (given + total) if given + total else 0.0)
        skills.append((f1 - baseline) / (1 - baseline) if baseline < 1 else 0.0)
        found = f"{round(100 * precision)} are right; it finds {round(100 * recall)} of 100."
        tags = f"Of 100 tags it gives, {found}"
        empty = evaluation.zero_label
        if empty is not None and empty.false_alarms is not None and empty.false_alarms >= 0.5:
            tags += f" It tags {round(100 * empty.false_alarms)} of 100 photos that show nothing."
    error = None if evaluation.final is None else evaluation.final.pooled.ece
    trust = "It has no probabilities yet."
    if error is not None:
        how = "can be trusted" if error <= TRUSTED else "are rough" if error <= ROUGH else "mislead"
        trust = f"Its probabilities {how}: they are off by {100 * error:.1f} points on average."
    skill = sum(skills) / len(skills) if skills else 0.0
    word: Word = next((word for least, word in WORDS.items() if skill >= least), "useless")
    return Verdict(word, skill, tags, trust, _hint(rows, word, error))


def _precision_recall(evaluation: Evaluation, rows: list[LabelRow]) -> tuple[float, float] | None:
    """Precision and recall pooled over all labels; None for a model that gives no tags."""
    sets, present = evaluation.sets, sum(row.present for row in rows)
    if sets is None or sets.micro_f1 is None or not present:
        return None
    right = sum((row.recall or 0.0) * row.present for row in rows)
    if not right or not sets.micro_f1:
        return 0.0, 0.0
    given = 2 * right / sets.micro_f1 - present  # F1 = 2 right / (given + present)
    return min(1.0, right / given), right / present


def _hint(rows: list[LabelRow], word: Word, error: float | None) -> str:
    """Return what would help most: calibration, photos of a rare label, effort, or label errors."""
    ranked = sorted((row for row in rows if row.ap is not None), key=lambda row: row.ap or 0.0)
    tested = max((row.known for row in rows), default=0)
    if tested < FEW:
        return f"Only {counted(tested, 'photo')} tested it: more would help most."
    if word == "excellent" and (error is None or error <= TRUSTED):
        return "Use it; audit its tags now and then."
    if error is not None and error > ROUGH:
        return "Calibrating it on more labelled photos would help most."
    if ranked and ranked[0].present < FEW and (ranked[0].ap or 0.0) < 0.8:
        return f"More photos of `{ranked[0].name}` would help most: {ranked[0].present} are here."
    if word in ("useless", "weak", "usable"):
        return "Training with `--effort good`, or on more labelled photos, would help most."
    return "Looking for label errors (`labelwise data review`) would help most."

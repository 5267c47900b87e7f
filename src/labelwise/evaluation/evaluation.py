"""Evaluation: everything measured on one table of predictions, as plain data.

Numbers are Python floats, ``None`` where undefined (never zero, never NaN); lists are tuples.
The value goes to JSON and back unchanged, so that a report can be drawn again at any time.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from labelwise.base.files import MOST_FACTS, read_regular, write_text
from labelwise.base.pydantic_errors import first_fault
from labelwise.decide.rules import far_apart
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
            f"{true:.2f}: far {more}; `--rule average-{max(true, 0.01):.2f}` gives as many.",
        )


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
class Trust:
    """Whether probabilities hold: p-values of the test over all labels and by label, and sizes.

    ``size`` is how far they are off on average, between ``low`` and ``high``; the test would show
    errors above ``shown``. A ``slope`` below 1 is too sure; ``came`` is present / expected labels.
    """

    p_value: Share
    p_by_label: Share
    wrong: bool
    size: Share
    low: Share
    high: Share
    shown: Share
    slope: Number
    came: Number


@dataclass(frozen=True)
class Cause:
    """The one thing that would help most: its kind, the label it is about, a share or count."""

    kind: str
    about: str = ""
    amount: Number = 0.0


@dataclass(frozen=True)
class Judgement:
    """What the test photos, or groups of them, can tell; ``low`` to ``high`` hold the skill.

    ``untested`` labels have no positive. ``tags`` were given, None for a model that gives none, of
    which so many are ``right``. ``copies`` photos are copies of training photos: without them the
    skill is from ``low_without`` to ``high_without``.
    """

    low: Number | None
    high: Number | None
    photos: Count
    grouped: bool
    untested: tuple[str, ...]
    tags: Count | None
    right: Count
    present: Count
    trust: Trust | None = None
    cause: Cause | None = None
    copies: Count = 0
    low_without: Number | None = None
    high_without: Number | None = None


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
    judgement: Judgement | None = None

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
            return Evaluation.from_json(read_regular(path, MOST_FACTS)[0])
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


@cache
def _adapter() -> TypeAdapter[Evaluation]:
    return TypeAdapter(Evaluation)

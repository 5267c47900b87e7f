"""Evaluation: everything measured on one table of predictions, as plain data.

Numbers are Python floats, ``None`` where undefined (never zero, never NaN); lists are tuples.
The value goes to JSON and back unchanged, so that a report can be drawn again at any time.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from labelwise.errors import DataError
from labelwise.system.files import replacing

__all__ = [
    "Calibration",
    "Curve",
    "DataFacts",
    "Evaluation",
    "Figure",
    "LabelRow",
    "LevelFigures",
    "RankingFigures",
    "RetrievalPoint",
    "Sets",
    "ShotGroup",
    "StageScores",
    "ZeroLabel",
    "far_apart",
]

Floats = tuple[float | None, ...]
Counts = tuple[int, ...]
LOG_LOSS = "Log loss"  # the one headline figure that can be infinite


@dataclass(frozen=True)
class Figure:
    """One number with its 95 % interval, the direction that is better, and how it was computed."""

    name: str
    value: float | None
    how: str
    low: float | None = None
    high: float | None = None
    better: str = "higher"
    percent: bool = True


@dataclass(frozen=True)
class DataFacts:
    """What was evaluated: rows, labels, entries known and unknown, rows without any label."""

    rows: int
    labels: int
    known: int
    unknown: int
    present: int
    zero_label_rows: int
    split: str | None
    scores: str


@dataclass(frozen=True)
class RankingFigures:
    """Average precisions of the scores; labels and rows without a positive are left out.

    ``map_class_bound`` is how far ``map_class`` may be off where scores were counted in cells.
    """

    map_class: float | None
    map_sample: float | None
    undefined_labels: tuple[str, ...]
    undefined_rows: int
    how: str
    map_class_bound: float = 0.0


@dataclass(frozen=True)
class Curve:
    """A reliability curve: per bin its edges, mean probability, observed share and count."""

    edges: tuple[float, ...]
    confidence: Floats
    frequency: Floats
    counts: Counts
    ece: float | None
    ace: float | None
    mce: float | None
    entries: str


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
    k: int
    label_mean_ece: float | None
    log_loss: float | None
    brier: float | None
    reliability: float | None
    resolution: float | None
    uncertainty: float | None
    within_bins: float | None
    per_label: dict[str, Curve]
    how: str
    infinite: int = 0


@dataclass(frozen=True)
class Sets:
    """The label sets of a rule against the true ones; histogram cell n counts rows of n labels."""

    rule: str
    macro_f1: float | None
    micro_f1: float | None
    sample_f1: float | None
    cf1: float | None
    hamming: float | None
    subset_accuracy: float | None
    mean_size: float
    mean_true_size: float
    sizes: Counts
    true_sizes: Counts
    how: str

    def size_note(self) -> tuple[str, ...]:
        """Return a sentence if the sets are far larger or smaller than the true ones, else none."""
        if not self.true_sizes or not far_apart(self.mean_size, self.mean_true_size):
            return ()
        more = "more" if self.mean_size > self.mean_true_size else "fewer"
        return (
            f"The rule gives {self.mean_size:.2f} labels per image and the truth has "
            f"{self.mean_true_size:.2f}: far {more}; `--rule auto` chooses one by F over images.",
        )


def far_apart(chosen: float, true: float) -> bool:
    """Return whether there are twice, or half, as many labels per image as there should be.

    Differences of less than half a label are not worth a word.
    """
    return abs(chosen - true) >= 0.5 and not true / 2 < chosen < 2 * true


@dataclass(frozen=True)
class StageScores:
    """MMC of one stage, and the proper scores on images with labels (IN) and without (OUT).

    Shrinking all probabilities lowers MMC and the scores OUT; the scores IN pay for it.
    """

    stage: str
    mmc: float | None
    log_loss_in: float | None
    log_loss_out: float | None
    brier_in: float | None
    brier_out: float | None


@dataclass(frozen=True)
class ZeroLabel:
    """Images reviewed and found to carry no label (OUT) against the others (IN).

    ``share`` is the part of OUT rows; the score of "nothing here" is the product of 1 - p.
    Histogram cells split [0, 1] evenly by the largest probability of an image. ``by_stage`` has
    a row for each stage, and one for answering every image with the labels' shares.
    """

    rows: int
    share: float
    false_alarms: float | None
    auroc_nothing: float | None
    auroc_max: float | None
    fpr95: float | None
    mmc: float | None
    edges: tuple[float, ...]
    inside: Counts
    outside: Counts
    how: str
    by_stage: tuple[StageScores, ...] = ()


@dataclass(frozen=True)
class RetrievalPoint:
    """Mean average precision over the queries of one length, with its standard error."""

    length: int
    map: float | None
    error: float | None
    queries: int
    skipped: int
    sampled: bool


@dataclass(frozen=True)
class ShotGroup:
    """Labels grouped by how often they occur in training, with their mean figures."""

    name: str
    labels: int
    defined: int
    mean_ap: float | None
    mean_recall: float | None


@dataclass(frozen=True)
class LabelRow:
    """One label: how often it is present, how well it is ranked, calibrated and decided.

    ``ap_bound`` is how far ``ap`` may be off where scores were counted in cells.
    """

    name: str
    known: int
    present: int
    ap: float | None
    ece_before: float | None = None
    ece_after: float | None = None
    mean_prob: float | None = None
    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    ap_bound: float = 0.0


@dataclass(frozen=True)
class LevelFigures:
    """The labels at one depth of a taxonomy, 1 at the top; means are over labels that have one."""

    level: int
    labels: int
    present: int
    mean_ap: float | None
    log_loss: float | None
    ece: float | None
    mean_f1: float | None


@dataclass(frozen=True)
class Evaluation:
    """All figures of one table of predictions; a part that does not apply is ``None`` or empty."""

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
    notes: tuple[str, ...] = field(default=())

    @property
    def final(self) -> Calibration | None:
        """The calibration of the probabilities in use: after a calibrator, if there was one."""
        return self.after or self.before

    def is_infinite(self, figure: Figure) -> bool:
        """Whether a headline figure without a value is infinite, and not undefined."""
        certain_and_wrong = self.final is not None and self.final.infinite > 0
        return figure.name == LOG_LOSS and figure.value is None and certain_and_wrong

    def to_json(self) -> str:
        """Return the evaluation as JSON."""
        return json.dumps(asdict(self), allow_nan=False, ensure_ascii=False)

    @staticmethod
    def from_json(text: str | bytes) -> "Evaluation":
        """Return the evaluation that :meth:`to_json` described."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise DataError(f"not an evaluation: {where}: {first['msg']}") from None

    def save(self, path: Path) -> None:
        """Write the JSON to ``path``; an interrupted write leaves the old file whole."""
        with replacing(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> "Evaluation":
        """Return the evaluation saved at ``path``."""
        try:
            return Evaluation.from_json(path.read_bytes())
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


@cache
def _adapter() -> TypeAdapter[Evaluation]:
    return TypeAdapter(Evaluation)

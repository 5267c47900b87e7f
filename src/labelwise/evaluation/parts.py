"""The decision part: label sets against the truth, and their sizes.

The rows of the labels, and the labels grouped by how often they occur in training.

The zero-label part: images known to carry none of the labels against those with some.

The retrieval part: mean average precision of queries against their length.

Every query costs a pass over the images, so each length has a budget of image-query pairs; where
there are more queries than it allows, a seeded sample is asked, with its standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Rule
from labelwise.evaluation.calibration import Known, Probabilities, defined
from labelwise.evaluation.evaluation import (
    LabelRow,
    LevelFigures,
    RetrievalPoint,
    Sets,
    ShotGroup,
    StageScores,
    ZeroLabel,
)
from labelwise.metrics import (
    Averaged,
    Confusion,
    Reliability,
    brier_score,
    by_shot,
    confusion,
    false_alarm_rate,
    false_positive_rate_at,
    log_loss_from_logs,
    max_confidence,
    nothing_here,
    reliability,
    separation_auroc,
    subset_accuracy,
    width_edges,
    zero_label_rows,
)
from labelwise.retrieval import retrieval_map
from labelwise.taxonomy import LabelTree


def label_thresholds(rule: Rule | None, labels: int) -> list[float | None]:
    """Return the threshold of every label, ``None`` where the rule has none."""
    values = None if rule is None else rule.thresholds(labels)
    return [None] * labels if values is None else list(values)


def sets_part(sets: NDArray[Any], known: Known, by_label: Confusion, words: str) -> Sets:
    """Return the figures of sets (N, K) bool; ``by_label`` holds their counts per label."""
    present, observed = known.present, known.observed
    sizes, true_sizes = sets.sum(1), present.sum(1)[known.rows_complete()]
    return sets_of(
        words,
        by_label,
        sample_f1=confusion(sets, present, observed, by="image").f_score().value,
        subset_accuracy=subset_accuracy(sets, present, observed).value,
        sizes=_histogram(sizes),
        true_sizes=_histogram(true_sizes),
        mean_size=float(sizes.mean()),
        mean_true_size=float(true_sizes.mean()) if len(true_sizes) else np.nan,
    )


def sets_of(
    words: str,
    by_label: Confusion,
    *,
    sample_f1: float,
    subset_accuracy: float,
    sizes: tuple[int, ...],
    true_sizes: tuple[int, ...],
    mean_size: float,
    mean_true_size: float,
) -> Sets:
    """Return the figures of sets from what was counted."""
    macro = by_label.f_score()
    return Sets(
        rule=words,
        macro_f1=defined(macro.value),
        micro_f1=defined(by_label.micro().f_score().value),
        sample_f1=defined(sample_f1),
        cf1=defined(by_label.cf1()),
        hamming=defined(by_label.error()),
        subset_accuracy=defined(subset_accuracy),
        mean_size=mean_size,
        mean_true_size=defined(mean_true_size),
        sizes=sizes,
        true_sizes=true_sizes,
        how=(
            "Known entries only. Macro F1 is the mean over "
            f"{macro.num_defined:,} of {len(macro.items):,} labels; a label neither present nor "
            "chosen is left out, likewise an image. Micro F1 (OF1) pools all entries; CF1 is the "
            "harmonic mean of mean precision and mean recall over labels. Sizes count all labels "
            f"chosen; true sizes come from the {sum(true_sizes):,} images whose labels are "
            "all known."
        ),
    )


def _histogram(sizes: NDArray[Any]) -> tuple[int, ...]:
    return tuple(np.bincount(sizes, minlength=1).tolist())


SHOTS = {"few": "few (under 20)", "medium": "medium (20 to 100)", "many": "many (over 100)"}


@dataclass(frozen=True)
class LabelMeasures:
    """What was measured per label; a stage that does not apply is ``None``."""

    precision: Averaged
    before: Reliability | None
    after: Reliability | None
    counts: Confusion | None
    thresholds: Sequence[float | None]
    ap_bounds: NDArray[np.float64] | None = None


def label_rows(names: Sequence[str], known: Known, figures: LabelMeasures) -> tuple[LabelRow, ...]:
    """Return one row per label, in column order."""
    rows = len(known.present)
    seen = np.full(len(names), rows) if known.observed is None else _total(known.observed)
    return label_rows_of(names, seen, _total(known.present), figures)


def label_rows_of(
    names: Sequence[str],
    seen: NDArray[np.int64],
    present: NDArray[np.int64],
    figures: LabelMeasures,
) -> tuple[LabelRow, ...]:
    """Return one row per label, from how often each is known and present (K,)."""
    final = figures.after or figures.before
    nothing = np.full(len(names), np.nan)
    ece_before = nothing if figures.before is None else figures.before.ece()
    ece_after = nothing if figures.after is None else figures.after.ece()
    mean_prob = nothing
    if final is not None:
        with np.errstate(invalid="ignore"):
            mean_prob = final.confidence_sums.sum(1) / final.counts.sum(1)
    counts = figures.counts
    columns = [nothing] * 3
    if counts is not None:
        columns = [counts.precision().items, counts.recall().items, counts.f_score().items]
    return tuple(
        LabelRow(
            name=name,
            known=int(seen[k]),
            present=int(present[k]),
            ap=defined(figures.precision.items[k]),
            ece_before=defined(ece_before[k]),
            ece_after=defined(ece_after[k]),
            mean_prob=defined(mean_prob[k]),
            threshold=figures.thresholds[k],
            precision=defined(columns[0][k]),
            recall=defined(columns[1][k]),
            f1=defined(columns[2][k]),
            ap_bound=0.0 if figures.ap_bounds is None else float(figures.ap_bounds[k]),
        )
        for k, name in enumerate(names)
    )


def shot_rows(
    train_counts: Sequence[int] | None, precision: Averaged, counts: Confusion | None
) -> tuple[ShotGroup, ...]:
    """Return the groups few, medium and many, if the counts in training are given."""
    if train_counts is None:
        return ()
    numbers = np.asarray(train_counts)
    ap = by_shot(precision.items, numbers)
    nothing = np.full(len(numbers), np.nan)
    recall = by_shot(nothing if counts is None else counts.recall().items, numbers)
    return tuple(
        ShotGroup(
            words,
            len(ap[shot].items),
            ap[shot].num_defined,
            defined(ap[shot].value),
            defined(recall[shot].value),
        )
        for shot, words in SHOTS.items()
    )


def level_rows(
    tree: LabelTree,
    known: Known,
    answers: Probabilities | None,
    precision: Averaged,
    counts: Confusion | None,
    bins: int,
) -> tuple[LevelFigures, ...]:
    """Return the figures of the labels at each depth of a taxonomy."""
    f1 = None if counts is None else counts.f_score().items
    found = []
    for level, columns in tree.levels().items():
        observed = None if known.observed is None else known.observed[:, columns]
        labels = known.labels[:, columns]
        loss = ece = None
        if answers is not None:
            log_p, log_q = answers.log_p[:, columns], answers.log_q[:, columns]
            loss = defined(log_loss_from_logs(log_p, log_q, labels, observed).value)
            ece = defined(
                float(reliability(answers.probs[:, columns], labels, observed, bins=bins).ece())
            )
        found.append(
            LevelFigures(
                level=level,
                labels=len(columns),
                present=int(known.present[:, columns].sum()),
                mean_ap=defined(Averaged.over(precision.items[columns], "label").value),
                log_loss=loss,
                ece=ece,
                mean_f1=None if f1 is None else defined(Averaged.over(f1[columns], "label").value),
            )
        )
    return tuple(found)


def _total(mask: NDArray[Any]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = mask.sum(0)
    return total


CELLS = 20
SHARES = "shares of the labels"


def zero_label_part(
    stages: Sequence[Probabilities], known: Known, sets: NDArray[Any] | None
) -> ZeroLabel:
    """Return how images without labels are told apart by the last stage, and what each costs."""
    answers = stages[-1]
    outside = zero_label_rows(known.present, known.observed)
    inside: NDArray[np.bool_] = np.any(known.present, axis=1)
    peak = max_confidence(answers.probs)
    quiet = nothing_here(answers.log_q)
    alarms = None
    if sets is not None:
        alarms = defined(false_alarm_rate(sets, known.present, known.observed).value)
    both = bool(outside.any() and inside.any())
    rows = int(outside.sum())
    edges = width_edges(CELLS)
    return zero_label_of(
        rows=rows,
        left=len(outside) - rows - int(inside.sum()),
        share=rows / len(outside),
        false_alarms=alarms,
        auroc_nothing=defined(separation_auroc(-quiet[inside], -quiet[outside])) if both else None,
        auroc_max=defined(separation_auroc(peak[inside], peak[outside])) if both else None,
        fpr95=defined(false_positive_rate_at(peak[inside], peak[outside])) if both else None,
        mmc=defined(peak[outside].mean()) if rows else None,
        inside=np.histogram(peak[inside], edges)[0],
        outside=np.histogram(peak[outside], edges)[0],
        by_stage=tuple(
            _stage_scores(stage, known, inside, outside) for stage in (*stages, _shares(known))
        )
        if both
        else (),
    )


def zero_label_of(
    *,
    rows: int,
    left: int,
    share: float,
    false_alarms: float | None,
    auroc_nothing: float | None,
    auroc_max: float | None,
    fpr95: float | None,
    mmc: float | None,
    inside: NDArray[np.int64],
    outside: NDArray[np.int64],
    by_stage: tuple[StageScores, ...],
    how: str = "",
) -> ZeroLabel:
    """Return the zero-label part from what was counted; ``left`` rows are in neither group."""
    return ZeroLabel(
        rows=rows,
        share=share,
        false_alarms=false_alarms,
        auroc_nothing=auroc_nothing,
        auroc_max=auroc_max,
        fpr95=fpr95,
        mmc=mmc,
        edges=tuple(width_edges(CELLS).tolist()),
        inside=tuple(inside.tolist()),
        outside=tuple(outside.tolist()),
        how=(
            "An image counts as “nothing here” only if every label is known and absent; "
            f"{left:,} images with unknown labels and none known present are in neither group. "
            "False alarm: the rule gives such an image a label. AUROC: the chance that an image "
            "with labels scores above one without, ties one half; by the product of 1 − p over "
            "all labels, and by the largest p. FPR at 95%: images without labels at or above the "
            "threshold that keeps 95% of those with. MMC: mean of the largest p. Shares of the "
            "labels: every image is answered with each label's share among the known entries."
        )
        + how,
        by_stage=by_stage,
    )


def _shares(known: Known) -> Probabilities:
    """Return the answers of a model that knows how frequent the labels are, and nothing else."""
    count = len(known.present) if known.observed is None else known.observed.sum(0).clip(1)
    each = (known.labels.sum(0) / count).astype(np.float32)
    share = np.broadcast_to(each.astype(np.float64), known.present.shape)
    with np.errstate(divide="ignore"):
        logs = np.log(share), np.log1p(-share)
    return Probabilities(SHARES, *logs, share.astype(np.float32))


def _stage_scores(
    answers: Probabilities,
    known: Known,
    inside: NDArray[np.bool_],
    outside: NDArray[np.bool_],
) -> StageScores:
    scores: list[float | None] = []
    for rows in (inside, outside):
        labels = known.labels[rows]
        observed = None if known.observed is None else known.observed[rows]
        logs = answers.log_p[rows], answers.log_q[rows]
        scores.append(defined(log_loss_from_logs(*logs, labels, observed).value))
        scores.append(defined(brier_score(answers.probs[rows], labels, observed).value))
    log_loss_in, brier_in, log_loss_out, brier_out = scores
    mmc = defined(max_confidence(answers.probs)[outside].mean())
    return StageScores(answers.stage, mmc, log_loss_in, log_loss_out, brier_in, brier_out)


BUDGET = 20_000_000  # images times queries, per length
FEWEST, MOST = 200, 20_000


def retrieval_part(
    answers: Probabilities, known: Known, longest: int, seed: int
) -> tuple[tuple[RetrievalPoint, ...], str]:
    """Return one point per query length, and how they were computed."""
    allowed = min(max(BUDGET // len(known.present), FEWEST), MOST)
    results = retrieval_map(
        answers.log_p,
        answers.log_q,
        known.present,
        known.observed,
        longest=longest,
        exhaustive=allowed,
        sample=allowed,
        seed=seed,
    )
    points = tuple(
        RetrievalPoint(
            length=result.length,
            map=defined(result.value),
            error=defined(result.error) if not result.exhaustive else None,
            queries=result.queries,
            skipped=result.skipped,
            sampled=not result.exhaustive,
        )
        for result in results
    )
    how = (
        "A query wants some labels and not others; its images are ranked by the joint probability, "
        "labels taken as independent given the image. Average precision with equal scores as one "
        "threshold; mean over the queries that some image answers. "
        f"Up to {allowed:,} queries per length: all, or a seeded sample with its standard error."
    )
    return points, how

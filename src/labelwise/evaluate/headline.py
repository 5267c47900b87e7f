"""The headline: the few numbers to look at first, each with its 95 % interval."""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.evaluate.evaluation import (
    LOG_LOSS,
    Calibration,
    Figure,
    RankingFigures,
    Sets,
    ZeroLabel,
)
from labelwise.evaluate.intervals import (
    macro_f1_influence,
    mean_ap_influence,
    mean_influence,
    normal_interval,
)
from labelwise.evaluate.probabilities import Known, Probabilities, defined
from labelwise.metrics import Averaged, calibration_interval, false_alarm_rate, top_k_sets

__all__ = ["calibration_figures", "ranking_figures", "set_figures", "zero_label_figures"]

DRAWS = 500
JACKKNIFE = "Interval: infinitesimal jackknife over images."
BOOTSTRAP = (
    f"Interval: {DRAWS} bootstrap draws of images, widened to hold the value where it would not."
)


def ranking_figures(
    ranking: RankingFigures, scores: Tensor, known: Known, by_image: Averaged
) -> list[Figure]:
    """Return mAP over labels and over images."""
    return [
        _smooth(
            "mAP over labels",
            ranking.map_class,
            mean_ap_influence(scores, known.present, known.observed),
            f"mAP@class: {ranking.how}",
        ),
        _smooth(
            "mAP over images",
            ranking.map_sample,
            _items_influence(by_image),
            "mAP@sample: average precision over the labels of each image; "
            f"{ranking.undefined_rows:,} images without a known positive left out.",
        ),
    ]


def calibration_figures(
    part: Calibration, answers: Probabilities, known: Known, bins: int
) -> list[Figure]:
    """Return calibration errors and proper scores."""
    loss, square, counts = _row_sums(answers, known)
    errors = partial(
        calibration_interval, answers.probs, known.present, known.observed, bins=bins, draws=DRAWS
    )
    surest = top_k_sets(answers.probs, part.k)
    figures = []
    for name, curve, interval in (
        ("ECE, all entries", part.pooled, errors()),
        (f"ECE, top {part.k}", part.top_k, errors(where=surest)),
    ):
        how = f"Expected calibration error, {bins} equal-width bins, {curve.entries}. {BOOTSTRAP}"
        # Resampled errors are larger than the error itself, so that taking this excess off, as
        # the basic bootstrap does, can move the whole interval below the value shown.
        shown = interval.value if curve.ece is None else curve.ece
        low = defined(min(interval.low, shown))
        high = defined(max(interval.high, shown))
        figures.append(Figure(name, curve.ece, how, low, high, "lower"))
    score = partial(_smooth, better="lower", percent=False)
    return [
        *figures,
        score(
            LOG_LOSS,
            part.log_loss,
            mean_influence(loss, counts),
            "Mean over known entries of −log of the truth's probability, in nats.",
        ),
        score(
            "Brier score",
            part.brier,
            mean_influence(square, counts),
            "Mean over known entries of the squared error of the probability.",
        ),
    ]


def set_figures(part: Sets, sets: Tensor, known: Known) -> list[Figure]:
    """Return the macro F1 of the rule."""
    influence = macro_f1_influence(sets, known.present, known.observed)
    how = f"Macro F1 of the rule: {part.rule}."
    return [_smooth("F1, mean over labels", part.macro_f1, influence, how)]


def zero_label_figures(part: ZeroLabel, sets: Tensor | None, known: Known) -> list[Figure]:
    """Return the false-alarm rate, where there are images without labels and a rule."""
    if sets is None or part.false_alarms is None:
        return []
    influence = _items_influence(false_alarm_rate(sets, known.present, known.observed))
    how = f"Share of the {part.rows:,} images without labels that the rule labels."
    return [_smooth("False alarms", part.false_alarms, influence, how, better="lower")]


def _row_sums(answers: Probabilities, known: Known) -> list[NDArray[np.float64]]:
    """Return what each image adds to the log loss, to the Brier score and to their count."""
    present, mask = known.present, known.observed
    loss = -torch.where(present, answers.log_p, answers.log_q)
    square = (answers.probs - present.to(answers.probs.dtype)) ** 2
    if mask is not None:
        loss, square = (part.masked_fill(~mask, 0.0) for part in (loss, square))
    counts = torch.full((len(present),), present.shape[1]) if mask is None else mask.sum(1)
    return [part.double().numpy() for part in (loss.sum(1), square.sum(1), counts)]


def _items_influence(items: Averaged) -> NDArray[np.float64]:
    return mean_influence(np.nan_to_num(items.items), ~np.isnan(items.items))


def _smooth(
    name: str,
    value: float | None,
    influence: NDArray[np.float64],
    how: str,
    *,
    better: str = "higher",
    percent: bool = True,
) -> Figure:
    low, high = normal_interval(value, influence, 1.0 if percent else math.inf)
    return Figure(name, value, f"{how} {JACKKNIFE}", low, high, better, percent)

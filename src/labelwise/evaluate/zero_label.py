"""The zero-label part: images known to carry none of the labels against those with some."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.evaluate.evaluation import StageScores, ZeroLabel
from labelwise.evaluate.probabilities import Known, Probabilities, defined
from labelwise.metrics import (
    brier_score,
    false_alarm_rate,
    false_positive_rate_at,
    log_loss_from_logs,
    max_confidence,
    nothing_here,
    separation_auroc,
    width_edges,
    zero_label_rows,
)

__all__ = ["zero_label_part"]

CELLS = 20
SHARES = "shares of the labels"


def zero_label_part(
    stages: Sequence[Probabilities], known: Known, sets: Tensor | None
) -> ZeroLabel:
    """Return how images without labels are told apart by the last stage, and what each costs."""
    answers = stages[-1]
    outside = zero_label_rows(known.present, known.observed)
    inside = known.present.any(1).numpy()
    peak = max_confidence(answers.probs)
    quiet = nothing_here(answers.log_q)
    alarms = None
    if sets is not None:
        alarms = defined(false_alarm_rate(sets, known.present, known.observed).value)
    both = bool(outside.any() and inside.any())
    rows = int(outside.sum())
    edges = width_edges(CELLS)
    left = len(outside) - rows - int(inside.sum())
    return ZeroLabel(
        rows=rows,
        share=rows / len(outside),
        false_alarms=alarms,
        auroc_nothing=defined(separation_auroc(-quiet[inside], -quiet[outside])) if both else None,
        auroc_max=defined(separation_auroc(peak[inside], peak[outside])) if both else None,
        fpr95=defined(false_positive_rate_at(peak[inside], peak[outside])) if both else None,
        mmc=defined(peak[outside].mean()) if rows else None,
        edges=tuple(edges.tolist()),
        inside=tuple(np.histogram(peak[inside], edges)[0].tolist()),
        outside=tuple(np.histogram(peak[outside], edges)[0].tolist()),
        how=(
            "An image counts as “nothing here” only if every label is known and absent; "
            f"{left:,} images with unknown labels and none known present are in neither group. "
            "False alarm: the rule gives such an image a label. AUROC: the chance that an image "
            "with labels scores above one without, ties one half; by the product of 1 − p over "
            "all labels, and by the largest p. FPR at 95%: images without labels at or above the "
            "threshold that keeps 95% of those with. MMC: mean of the largest p. Shares of the "
            "labels: every image is answered with each label's share among the known entries."
        ),
        by_stage=tuple(
            _stage_scores(stage, known, inside, outside) for stage in (*stages, _shares(known))
        )
        if both
        else (),
    )


def _shares(known: Known) -> Probabilities:
    """Return the answers of a model that knows how frequent the labels are, and nothing else."""
    count = len(known.present) if known.observed is None else known.observed.sum(0).clamp(min=1)
    share = (known.present.sum(0) / count).double().expand(known.present.shape)
    return Probabilities(SHARES, share.log(), torch.log1p(-share), share.float())


def _stage_scores(
    answers: Probabilities,
    known: Known,
    inside: NDArray[np.bool_],
    outside: NDArray[np.bool_],
) -> StageScores:
    scores: list[float | None] = []
    for rows in (torch.from_numpy(inside), torch.from_numpy(outside)):
        present = known.present[rows]
        observed = None if known.observed is None else known.observed[rows]
        logs = answers.log_p[rows], answers.log_q[rows]
        scores.append(defined(log_loss_from_logs(*logs, present, observed).value))
        scores.append(defined(brier_score(answers.probs[rows], present, observed).value))
    log_loss_in, brier_in, log_loss_out, brier_out = scores
    mmc = defined(max_confidence(answers.probs)[outside].mean())
    return StageScores(answers.stage, mmc, log_loss_in, log_loss_out, brier_in, brier_out)

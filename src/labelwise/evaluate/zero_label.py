"""The zero-label part: images known to carry none of the labels against those with some."""

import numpy as np
from torch import Tensor

from labelwise.evaluate.evaluation import ZeroLabel
from labelwise.evaluate.probabilities import Known, Probabilities, defined
from labelwise.metrics import (
    false_alarm_rate,
    false_positive_rate_at,
    max_confidence,
    nothing_here,
    separation_auroc,
    width_edges,
    zero_label_rows,
)

__all__ = ["zero_label_part"]

CELLS = 20


def zero_label_part(answers: Probabilities, known: Known, sets: Tensor | None) -> ZeroLabel:
    """Return how images without labels are told apart."""
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
            "threshold that keeps 95% of those with. MMC: mean of the largest p."
        ),
    )

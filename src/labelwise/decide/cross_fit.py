"""Thresholds under one link that choose the sets that others choose under another.

A promise is one about sets, "label k where its logit is at least v_k"; with strictly rising links

    p_k >= t_k  under the first link   <=>   logit >= v_k   <=>   p'_k >= t'_k  under the second

so t'_k = second(first^-1(t_k)) chooses the very sets that were tested. That is how promises are
cross-fitted: a calibrator fitted on some rows orders the thresholds, the other rows test them, and
the probabilities that are used from then on come from a calibrator fitted on all rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.promised_rules import Wish
from labelwise.decide.rules import Rule, Threshold
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.links import Link


CROSS_FITTED_SHARE = 0.8  # of the rows, that test a promise which is cross-fitted
NEAR = 1e-6  # between logits this far from a threshold on each side a link must rise
FAR = 1e3


def check_cross_fit(wish: Wish, calibrator: str) -> None:
    """Raise where a promise cannot be cross-fitted with a calibrator of this name."""
    if calibrator == "none":
        raise SettingsError("cross-fitting is of a calibrator; name one, such as platt")
    if wish.what == "tags":
        raise SettingsError(
            "tags take the most probable labels of a photo, which another calibrator would change; "
            "promise them without cross-fitting"
        )


def same_sets(
    rule: Rule, before: "Link", after: "Link", logits: NDArray[Any], names: Sequence[str]
) -> Threshold:
    """Return the thresholds under one link that choose the sets a rule chooses under another.

    They also choose the same sets of the rows with these ``logits`` (N, K), where rounding would
    part the two.
    """
    if not isinstance(rule, Threshold) or before.couples_labels or after.couples_labels:
        raise SettingsError(
            "only thresholds on links of single labels choose the same sets under another link; "
            "promise without cross-fitting"
        )
    given = np.broadcast_to(np.asarray(rule.value, dtype=np.float64), len(names))
    inside = (given > 0) & (given < 1)
    places = before.logits_at(np.where(inside, given, 0.5))
    for link in (before, after):
        low, high = (link.log_odds(places + move) for move in (-NEAR, NEAR))
        flat = np.flatnonzero(inside & ~(low < high))
        if len(flat):
            name = names[flat[0]]
            raise SettingsError(
                f"the calibrator must rise, and at the threshold of {name!r} it does not; "
                "use platt, temperature or beta, or promise without cross-fitting"
            )
    chosen = rule(before.decision_probs(logits))
    values = logits.astype(np.float64)
    least = np.where(chosen, values, np.inf).min(0).clip(-FAR, FAR)
    most = np.where(chosen, -np.inf, values).max(0).clip(-FAR, FAR)
    above, below = (after.decision_probs(side) for side in (least, most))
    moved = np.minimum(after.decision_probs(places), above)
    moved = np.where(moved > below, moved, above)  # rounding parts no photo from its side
    return Threshold(tuple(np.where(inside, moved, given).tolist()))

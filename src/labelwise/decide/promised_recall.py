"""The highest threshold whose recall is promised: losses only rise with it, so it is bisected.

Every threshold is tested on the same photos without a price (Bates et al., 2021), as the p-values
rise with the threshold too. Photos in groups are tested by whole groups (:mod:`groups`), with a
stake that other groups set where half of the allowed loss is had.
"""

import numpy as np

from labelwise.decide.fixed_sequence import Numbers, Test, made_promise
from labelwise.decide.groups import with_group_facts
from labelwise.decide.promises import Evidence, Promise
from labelwise.numeric.bounds import (
    best_stakes,
    betting_p_values,
    binomial_p_values,
    hoeffding_bentkus_p_values,
)


def recall_threshold(
    evidence: Evidence,
    scores: Numbers,
    level: float,
    confidence: float,
    tuning: tuple[Evidence, Numbers] | None = None,
) -> tuple[float, Promise | None]:
    """Return the highest threshold on the scores (N, K) whose recall is promised.

    ``tuning`` photos with their scores set the stakes on groups, and are not tested.
    """
    present, risk = evidence.answers.present, 1 - level
    own = np.unique(scores[present])
    test: Test = "exact binomial" if present.shape[1] == 1 else "Hoeffding-Bentkus"
    stakes = None
    if evidence.groups is not None:
        test, stakes = "betting", None if tuning is None else _stakes(*tuning, risk)

    def kept(threshold: float) -> bool:
        losses = _losses(evidence, scores, threshold)
        if test == "betting":
            p = betting_p_values((losses - risk)[:, None], 1 - risk, stakes)
        elif test == "exact binomial":
            p = binomial_p_values(np.rint(losses.sum()), np.array(len(losses)), risk)
        else:
            p = hoeffding_bentkus_p_values(losses.mean(), np.array(len(losses)), risk)
        return bool(np.all(p <= 1 - confidence))

    if not len(own) or not kept(own[0]):
        return -np.inf, None
    passed, failed = 0, len(own)
    while failed - passed > 1:
        middle = (passed + failed) // 2
        passed, failed = (middle, failed) if kept(own[middle]) else (passed, middle)
    threshold = float(own[passed])
    losses = _losses(evidence, scores, threshold)
    value = 1 - float(losses.mean())
    made = made_promise("recall", evidence, level, confidence, len(losses), value, test)
    if evidence.groups is not None:
        each, counted = _photo_losses(evidence, scores, threshold)
        made = with_group_facts(made, evidence.groups, each, 1.0 * counted)
    return threshold, made


def _losses(evidence: Evidence, scores: Numbers, threshold: float) -> Numbers:
    """Return the shares of labels missed by images that carry one, or by groups of such images."""
    losses, counted = _photo_losses(evidence, scores, threshold)
    groups = evidence.groups
    if groups is None:
        return np.asarray(losses[counted])
    return np.asarray(groups.ratios(losses, counted)[groups.counted(counted) > 0])


def _photo_losses(
    evidence: Evidence, scores: Numbers, threshold: float
) -> tuple[Numbers, np.ndarray]:
    """Return the share of each image's labels (N,) below a threshold, and which carry a label."""
    present = evidence.answers.present
    held = present.sum(1)
    found = (present & (scores >= threshold)).sum(1)
    return np.where(held > 0, 1 - found / np.maximum(held, 1), 0.0), held > 0


def _stakes(tuning: Evidence, scores: Numbers, risk: float) -> Numbers | None:
    """Return the stake that grows most on other groups, where half of the allowed loss is had."""
    present = tuning.answers.present
    if not present.any():
        return None
    losses = _losses(tuning, scores, float(np.quantile(scores[present], risk / 2)))
    return best_stakes((losses - risk)[:, None], 1 - risk)

"""Tests by group: the risk of photos that come in groups, tested on what whole groups lose.

A risk is (sum of losses) / (sum of weights) over photos, and the photos of a group depend on each
other in ways nobody knows. So a group is one draw, with one number,

    z_g = (sum of losses) / (sum of weights) within g  -  allowed,      between -allowed and
                                                                        1 - allowed

over the groups in which a photo counts. If the risk within a new group is too large on average,
the z_g have a mean of at least 0, and betting against that needs nothing else (Dunn, Wasserman and
Ramdas, 2022, and Lee, Barber and Willett, 2023, weigh groups alike for the same reason). Their
variance decides how much is proven: photos that are hardly alike within groups prove as much as
photos alone. Weighing photos alike instead would need a bound of what one group can hold, and with
it next to nothing could be proven.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from labelwise.decide.fixed_sequence import Graded, Numbers, ScoredEntries
from labelwise.decide.promises import Evidence, Promise, percent, tally
from labelwise.decide.rules import Rule
from labelwise.numeric.groups import Groups, error_of_photo_test

FALSIFIED = 1.5  # times the error that is stated, from which groups are worth a warning

Measure = Callable[[Any, Numbers, float], tuple[Numbers, Numbers]]


def by_whole_groups(measure: Any) -> Measure:
    """Return the risk of whole groups, for photos that have some; see the module's text."""

    def excess(
        scored: ScoredEntries | Graded, candidates: Numbers, risk: float
    ) -> tuple[Numbers, Numbers]:
        own, weights = measure(scored, candidates, risk)
        if scored.groups is None:
            raise ValueError("a risk by groups needs the groups of the photos")
        return scored.groups.ratios(own, weights), scored.groups.counted(weights)

    return excess


def with_group_facts(
    promise: Promise, groups: Groups, losses: Numbers, weights: Numbers
) -> Promise:
    """Return a promise by groups with what counted, the value over photos, and the design effect.

    ``losses`` and ``weights`` (N,) are those of the photos, at the promised threshold.
    """
    counted = weights > 0
    mean = float(losses.sum() / max(weights.sum(), 1e-9))
    return replace(
        promise,
        counted=int(np.count_nonzero(counted)),
        groups=len(np.unique(groups.codes[counted])),
        over_photos=1 - mean,
        design_effect=groups.design_effect(losses - mean * weights),
    )


def photo_warning(promise: Promise, rule: Rule, evidence: Evidence) -> str | None:
    """Return what a promise that took photos as independent is worth, where groups falsify it.

    ``promise`` and ``rule`` were made on the photos of ``evidence`` without their groups.
    """
    answers, groups = evidence.answers, evidence.groups
    if groups is None or promise.confidence is None:
        return None
    losses, counts = tally(promise.what, answers, np.asarray(rule(answers.probs)))
    total = float(counts.sum())
    effect = groups.design_effect(losses - losses.sum() / max(total, 1.0) * counts)
    said = 1 - promise.confidence
    if effect is None or error_of_photo_test(said, effect) < FALSIFIED * said:
        return None
    photos = int(np.count_nonzero(counts))
    return (
        f"photos of one group are alike: {photos:,} that count, in {groups.count:,} groups, say as "
        f"much as {photos / effect:,.0f} independent ones (design effect {effect:.1f}). Tested "
        f"photo by photo, {promise.what} {promise.level:g} could be promised with another "
        f"threshold, but such a promise fails in about {error_of_photo_test(said, effect):.0%} of "
        f"cases, not in {percent(said)}; so groups were tested"
    )

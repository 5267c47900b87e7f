"""A fixed sequence of thresholds, each tested on photos until one cannot be rejected.

A risk says by how much each photo exceeds what is allowed at each threshold; the walk along the
sequence ends at the first whose p-value of "the risk is larger" is above delta.

Photos of a group depend on each other in ways nobody knows, so a group is one draw, with one number

    z_g = (sum of losses) / (sum of weights) within g  -  allowed,      between -allowed and
                                                                        1 - allowed

over the groups in which a photo counts. If the risk within a new group is too large on average,
the z_g have a mean of at least 0, and betting against that needs nothing else (Dunn, Wasserman and
Ramdas, 2022; Lee, Barber and Willett, 2023). Weighing photos alike instead would need a bound of
what one group can hold, and with it next to nothing could be proven.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.promises import Evidence, Promise, What
from labelwise.errors import SettingsError
from labelwise.numeric.bounds import (
    best_stakes,
    betting_p_values,
    binomial_p_values,
    first_failure,
    hoeffding_bentkus_p_values,
)
from labelwise.numeric.groups import Groups

Numbers = NDArray[np.float64]
Test = Literal["exact binomial", "Hoeffding-Bentkus", "betting"]
COARSE, FINE = 120, 80  # candidates on the tuning photos, and on the others
EASY = 1e-3  # times delta: the p-value that the first candidate is expected to have


@dataclass(frozen=True)
class ScoredEntries:
    """Scores (N, K) compared with thresholds, and which entries are present and absent."""

    scores: Numbers
    present: NDArray[np.bool_]
    absent: NDArray[np.bool_]
    groups: Groups | None = None

    def counts(self, entries: NDArray[np.bool_], candidates: Numbers) -> Numbers:
        """Return how many such entries each image has at or above falling candidates, (N, T)."""
        size = len(candidates)
        row, column = np.nonzero(entries)
        bin_of = size - np.searchsorted(candidates[::-1], self.scores[row, column], side="right")
        table = np.bincount(row * (size + 1) + bin_of, minlength=len(entries) * (size + 1))
        return table.reshape(len(entries), size + 1)[:, :-1].cumsum(1).astype(np.float64)


@dataclass(frozen=True)
class Graded:
    """A score and a loss in [0, 1] for each image."""

    scores: Numbers
    losses: Numbers
    groups: Groups | None = None


# What a risk is: (scored, candidates, allowed risk) -> (excess over it, weight), both (N, T).
# The risk is sum(excess) / sum(weight) + allowed; an excess is at most 1 - allowed.
Risk = Callable[[Any, Numbers, float], tuple[Numbers, Numbers]]


def graded_loss(graded: Graded, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    """Return the risk of images that have one score and one loss each."""
    counted = (graded.scores[:, None] >= candidates).astype(np.float64)
    return counted * (graded.losses[:, None] - risk), counted


def wrong_share(scored: ScoredEntries, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    """Return the risk of an image's chosen labels: the share that are wrong, if it has any."""
    chosen = scored.counts(scored.present | scored.absent, candidates)
    wrong = scored.counts(scored.absent, candidates)
    counted = (chosen > 0).astype(np.float64)
    return counted * (wrong / np.maximum(chosen, 1) - risk), counted


def wrong_entries(most: int) -> Risk:
    """Return the risk of tags, scaled so that the excess is below 1 - risk as the others' is."""

    def excess(scored: ScoredEntries, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
        chosen = scored.counts(scored.present | scored.absent, candidates)
        wrong = scored.counts(scored.absent, candidates)
        weight: Numbers = chosen / most
        return wrong / most - risk * weight, weight

    return excess


def f_loss(scored: ScoredEntries, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    """Return the risk of sets: 1 - F1, over images of which anything is known."""
    known = scored.present | scored.absent
    hits = scored.counts(scored.present, candidates)
    total = scored.counts(known, candidates) + scored.present.sum(1, keepdims=True)
    counted: Numbers = np.repeat(known.any(1, keepdims=True) * 1.0, len(candidates), axis=1)
    loss = np.where(total > 0, 1 - 2 * hits / np.maximum(total, 1), 0.0)
    return counted * (loss - risk), counted


def _measured(
    scored: ScoredEntries | Graded, measure: Risk, candidates: Numbers, risk: float
) -> tuple[Numbers, Numbers]:
    """Return excess and weight of photos, or of whole groups of them; see the module's text."""
    excess, weights = measure(scored, candidates, risk)
    if scored.groups is None:
        return excess, weights
    return scored.groups.ratios(excess, weights), scored.groups.counted(weights)


def p_values(
    excess: Numbers, counted: Numbers, risk: float, test: Test, stakes: Numbers | None
) -> Numbers:
    """Return the p-values (T,) of "the risk is larger than allowed"."""
    if test == "betting":
        return betting_p_values(excess, 1 - risk, stakes)
    counts = counted.sum(0)
    losses = (excess + risk * counted).sum(0)
    if test == "exact binomial":
        return binomial_p_values(np.rint(losses), counts, risk)
    return hoeffding_bentkus_p_values(losses / np.maximum(counts, 1), counts, risk)


def _candidates(
    scored: ScoredEntries | Graded,
    measure: Risk,
    risk: float,
    delta: float,
    scale: float,
    easy_share: float,
) -> Numbers:
    """Return candidates, falling: from the strictest that should pass easily to the hopeless.

    What these photos say of a candidate, with half a loss added, is taken as what ``scale`` times
    as many will say.
    """
    pooled = np.sort(scored.scores.ravel())[::-1]
    pooled = pooled[np.isfinite(pooled)]
    places = np.unique(np.rint(np.geomspace(1, max(len(pooled), 1), COARSE)).astype(int)) - 1
    coarse = np.unique(pooled[places[places < len(pooled)]])[::-1]
    if not len(coarse):
        return coarse
    excess, counted = _measured(scored, measure, coarse, risk)
    counts = counted.sum(0)
    mean = excess.sum(0) / np.maximum(counts, 1e-9)
    expected = ((mean + risk) * counts + 0.5) / (counts + 1)
    trials = np.floor(counts * scale)
    chances = binomial_p_values(np.ceil(expected * trials), trials, risk)
    easy = np.flatnonzero(chances <= easy_share * delta)
    start = int(easy[0]) if len(easy) else int(np.argmin(chances))
    hopeful = np.flatnonzero(mean <= 0.5 * risk + 0.02)
    end = max(start, int(hopeful[-1]) if len(hopeful) else start)
    first = int(np.searchsorted(-pooled, -coarse[start]))
    last = int(np.searchsorted(-pooled, -coarse[end], side="right")) - 1
    fine = np.unique(np.rint(np.linspace(first, max(first, last), FINE)).astype(int))
    return np.asarray(np.unique(pooled[fine])[::-1])


def promised_cut(
    what: What,
    measure: Risk,
    tuning: tuple[Evidence, Any],
    tested: tuple[Evidence, Any],
    level: float,
    confidence: float,
    test: Test,
    only_start: bool = False,
) -> tuple[float, Promise] | None:
    """Return the last candidate before the first failure, and what is promised there.

    Both sides are photos with their scores. ``tuning`` sets the candidates and what to stake on
    each, and is not tested unless it is the tested side itself.
    """
    risk, delta, evidence = 1 - level, 1 - confidence, tested[0]
    scale = len(evidence) / max(len(tuning[0]), 1)
    if evidence.groups is not None and tuning[0].groups is not None:
        test, scale = "betting", evidence.groups.count / tuning[0].groups.count
    easy = 0.0 if only_start or test == "betting" else EASY
    candidates = _candidates(tuning[1], measure, risk, delta, scale, easy)
    candidates = candidates[:1] if only_start else candidates
    if not len(candidates):
        return None
    stakes = None
    if test == "betting" and tuning[0] is not evidence:
        stakes = best_stakes(_measured(tuning[1], measure, candidates, risk)[0], 1 - risk)
    excess, counted = _measured(tested[1], measure, candidates, risk)
    last = first_failure(p_values(excess, counted, risk, test, stakes), delta) - 1
    if last < 0:
        return None
    cut, count = float(candidates[last]), int(np.count_nonzero(counted[:, last]))
    seen = float(excess[:, last].sum() / counted[:, last].sum() + risk)
    promise = made_promise(what, evidence, level, confidence, count, 1 - seen, test)
    if evidence.groups is not None:
        lost, weights = (side[:, 0] for side in measure(tested[1], np.array([cut]), 0.0))
        promise = with_group_facts(promise, evidence.groups, lost, weights)
    return cut, promise


def check_levels(level: float, confidence: float, scope: str = "shared") -> None:
    """Refuse levels, confidences and scopes that mean nothing."""
    if not 0 < level < 1 or not 0 < confidence < 1:
        raise SettingsError(
            f"level and confidence must lie strictly between 0 and 1, got {level} and {confidence}"
        )
    if scope not in ("shared", "label"):
        raise SettingsError(f"scope must be 'shared' or 'label', got {scope!r}")


def made_promise(
    what: What,
    evidence: Evidence,
    level: float,
    confidence: float,
    counted: int,
    observed: float,
    test: str,
) -> Promise:
    """Return the promise that was tested on these photos today."""
    return Promise(
        what,
        level,
        confidence,
        n=len(evidence),
        counted=counted,
        observed=observed,
        photos=evidence.photos,
        made=datetime.now(UTC).date().isoformat(),
        test=test,
        photos_digest=evidence.digest,
    )


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


def refusal(what: str, evidence: Evidence, level: float, confidence: float) -> str:
    """Return in words why nothing is promised, and what would help."""
    wanted, easier = f"{what} {level:g}", "a lower level"
    if what == "tags":  # asked for as the share that may be wrong, which is to grow
        wanted, easier = f"tags of which {1 - level:.3g} may be wrong", "a larger share"
    least = ceil(log(1 - confidence) / log(level))
    why, more = f" (without a single error {least:,} that count would be needed)", "more photos"
    if evidence.groups is not None:
        why = f", which come in {evidence.groups.count:,} groups and were tested by group"
        more = "photos of more groups"
    return (
        f"{wanted} cannot be promised with {confidence:.0%} confidence on these "
        f"{len(evidence):,} photos{why}; use {more}, {easier} or less confidence"
    )

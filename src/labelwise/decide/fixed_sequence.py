"""A fixed sequence of thresholds, each tested on photos until one cannot be rejected.

A risk says by how much each photo exceeds what is allowed at each threshold; a walk along the
sequence ends at the first whose p-value of "the risk is larger" is above delta. Rules and lists
(:mod:`promised_rules`, :mod:`promised_answers`) differ in their risk and in who sets the sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


# What a risk is: (scored, candidates, allowed risk) -> (excess over it, weight), both (N, T).
# The risk is sum(excess) / sum(weight) + allowed; an excess is at most 1 - allowed.
Risk = Callable[[ScoredEntries, Numbers, float], tuple[Numbers, Numbers]]


@dataclass(frozen=True)
class Graded:
    """A score and a loss in [0, 1] for each image."""

    scores: Numbers
    losses: Numbers
    groups: Groups | None = None


def graded_loss(graded: Any, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
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
    chosen = scored.counts(scored.present | scored.absent, candidates)
    hits = scored.counts(scored.present, candidates)
    held = scored.present.sum(1, keepdims=True)
    total = chosen + held
    seen = (scored.present | scored.absent).any(1, keepdims=True)
    counted: Numbers = np.repeat(seen.astype(np.float64), len(candidates), axis=1)
    loss = np.where(total > 0, 1 - 2 * hits / np.maximum(total, 1), 0.0)
    return counted * (loss - risk), counted


def _p_values(
    excess: Numbers, counted: Numbers, risk: float, test: Test, stakes: Numbers | None
) -> Numbers:
    if test == "betting":
        return betting_p_values(excess, 1 - risk, stakes)
    counts = counted.sum(0)
    losses = (excess + risk * counted).sum(0)
    if test == "exact binomial":
        return binomial_p_values(np.rint(losses), counts, risk)
    return hoeffding_bentkus_p_values(losses / np.maximum(counts, 1), counts, risk)


def candidate_sequence(
    scored: Any, measure: Any, risk: float, delta: float, scale: float, easy_share: float = EASY
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
    excess, counted = measure(scored, coarse, risk)
    counts = counted.sum(0)
    mean = excess.sum(0) / np.maximum(counts, 1e-9)
    expected = ((mean + risk) * counts + 0.5) / (counts + 1)
    trials = np.floor(counts * scale)
    p_values = binomial_p_values(np.ceil(expected * trials), trials, risk)
    easy = np.flatnonzero(p_values <= easy_share * delta)
    start = int(easy[0]) if len(easy) else int(np.argmin(p_values))
    hopeful = np.flatnonzero(mean <= 0.5 * risk + 0.02)
    end = max(start, int(hopeful[-1]) if len(hopeful) else start)
    first = int(np.searchsorted(-pooled, -coarse[start]))
    last = int(np.searchsorted(-pooled, -coarse[end], side="right")) - 1
    fine = np.unique(np.rint(np.linspace(first, max(first, last), FINE)).astype(int))
    return np.asarray(np.unique(pooled[fine])[::-1])


def walk(
    scored: Any,
    measure: Any,
    candidates: Numbers,
    risk: float,
    delta: float,
    test: Test,
    tuning: Any = None,
) -> tuple[float, int, float] | None:
    """Return the last candidate before the first failure, how many count, and the risk there.

    ``tuning`` photos, which are not tested, say what to stake on each candidate.
    """
    if not len(candidates):
        return None
    stakes = None
    if tuning is not None and test == "betting":
        stakes = best_stakes(measure(tuning, candidates, risk)[0], 1 - risk)
    excess, counted = measure(scored, candidates, risk)
    passed = first_failure(_p_values(excess, counted, risk, test, stakes), delta)
    if passed == 0:
        return None
    last = passed - 1
    count = int(np.count_nonzero(counted[:, last]))
    seen = float(excess[:, last].sum() / counted[:, last].sum() + risk)
    return float(candidates[last]), count, seen


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


def refusal(what: str, evidence: Evidence, level: float, confidence: float) -> str:
    """Return in words why nothing is promised, and what would help."""
    least = ceil(log(1 - confidence) / log(level))
    wanted, easier = f"{what} {level:g}", "a lower level"
    if what == "tags":  # asked for as the share that may be wrong, which is to grow
        wanted, easier = f"tags of which {1 - level:.3g} may be wrong", "a larger share"
    if evidence.groups is not None:
        return (
            f"{wanted} cannot be promised with {confidence:.0%} confidence on these "
            f"{len(evidence):,} photos, which come in {evidence.groups.count:,} groups and were "
            f"tested by group; use photos of more groups, {easier} or less confidence"
        )
    return (
        f"{wanted} cannot be promised with {confidence:.0%} confidence on these "
        f"{len(evidence):,} photos (without a single error {least:,} that count would be needed); "
        f"use more photos, {easier} or less confidence"
    )

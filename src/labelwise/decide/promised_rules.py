"""Rules whose guarantee is tested on photos of its own, and guarantees asked for by their text.

A fixed sequence of candidates, safest first, is tested ("risk > 1 - level") until one cannot be
rejected. Where the risk need not fall along it, ``TUNING`` of the photos, which then enter no test,
set the sequence. Recall only falls as the threshold rises, so all photos test all thresholds
without a price (Bates et al., 2021), unless tuning photos set thresholds of rare labels against
each other, or stakes on groups. Photos of a group depend on each other, so a group is one draw:

    z_g = (sum of losses) / (sum of weights) within g - allowed,   from -allowed to 1 - allowed

has a mean of at least 0 over the groups that count, if the risk within a new group is too large;
betting against that needs nothing else (Dunn, Wasserman and Ramdas, 2022; Lee, Barber and Willett,
2023). Labels with few photos have one guarantee together, on average over them, with thresholds
between their own and the common one (Interp-Q of Ding et al., 2025). A label of which no photo
knows anything is guaranteed nothing; where what is chosen has to be right, it is never chosen.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Numbers, Values, to_numpy
from labelwise.base.bounds import (
    best_stakes,
    betting_p_values,
    binomial_p_values,
    first_failure,
    hoeffding_bentkus_p_values,
)
from labelwise.base.groups import Groups, error_of_photo_test
from labelwise.base.special import expit, logit
from labelwise.base.text import counted
from labelwise.decide.arrays import Scope
from labelwise.decide.promises import (
    Evidence,
    Promise,
    What,
    check_levels,
    losses_of,
    percent,
    promised_today,
    tally,
)
from labelwise.decide.rules import NEVER, AtMost, Rule, Threshold, TopK, expected_f, just_below
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.links import Link

Measure = Literal["all", "precision", "f"]
Test = Literal["exact binomial", "Hoeffding-Bentkus", "betting"]
Cut = tuple[Numbers, Promise]  # thresholds on probabilities: (1,) for all labels, or (K,)
TUNING = 0.2  # of the photos, where no others are given
COARSE, FINE = 120, 80  # candidates on the tuning photos, and on the others
EASY = 1e-3  # times delta: the p-value that the first candidate is expected to have
PRIOR_POSITIVES = 20  # of a rare label, at which its own threshold weighs as much as the common
FEWEST = 60  # positives that are expected of a label for a promise of its own, and at least
NAMED = 5  # labels of a sentence
PER_ERROR_FREE = 5  # times the photos that would be needed without a single error
FALSIFIED = 1.5  # times the error that is stated, from which groups are worth a warning
CROSS_FITTED_SHARE = 0.8  # of the rows, that test a promise which is cross-fitted
NEAR = 1e-6  # between logits this far from a threshold on each side a link must rise
FAR = 1e3


@dataclass(frozen=True, eq=False)
class _Scored:
    """Photos with scores (N, K) to compare with thresholds, and what is lost at each."""

    what: What
    evidence: Evidence
    scores: Numbers
    most: int = 1  # labels of a photo ("tags")
    graded: Numbers | None = None  # losses (N,) of photos with one score each ("answers")

    def _counts(self, entries: NDArray[np.bool_], candidates: Numbers) -> Numbers:
        """Count the True ``entries`` of each photo that score at least each candidate, (N, T).

        ``candidates`` (T,) fall.
        """
        size = len(candidates)
        row, column = np.nonzero(entries)
        bin_of = size - np.searchsorted(candidates[::-1], self.scores[row, column], side="right")
        table = np.bincount(row * (size + 1) + bin_of, minlength=len(entries) * (size + 1))
        return table.reshape(len(entries), size + 1)[:, :-1].cumsum(1).astype(np.float64)

    def losses(self, candidates: Numbers) -> tuple[Numbers, Numbers]:
        if self.graded is not None:
            weights = (self.scores >= candidates).astype(np.float64)
            return weights * self.graded[:, None], weights
        answers = self.evidence.answers
        hits, held = self._counts(answers.present, candidates), answers.present.sum(1)
        chosen = self._counts(answers.known, candidates)
        losses, weights = losses_of(self.what, hits, chosen, held[:, None], answers.judged[:, None])
        if self.what == "tags":  # scaled so that the excess is below 1 - risk as the others' is
            return losses / self.most, weights / self.most
        return losses, weights

    def measured(self, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
        """Return losses - risk * weights, and weights, at each candidate: (N, T) each.

        Where photos come in groups, rows are groups, and each group that counts weighs 1.
        """
        losses, weights = self.losses(candidates)
        excess, groups = losses - risk * weights, self.evidence.groups
        if groups is None:
            return excess, weights
        return groups.ratios(excess, weights), groups.counted(weights)

    def promise(
        self, cut: float, level: float, confidence: float, count: int, observed: float, test: Test
    ) -> Promise:
        """Return the guarantee of a threshold; of groups with their number and design effect."""
        evidence, facts, groups = self.evidence, dict[str, object](), self.evidence.groups
        if groups is not None:
            losses, weights = (side[:, 0] for side in self.losses(np.array([cut])))
            mean = float(losses.sum() / max(weights.sum(), 1e-9))
            count = int(np.count_nonzero(weights))
            facts["groups"] = len(np.unique(groups.codes[weights > 0]))
            facts["over_photos"] = 1 - mean
            facts["design_effect"] = groups.design_effect(losses - mean * weights)
        facts |= {"n": len(evidence), "counted": count, "observed": observed, "test": test}
        facts |= {"photos": evidence.photos, "photos_digest": evidence.digest}
        return promised_today(self.what, level, confidence, **facts)


def _p_values(
    excess: Numbers, weights: Numbers, risk: float, test: Test, stakes: Numbers | None
) -> Numbers:
    if test == "betting":
        return betting_p_values(excess, 1 - risk, stakes)
    counts = weights.sum(0)
    losses = (excess + risk * weights).sum(0)
    if test == "exact binomial":
        return binomial_p_values(np.rint(losses), counts, risk)
    return hoeffding_bentkus_p_values(losses / np.maximum(counts, 1), counts, risk)


def _candidates(scored: _Scored, risk: float, delta: float, scale: float, easy: float) -> Numbers:
    """Return thresholds to test in this order, falling (T,).

    The first is the strictest whose test should succeed with a p-value of ``easy * delta``; the
    last is the lowest whose mean excess is not yet hopeless. ``scale`` is how many times as many
    photos the test has.
    """
    # What these photos say, with half a loss added, is taken as what ``scale`` times as many will.
    pooled = np.sort(scored.scores.ravel())[::-1]
    pooled = pooled[np.isfinite(pooled)]
    places = np.unique(np.rint(np.geomspace(1, max(len(pooled), 1), COARSE)).astype(int)) - 1
    coarse = np.unique(pooled[places[places < len(pooled)]])[::-1]
    if not len(coarse):
        return coarse
    excess, weights = scored.measured(coarse, risk)
    counts = weights.sum(0)
    mean = excess.sum(0) / np.maximum(counts, 1e-9)
    expected = ((mean + risk) * counts + 0.5) / (counts + 1)
    trials = np.floor(counts * scale)
    chances = binomial_p_values(np.ceil(expected * trials), trials, risk)
    passing = np.flatnonzero(chances <= easy * delta)
    start = int(passing[0]) if len(passing) else int(np.argmin(chances))
    hopeful = np.flatnonzero(mean <= 0.5 * risk + 0.02)
    end = max(start, int(hopeful[-1]) if len(hopeful) else start)
    first = int(np.searchsorted(-pooled, -coarse[start]))
    last = int(np.searchsorted(-pooled, -coarse[end], side="right")) - 1
    fine = np.unique(np.rint(np.linspace(first, max(first, last), FINE)).astype(int))
    return np.asarray(np.unique(pooled[fine])[::-1])


def _promised_cut(
    tuning: _Scored, tested: _Scored, level: float, confidence: float, test: Test
) -> tuple[float, Promise] | None:
    """Return the last candidate before the first failure, and what is promised there.

    ``tuning`` sets the candidates and what to stake on each, and is not tested unless it is the
    tested side itself. Of F, which has one best threshold, only the first candidate is tested.
    """
    risk, delta, groups = 1 - level, 1 - confidence, tested.evidence.groups
    scale = len(tested.evidence) / max(len(tuning.evidence), 1)
    if groups is not None and tuning.evidence.groups is not None:
        test, scale = "betting", groups.count / tuning.evidence.groups.count
    only_start = tested.what == "f"
    easy = 0.0 if only_start or test == "betting" else EASY
    candidates = _candidates(tuning, risk, delta, scale, easy)
    candidates = candidates[:1] if only_start else candidates
    if not len(candidates):
        return None
    stakes = None
    if test == "betting" and tuning is not tested:
        stakes = best_stakes(tuning.measured(candidates, risk)[0], 1 - risk)
    excess, weights = tested.measured(candidates, risk)
    last = first_failure(_p_values(excess, weights, risk, test, stakes), delta) - 1
    if last < 0:
        return None
    cut, count = float(candidates[last]), int(np.count_nonzero(weights[:, last]))
    seen = float(excess[:, last].sum() / weights[:, last].sum() + risk)
    return cut, tested.promise(cut, level, confidence, count, 1 - seen, test)


def _refusal(what: str, evidence: Evidence, level: float, confidence: float) -> str:
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


@dataclass(frozen=True)
class Promised:
    """A rule, what it promises, and in words what could not be promised, or only by group."""

    rule: Rule
    promises: tuple[Promise, ...]
    refused: tuple[str, ...] = ()
    warning: str | None = None


def promise_precision(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    scope: Scope = "shared",
    tuning: Evidence | None = None,
    seed: int = 0,
) -> Promised:
    """Return the lowest threshold of which the precision is promised.

    ``scope="shared"`` promises the share of right labels of an image, on average over the images
    that get one; "label" the share of right images of each label. Each promise of a label holds
    with ``confidence`` by itself.
    """
    check_levels(level, confidence, scope)
    tuning, tested = _parts(evidence, tuning, seed)
    if scope == "label":
        return _per_label("precision", tuning, tested, tested, level, confidence)
    cut = _shared("precision", tuning, tested, level, confidence)
    return _of_known_labels("precision", cut, tested, level, confidence)


def promise_recall(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    scope: Scope = "shared",
    tuning: Evidence | None = None,
    seed: int = 0,
) -> Promised:
    """Return the highest threshold of which the recall is promised.

    ``scope="shared"`` promises the share of an image's labels that are chosen, on average over
    images that carry one; "label" the share of each label's images. Tuning photos say how the
    thresholds of rare labels differ, which alone needs them; all photos test all others.
    """
    check_levels(level, confidence, scope)
    tested = evidence
    if scope == "label" or evidence.groups is not None:
        tuning, tested = _parts(evidence, tuning, seed)
        if scope == "label":
            whole = evidence if evidence.groups is None else tested
            return _per_label("recall", tuning, tested, whole, level, confidence)
    cut = _recall(tuning, tested, level, confidence)
    return _of_known_labels("recall", cut, tested, level, confidence)


def promise_f(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    tuning: Evidence | None = None,
    seed: int = 0,
) -> Promised:
    """Return the threshold of the best F1 on the tuning photos, if its mean F1 is promised."""
    check_levels(level, confidence)
    tuning, tested = _parts(evidence, tuning, seed)
    cut = _shared("f", tuning, tested, level, confidence)
    return _of_known_labels("f", cut, tested, level, confidence)


def promise_tags(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    tuning: Evidence | None = None,
    seed: int = 0,
) -> Promised:
    """Return the lowest threshold at which, of all chosen labels together, ``level`` are right.

    An image gets at most as many labels as 95 % of the tuning photos would.
    """
    check_levels(level, confidence)
    tuning, tested = _parts(evidence, tuning, seed)
    cut = _shared("tags", tuning, tuning, level, 0.5, most=tuning.answers.probs.shape[1])
    sizes = (tuning.answers.probs >= (0.5 if cut is None else cut[0][0])).sum(1)
    most = max(1, ceil(float(np.quantile(sizes, 0.95))))

    def capped(side: Evidence) -> Evidence:
        kept, answers = TopK(most)(side.answers.probs), side.answers
        present, absent = answers.present & kept, answers.absent & kept
        return replace(side, answers=replace(answers, present=present, absent=absent))

    cut = _shared("tags", capped(tuning), capped(tested), level, confidence, most=most)
    made = _of_known_labels("tags", cut, tested, level, confidence)
    promises = tuple(replace(promise, at_most=most) for promise in made.promises)
    return Promised(AtMost(made.rule, most), promises, made.refused)


def _parts(evidence: Evidence, tuning: Evidence | None, seed: int) -> tuple[Evidence, Evidence]:
    if tuning is None:
        return evidence.divided(TUNING, seed)
    if evidence.groups is not None and tuning.groups is None:  # each of its photos is its own
        tuning = replace(tuning, groups=Groups.of(np.arange(len(tuning))))
    return tuning, evidence


def _log_odds(evidence: Evidence) -> Numbers:
    probs = np.asarray(evidence.answers.probs, np.float64).clip(0, 1)
    return np.asarray(logit(probs).clip(-700, 700))


def _as_probabilities(thresholds: Numbers) -> Numbers:
    return np.array([just_below(float(expit(threshold))) for threshold in thresholds])


def _shared(
    what: What,
    tuning: Evidence,
    tested: Evidence,
    level: float,
    confidence: float,
    shift: Numbers | float = 0.0,
    most: int = 1,
) -> Cut | None:
    """Return one threshold for all labels, on log-odds less ``shift`` per label."""
    offset = np.atleast_1d(shift)
    test: Test = "betting" if what == "tags" else "Hoeffding-Bentkus"
    if len(tested.names) == 1 and what in ("precision", "tags"):
        test = "exact binomial"
    own = other = _Scored(what, tested, _log_odds(tested) - offset, most)
    if tuning is not tested:
        groups = None if tested.groups is None else tuning.groups
        other = _Scored(what, replace(tuning, groups=groups), _log_odds(tuning) - offset, most)
    cut = _promised_cut(other, own, level, confidence, test)
    return None if cut is None else (_as_probabilities(cut[0] + offset), cut[1])


def _recall(
    tuning: Evidence | None,
    tested: Evidence,
    level: float,
    confidence: float,
    shift: Numbers | float = 0.0,
) -> Cut | None:
    """Return the highest threshold on log-odds less ``shift`` whose recall is promised."""
    # ``tuning`` photos set the stakes on groups, where half of the allowed loss is had.
    offset, risk = np.atleast_1d(shift), 1 - level
    scored = _Scored("recall", tested, _log_odds(tested) - offset)
    own = np.unique(scored.scores[tested.answers.present])
    test: Test = "exact binomial" if len(tested.names) == 1 else "Hoeffding-Bentkus"
    stakes = None

    def missed(side: _Scored, threshold: float) -> Numbers:
        """Return the shares below a threshold: of images that carry a label, or of groups."""
        losses, weights = side.measured(np.array([threshold]), 0.0)
        return losses[weights[:, 0] > 0]

    if tested.groups is not None:
        test = "betting"
        if tuning is not None and tuning.answers.present.any():
            other = _Scored("recall", tuning, _log_odds(tuning) - offset)
            middle = float(np.quantile(other.scores[tuning.answers.present], risk / 2))
            stakes = best_stakes(missed(other, middle) - risk, 1 - risk)

    def kept(threshold: float) -> bool:  # p-values only rise with it
        excess = missed(scored, threshold) - risk
        chance = _p_values(excess, np.ones_like(excess), risk, test, stakes)[0]
        return bool(chance <= 1 - confidence)

    rank = bisect_left(own, True, key=lambda threshold: not kept(threshold)) - 1
    if rank < 0:
        return None
    cut, losses = float(own[rank]), missed(scored, own[rank])
    observed = 1 - float(losses.mean())
    promise = scored.promise(cut, level, confidence, len(losses), observed, test)
    return _as_probabilities(cut + offset), promise


def _per_label(
    what: Literal["precision", "recall"],
    tuning: Evidence,
    tested: Evidence,
    whole: Evidence,
    level: float,
    confidence: float,
) -> Promised:
    needed = max(FEWEST, PER_ERROR_FREE * ceil(log(1 - confidence) / log(level)))
    values = np.full(len(tested.names), 0.0 if what == "recall" else NEVER)
    promises: list[Promise] = []
    refused: list[str] = []

    def add(columns: list[int], held: Evidence, who: str, shift: Numbers | float = 0.0) -> None:
        sides = tuning.columns(columns), held, level, confidence, shift
        cut = _recall(*sides) if what == "recall" else _shared(what, *sides)
        if cut is None:
            refused.append(f"{who}: {_refusal(what, held, level, confidence)}")
        else:
            values[columns] = cut[0]
            promises.append(replace(cut[1], labels=held.names))

    known = whole.answers.known.any(0)
    if not known.all():
        refused.append(_nothing_known([tested.names[k] for k in np.flatnonzero(~known)]))
    expected = tuning.answers.present.sum(0) * (len(tested) / max(len(tuning), 1))
    for k in np.flatnonzero(known & (expected >= needed)).tolist():
        add([k], whole.columns([k]), tested.names[k])
    rare = np.flatnonzero(known & (expected < needed)).tolist()
    if rare:
        shift = _interpolated(what, tuning.columns(rare), level)
        several = f"{counted(len(rare), 'label')} with few photos, together"
        add(rare, tested.columns(rare), several, shift)
    return Promised(Threshold(tuple(values.tolist())), tuple(promises), tuple(refused))


def _interpolated(what: str, part: Evidence, level: float) -> Numbers:
    """Return log-odds thresholds between each label's own and the common one."""
    scores, answers = _log_odds(part), part.answers

    def cut(rows: Numbers, present: NDArray[np.bool_], known: NDArray[np.bool_]) -> float:
        order = np.argsort(-rows[known], kind="stable")
        right = present[known][order].cumsum()
        if what == "recall":
            reached = np.flatnonzero(right >= level * max(right[-1] if len(right) else 0, 1))
            rank = int(reached[0]) if len(reached) else -1
        else:
            reached = np.flatnonzero(right >= level * np.arange(1, len(right) + 1))
            rank = int(reached[-1]) if len(reached) else 0
        return float(rows[known][order][rank]) if len(order) else 0.0

    known = answers.known
    common = cut(scores.ravel(), answers.present.ravel(), known.ravel())
    positives = answers.present.sum(0)
    weight = positives / (positives + PRIOR_POSITIVES)
    own = np.full(len(part.names), common)
    for k in np.flatnonzero(positives):
        own[k] = cut(scores[:, k], answers.present[:, k], known[:, k])
    return np.asarray(weight * own + (1 - weight) * common)


def _of_known_labels(
    what: What, cut: Cut | None, tested: Evidence, level: float, confidence: float
) -> Promised:
    if cut is None:
        never = Threshold(0.0 if what == "recall" else NEVER)
        return Promised(never, (), (_refusal(what, tested, level, confidence),))
    (value,), promise = cut
    known = tested.answers.known.any(0)
    if known.all():
        return Promised(Threshold(value), (promise,))
    rule = Threshold(value if what == "recall" else tuple(np.where(known, value, NEVER)))
    own, others = (tuple(tested.names[k] for k in np.flatnonzero(mask)) for mask in (known, ~known))
    return Promised(rule, (replace(promise, labels=own),), (_nothing_known(others),))


def _nothing_known(names: Sequence[str]) -> str:
    named = ", ".join(map(repr, names[:NAMED]))
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"nothing is promised of {named}{more}: no photo of the promise says anything about it"


@dataclass(frozen=True)
class PromisedAnswers:
    """A rule that answers images of enough certainty and leaves the others to a person."""

    rule: Rule
    measure: Measure
    least: float
    promise: Promise | None
    refused: str = ""

    def __call__(self, probs: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        values = to_numpy(probs)
        sets = np.asarray(self.rule(values))
        return sets, certainty(values, sets, self.measure) < self.least


def promise_answers(
    evidence: Evidence,
    rule: Rule,
    *,
    level: float,
    confidence: float = 0.95,
    measure: Measure = "all",
    seed: int = 0,
) -> PromisedAnswers:
    """Return which images to answer so that the answers are right, and the others to ask about.

    ``measure``: "all" counts an image as right if its whole set is; "precision" and "f" as the
    share of its chosen labels that are right, and its F1. The rule must not be fitted here.
    """
    check_levels(level, confidence)

    def graded(side: Evidence) -> _Scored:
        answers = side.answers
        sets = np.asarray(rule(answers.probs))
        if measure == "all":
            losses = ((sets != answers.present) & answers.known).any(1) * 1.0
        else:
            losses = tally(measure, answers, sets)[0]
        scores = certainty(answers.probs, sets, measure)[:, None]
        return _Scored("answers", side, scores, graded=losses)

    tuning, tested = map(graded, evidence.divided(TUNING, seed))
    test: Test = "exact binomial" if measure == "all" else "Hoeffding-Bentkus"
    cut = _promised_cut(tuning, tested, level, confidence, test)
    if cut is None:
        why = _refusal("answers", tested.evidence, level, confidence)
        return PromisedAnswers(rule, measure, np.inf, None, why)
    return PromisedAnswers(rule, measure, *cut)


def certainty(probs: Array, sets: NDArray[np.bool_], measure: Measure = "all") -> Numbers:
    """Return how right (N,) each set is expected to be, from calibrated probabilities.

    "all": log P(the whole set is right), labels being independent given the image; "precision": the
    mean probability of its labels, 1 where there is none; "f": its expected F1.
    """
    values = np.asarray(to_numpy(probs), dtype=np.float64)
    if measure == "all":
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.where(sets, values, 1 - values)).sum(1))
    if measure == "precision":
        size = sets.sum(1)
        return np.where(size > 0, (values * sets).sum(1) / np.maximum(size, 1), 1.0)
    # Hits and size are known in expectation; the law of both would cost K^3 for any set.
    table = expected_f(-np.sort(-values, axis=1), 1.0)
    size = np.minimum(sets.sum(1), table.shape[1] - 1)
    return np.asarray(table[np.arange(len(values)), size])


@dataclass(frozen=True)
class Wish:
    """A promise that is asked for: its text is ``precision=0.9`` or ``recall-per-label=90%``."""

    what: Literal["precision", "recall", "f", "tags"]
    level: float
    scope: Scope = "shared"

    def __call__(
        self, evidence: Evidence, confidence: float, tuning: Evidence | None = None, seed: int = 0
    ) -> Promised:
        """Return the rule that keeps the promise; ``tuning`` photos may have been used before."""
        options: dict[str, Any] = {"level": self.level, "confidence": confidence, "seed": seed}
        if self.what in ("precision", "recall"):
            options["scope"] = self.scope
        make, groups, answers = MAKERS[self.what], evidence.groups, evidence.answers
        made: Promised = make(evidence, tuning=tuning, **options)
        if groups is None or self.scope == "label":
            return made
        # It is also made photo by photo, to warn of what that is worth.
        others = None if tuning is None else replace(tuning, groups=None)
        by_photo = make(replace(evidence, groups=None), tuning=others, **options)
        losses, counts = tally(self.what, answers, np.asarray(by_photo.rule(answers.probs)))
        moved = losses - losses.sum() / max(float(counts.sum()), 1.0) * counts
        effect, said = groups.design_effect(moved), 1 - confidence
        wrong = error_of_photo_test(said, effect or 1.0)
        if not by_photo.promises or effect is None or wrong < FALSIFIED * said:
            return made
        photos = int(np.count_nonzero(counts))
        warning = (
            f"photos of one group resemble each other: {photos:,} that count, in "
            f"{groups.count:,} groups, say as much as {photos / effect:,.0f} independent ones "
            f"(design effect {effect:.1f}). "
            f"Tested photo by photo, {self.what} {self.level:g} could be promised with another "
            f"threshold, but such a promise fails in about {wrong:.0%} of "
            f"cases, not in {percent(said)}; so groups were tested"
        )
        return replace(made, warning=warning)


MAKERS: dict[str, Callable[..., Promised]] = {
    "precision": promise_precision,
    "recall": promise_recall,
    "f": promise_f,
    "tags": promise_tags,
}


def find_promise(text: str) -> Wish:
    """Return what a text asks to be promised.

    >>> find_promise("precision-per-label=90%")
    Wish(what='precision', level=0.9, scope='label')
    """
    name, equals, number = (piece.strip() for piece in text.partition("="))
    what = name.removesuffix("-per-label")
    if what not in MAKERS or not equals:
        raise SettingsError(
            f"a promise must be written like precision=0.9, of {', '.join(MAKERS)}, got {text!r}"
        )
    if what != name and what not in ("precision", "recall"):
        raise SettingsError(f"{what} is promised for all labels together, got {text!r}")
    try:
        value = float(number.removesuffix("%"))
    except ValueError:
        raise SettingsError(f"the level of a promise must be a number, got {text!r}") from None
    level = value / 100 if number.endswith("%") or value > 1 else value
    check_levels(level, 0.5)
    return Wish(what, level, "shared" if what == name else "label")  # type: ignore[arg-type]


def check_cross_fit(wish: Wish, calibrator: str) -> None:
    """Raise where a promise cannot be cross-fitted with a calibrator of this name."""
    if calibrator == "none":
        raise SettingsError("cross-fitting is of a calibrator; name one, such as platt")
    if wish.what == "tags":
        raise SettingsError(
            "tags take the most probable labels, which cross-fitting would change; leave it out"
        )


def same_sets(
    rule: Rule, before: "Link", after: "Link", logits: Values, names: Sequence[str]
) -> Threshold:
    """Return the thresholds under one link that choose the sets a rule chooses under another.

    With strictly rising links  p_k >= t_k  before  <=>  p'_k >= after(before^-1(t_k))  after. Sets
    of rows with these ``logits`` (N, K) stay the same whatever is rounded.
    """
    if not isinstance(rule, Threshold) or before.couples_labels or after.couples_labels:
        raise SettingsError(
            "only thresholds on links of single labels can be cross-fitted; promise without it"
        )
    given = np.broadcast_to(np.asarray(rule.value, dtype=np.float64), len(names))
    inside = (given > 0) & (given < 1)
    places = before.logits_at(np.where(inside, given, 0.5))
    for link in (before, after):
        low, high = (link.log_odds(places + move) for move in (-NEAR, NEAR))
        flat = np.flatnonzero(inside & ~(low < high))
        if len(flat):
            where = f"at the threshold of {names[flat[0]]!r}"
            way = "use platt, temperature or beta, or promise without cross-fitting"
            raise SettingsError(f"the calibrator must rise, and {where} it does not; {way}")
    chosen = rule(before.decision_probs(logits))
    values = logits.astype(np.float64)
    least = np.where(chosen, values, np.inf).min(0).clip(-FAR, FAR)
    most = np.where(chosen, -np.inf, values).max(0).clip(-FAR, FAR)
    above, below = (after.decision_probs(side) for side in (least, most))
    moved = np.minimum(after.decision_probs(places), above)
    moved = np.where(moved > below, moved, above)  # rounding keeps each photo on its side
    return Threshold(tuple(np.where(inside, moved, given).tolist()))

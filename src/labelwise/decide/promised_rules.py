"""Rules that keep a promise on new photos, and promises that are asked for by their text.

Each function takes the photos the promise is made on (:class:`Evidence`) and walks a sequence of
candidates, safest first, testing each ("risk > 1 - level") until one cannot be rejected. Where
the risk need not fall along the way (precision, F, answers) the sequence is set on a ``tuning``
share of the photos, which then enter no test: it starts at the candidate with the most evidence
and goes on to lower thresholds, which choose more. Recall only falls as the threshold rises, so
all photos are tested, at all thresholds without a price (Bates et al., 2021), unless thresholds of
rare labels have to be set against each other first, or photos come in groups, of which some set
the stakes. Photos in groups are divided and tested by whole groups (:mod:`fixed_sequence`).

Per label, a label with enough photos has a promise of its own. The others have one together, on
average over them, with thresholds that shrink from the label's own towards the common one, the
less is known of it (as Interp-Q of Ding et al., 2025, does for sets), moved together until the
promise holds.

A label of which no photo of the promise knows anything is promised nothing: it is left out of the
promise, and where what is chosen has to be right, it is never chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.fixed_sequence import (
    Graded,
    Numbers,
    Risk,
    ScoredEntries,
    Test,
    check_levels,
    f_loss,
    graded_loss,
    made_promise,
    p_values,
    promised_cut,
    refusal,
    with_group_facts,
    wrong_entries,
    wrong_share,
)
from labelwise.decide.promises import Evidence, Promise, What, percent, tally
from labelwise.decide.rules import NEVER, AtMost, Rule, Threshold, TopK, expected_f, just_below
from labelwise.errors import SettingsError
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.bounds import best_stakes
from labelwise.numeric.groups import Groups, error_of_photo_test
from labelwise.numeric.special import expit, logit
from labelwise.system.text import counted

Scope = Literal["shared", "label"]
Measure = Literal["all", "precision", "f"]
Cut = tuple[Numbers, Promise]  # thresholds on probabilities: (1,) for all labels, or (K,)
PRIOR_POSITIVES = 20  # of a rare label, at which its own threshold weighs as much as the common
FEWEST = 60  # positives that are expected of a label for a promise of its own, and at least
NAMED = 5  # labels of a sentence
PER_ERROR_FREE = 5  # times the photos that would be needed without a single error
FALSIFIED = 1.5  # times the error that is stated, from which groups are worth a warning


@dataclass(frozen=True)
class Promised:
    """A rule, what it promises, and in words what could not be promised.

    ``warning`` says what a promise photo by photo would have been worth, where photos come in
    groups that make it false.
    """

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
    tuning_share: float = 0.2,
    seed: int = 0,
) -> Promised:
    """Return the lowest threshold of which the precision is promised.

    ``scope="shared"`` promises the share of right labels of an image, on average over the images
    that get one; "label" the share of right images of each label. Each promise of a label holds
    with ``confidence`` by itself.
    """
    check_levels(level, confidence, scope)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    if scope == "label":
        return _per_label("precision", tuning, tested, tested, level, confidence)
    cut = _shared("precision", wrong_share, tuning, tested, level, confidence)
    return _of_known_labels("precision", cut, tested, level, confidence)


def promise_recall(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    scope: Scope = "shared",
    tuning: Evidence | None = None,
    tuning_share: float = 0.2,
    seed: int = 0,
) -> Promised:
    """Return the highest threshold of which the recall is promised.

    ``scope="shared"`` promises the share of an image's labels that are chosen, on average over
    images that carry one; "label" the share of each label's images. Tuning photos say how the
    thresholds of rare labels differ, which alone needs them; all photos test all others.
    """
    check_levels(level, confidence, scope)
    if scope == "shared" and evidence.groups is None:
        cut = _recall(None, evidence, level, confidence)
        return _of_known_labels("recall", cut, evidence, level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    if scope == "shared":
        cut = _recall(tuning, tested, level, confidence)
        return _of_known_labels("recall", cut, tested, level, confidence)
    whole = tested if evidence.groups is not None else evidence
    return _per_label("recall", tuning, tested, whole, level, confidence)


def promise_f(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    tuning: Evidence | None = None,
    tuning_share: float = 0.2,
    seed: int = 0,
) -> Promised:
    """Return the threshold of the best F1 on the tuning photos, if its mean F1 is promised."""
    check_levels(level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    cut = _shared("f", f_loss, tuning, tested, level, confidence, only_start=True)
    return _of_known_labels("f", cut, tested, level, confidence)


def promise_tags(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    tuning: Evidence | None = None,
    tuning_share: float = 0.2,
    seed: int = 0,
) -> Promised:
    """Return the lowest threshold at which, of all chosen labels together, ``level`` are right.

    The labels of a photo come together, so photos are what is counted; an image gets at most as
    many labels as 95 % of the tuning photos would.
    """
    check_levels(level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    cut = _shared("tags", wrong_entries(tuning.answers.probs.shape[1]), tuning, tuning, level, 0.5)
    sizes = (tuning.answers.probs >= (0.5 if cut is None else cut[0][0])).sum(1)
    most = max(1, ceil(float(np.quantile(sizes, 0.95))))
    capped = _capped(tuning, most), _capped(tested, most)
    cut = _shared("tags", wrong_entries(most), *capped, level, confidence)
    made = _of_known_labels("tags", cut, tested, level, confidence)
    promises = tuple(replace(promise, at_most=most) for promise in made.promises)
    return Promised(AtMost(made.rule, most), promises, made.refused)


def _shared(
    what: What,
    measure: Risk,
    tuning: Evidence,
    tested: Evidence,
    level: float,
    confidence: float,
    *,
    only_start: bool = False,
    shift: Numbers | None = None,
) -> Cut | None:
    """Return one threshold for all labels, on log-odds less ``shift`` per label."""
    offset = np.zeros(1) if shift is None else shift
    test: Test = "betting" if what == "tags" else "Hoeffding-Bentkus"
    if len(tested.names) == 1 and what in ("precision", "tags"):
        test = "exact binomial"

    def scored(side: Evidence) -> tuple[Evidence, ScoredEntries]:
        groups = None if tested.groups is None else side.groups
        entries = side.answers.present, side.answers.absent
        return side, ScoredEntries(_log_odds(side) - offset, *entries, groups)

    sides = scored(tuning), scored(tested)
    cut = promised_cut(what, measure, *sides, level, confidence, test, only_start)
    return None if cut is None else (_as_probabilities(cut[0] + offset), cut[1])


def _recall(
    tuning: Evidence | None,
    tested: Evidence,
    level: float,
    confidence: float,
    shift: Numbers | None = None,
) -> Cut | None:
    """Return the highest threshold on log-odds less ``shift`` whose recall is promised.

    Losses and p-values only rise with it, so it is bisected. ``tuning`` photos set the stakes on
    groups, where half of the allowed loss is had, and are not tested.
    """
    offset = np.zeros(1) if shift is None else shift
    scores, present, risk = _log_odds(tested) - offset, tested.answers.present, 1 - level
    own = np.unique(scores[present])
    test: Test = "exact binomial" if present.shape[1] == 1 else "Hoeffding-Bentkus"
    stakes = None
    if tested.groups is not None:
        test = "betting"
        if tuning is not None and tuning.answers.present.any():
            others = _log_odds(tuning) - offset
            middle = float(np.quantile(others[tuning.answers.present], risk / 2))
            stakes = best_stakes((_missed(tuning, others, middle)[0] - risk)[:, None], 1 - risk)

    def kept(threshold: float) -> bool:
        excess = (_missed(tested, scores, threshold)[0] - risk)[:, None]
        return bool(p_values(excess, np.ones_like(excess), risk, test, stakes)[0] <= 1 - confidence)

    if not len(own) or not kept(own[0]):
        return None
    passed, failed = 0, len(own)
    while failed - passed > 1:
        middle_rank = (passed + failed) // 2
        passed, failed = (middle_rank, failed) if kept(own[middle_rank]) else (passed, middle_rank)
    losses, each, carries = _missed(tested, scores, own[passed])
    value = 1 - float(losses.mean())
    made = made_promise("recall", tested, level, confidence, len(losses), value, test)
    if tested.groups is not None:
        made = with_group_facts(made, tested.groups, each, carries.astype(np.float64))
    return _as_probabilities(float(own[passed]) + offset), made


def _missed(
    evidence: Evidence, scores: Numbers, threshold: float
) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
    """Return the shares of labels below a threshold: of images that carry one, or of their groups.

    Then the same of all images (N,), and which of them carry a label.
    """
    present, groups = evidence.answers.present, evidence.groups
    held = present.sum(1)
    above = (present & (scores >= threshold)).sum(1)
    losses, carries = np.where(held > 0, 1 - above / np.maximum(held, 1), 0.0), held > 0
    if groups is None:
        return losses[carries], losses, carries
    return groups.ratios(losses, carries)[groups.counted(carries) > 0], losses, carries


def _per_label(
    what: Literal["precision", "recall"],
    tuning: Evidence,
    tested: Evidence,
    whole: Evidence,
    level: float,
    confidence: float,
) -> Promised:
    """Return a threshold per label; ``whole`` are all photos, for labels that need no tuning."""
    needed = max(FEWEST, PER_ERROR_FREE * ceil(log(1 - confidence) / log(level)))
    values = np.full(len(tested.names), 0.0 if what == "recall" else NEVER)
    promises: list[Promise] = []
    refused: list[str] = []

    def add(columns: list[int], held: Evidence, who: str, shift: Numbers | None = None) -> None:
        own = tuning.columns(columns)
        if what == "recall":
            cut = _recall(own, held, level, confidence, shift)
        else:
            cut = _shared(what, wrong_share, own, held, level, confidence, shift=shift)
        if cut is None:
            refused.append(f"{who}: {refusal(what, held, level, confidence)}")
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
    own = [
        cut(scores[:, k], answers.present[:, k], known[:, k]) if positives[k] else common
        for k in range(len(part.names))
    ]
    return np.asarray(weight * np.array(own) + (1 - weight) * common)


def _of_known_labels(
    what: What, cut: Cut | None, tested: Evidence, level: float, confidence: float
) -> Promised:
    """Return the rule of one threshold, and what is promised of the labels that photos know."""
    if cut is None:
        never = Threshold(0.0 if what == "recall" else NEVER)
        return Promised(never, (), (refusal(what, tested, level, confidence),))
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


def _capped(evidence: Evidence, most: int) -> Evidence:
    """Return the evidence without all but the ``most`` most probable labels of an image."""
    answers = evidence.answers
    kept = TopK(most)(answers.probs)
    present, absent = answers.present & kept, answers.absent & kept
    return replace(evidence, answers=replace(answers, present=present, absent=absent))


def _parts(
    evidence: Evidence, tuning: Evidence | None, share: float, seed: int
) -> tuple[Evidence, Evidence]:
    if tuning is None:
        return evidence.divided(share, seed)
    if evidence.groups is not None and tuning.groups is None:  # each of its photos is its own
        tuning = replace(tuning, groups=Groups.of(np.arange(len(tuning))))
    return tuning, evidence


def _log_odds(evidence: Evidence) -> Numbers:
    probs = np.clip(np.asarray(evidence.answers.probs, dtype=np.float64), 0, 1)
    return np.asarray(np.clip(logit(probs), -700, 700))


def _as_probabilities(thresholds: Numbers) -> Numbers:
    return np.array([just_below(float(expit(threshold))) for threshold in thresholds])


@dataclass(frozen=True)
class PromisedAnswers:
    """A rule that answers images of enough certainty and leaves the others to a person."""

    rule: Rule
    measure: Measure
    least: float
    promise: Promise | None
    refused: str = ""

    def __call__(self, probs: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the sets (N, K), and for which images (N,) a person should be asked."""
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
    tuning_share: float = 0.2,
    seed: int = 0,
) -> PromisedAnswers:
    """Return which images to answer so that the answers are right, and the others to ask about.

    ``measure``: "all" counts an image as right if its whole set is; "precision" and "f" as the
    share of its chosen labels that are right, and its F1. The rule must not be fitted here.
    """
    check_levels(level, confidence)

    def graded(side: Evidence) -> tuple[Evidence, Graded]:
        answers = side.answers
        sets = np.asarray(rule(answers.probs))
        if measure == "all":
            losses = ((sets != answers.present) & answers.known).any(1) * 1.0
        else:
            losses = tally(measure, answers, sets)[0]
        return side, Graded(certainty(answers.probs, sets, measure), losses, side.groups)

    tuning, tested = map(graded, evidence.divided(tuning_share, seed))
    test: Test = "exact binomial" if measure == "all" else "Hoeffding-Bentkus"
    cut = promised_cut("answers", graded_loss, tuning, tested, level, confidence, test)
    if cut is None:
        why = refusal("answers", tested[0], level, confidence)
        return PromisedAnswers(rule, measure, np.inf, None, why)
    return PromisedAnswers(rule, measure, *cut)


def certainty(probs: Array, sets: NDArray[np.bool_], measure: Measure = "all") -> Numbers:
    """Return how right (N,) each set is expected to be, from calibrated probabilities.

    "all" is the log of the chance that the whole set is right, labels being independent given
    the image; "precision" the mean probability of its labels, 1 where there is none; "f" its
    expected F1.
    """
    values = np.asarray(to_numpy(probs), dtype=np.float64)
    if measure == "all":
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.where(sets, values, 1 - values)).sum(1))
    if measure == "precision":
        size = sets.sum(1)
        return np.where(size > 0, (values * sets).sum(1) / np.maximum(size, 1), 1.0)
    # Hits and size are known in expectation; the law of both would cost K^3 for any set.
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    table = expected_f(ranked, 1.0)
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
        """Return the rule that keeps the promise; ``tuning`` photos may have been used before.

        Where photos come in groups, it is also made photo by photo, to say what that is worth.
        """
        made = self._made(evidence, confidence, tuning, seed)
        if evidence.groups is None:
            return made
        alone, others = evidence.ungrouped(), None if tuning is None else tuning.ungrouped()
        by_photo = self._made(alone, confidence, others, seed)
        if not by_photo.promises or self.scope == "label":
            return made
        warning = photo_warning(by_photo.promises[0], by_photo.rule, evidence)
        return replace(made, warning=warning)

    def _made(
        self, evidence: Evidence, confidence: float, tuning: Evidence | None, seed: int
    ) -> Promised:
        options: dict[str, Any] = {"level": self.level, "confidence": confidence}
        options |= {"tuning": tuning, "seed": seed}
        if self.what in ("precision", "recall"):
            promise = promise_precision if self.what == "precision" else promise_recall
            return promise(evidence, scope=self.scope, **options)
        return (promise_f if self.what == "f" else promise_tags)(evidence, **options)


def find_promise(text: str) -> Wish:
    """Return what a text asks to be promised.

    >>> find_promise("precision-per-label=90%")
    Wish(what='precision', level=0.9, scope='label')
    """
    name, equals, number = text.partition("=")
    what = name.strip().removesuffix("-per-label")
    whats = ("precision", "recall", "f", "tags")
    if what not in whats or not equals:
        raise SettingsError(
            f"a promise must be written like precision=0.9, of {', '.join(whats)}, got {text!r}"
        )
    per_label = what != name.strip()
    if per_label and what not in ("precision", "recall"):
        raise SettingsError(f"{what} is promised for all labels together, got {text!r}")
    try:
        value = float(number.strip().removesuffix("%"))
    except ValueError:
        raise SettingsError(f"the level of a promise must be a number, got {text!r}") from None
    level = value / 100 if number.strip().endswith("%") or value > 1 else value
    check_levels(level, 0.5)
    return Wish(what, level, "label" if per_label else "shared")  # type: ignore[arg-type]


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

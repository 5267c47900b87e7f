"""Rules that keep a promise on new photos.

Each function takes the photos the promise is made on (:class:`Evidence`) and walks a sequence of
candidates, safest first, testing each ("risk > 1 - level") until one cannot be rejected. Where
the risk need not fall along the way (precision, F) the sequence is set on a ``tuning``
share of the photos, which then enter no test: it starts at the candidate with the most evidence
and goes on to lower thresholds, which choose more. Recall only falls as the threshold rises, so
all photos are tested, at all thresholds (``recall_threshold``), unless thresholds of rare labels
have to be set against each other first, or photos come in groups, of which some set the stakes.
Photos in groups are divided and tested by whole groups (:mod:`groups`).

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
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.fixed_sequence import (
    EASY,
    Numbers,
    Risk,
    ScoredEntries,
    Test,
    candidate_sequence,
    check_levels,
    f_loss,
    made_promise,
    refusal,
    walk,
    wrong_entries,
    wrong_share,
)
from labelwise.decide.groups import by_whole_groups, with_group_facts
from labelwise.decide.promises import Evidence, Promise, What
from labelwise.decide.rules import NEVER, AtMost, Rule, Threshold, TopK, just_below
from labelwise.numeric.bounds import (
    best_stakes,
    betting_p_values,
    binomial_p_values,
    hoeffding_bentkus_p_values,
)
from labelwise.numeric.groups import Groups
from labelwise.numeric.special import expit, logit
from labelwise.system.text import counted

# The highest threshold whose recall is promised: losses only rise with it, so it is bisected.
#
# Every threshold is tested on the same photos without a price (Bates et al., 2021), as the
# p-values rise with the threshold too. Photos in groups are tested by whole groups
# (:mod:`groups`), with a stake that other groups set where half of the allowed loss is had.


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
    present_above = (present & (scores >= threshold)).sum(1)
    return np.where(held > 0, 1 - present_above / np.maximum(held, 1), 0.0), held > 0


def _stakes(tuning: Evidence, scores: Numbers, risk: float) -> Numbers | None:
    """Return the stake that grows most on other groups, where half of the allowed loss is had."""
    present = tuning.answers.present
    if not present.any():
        return None
    losses = _losses(tuning, scores, float(np.quantile(scores[present], risk / 2)))
    return best_stakes((losses - risk)[:, None], 1 - risk)


Scope = Literal["shared", "label"]
PRIOR_POSITIVES = 20  # of a rare label, at which its own threshold weighs as much as the common
FEWEST = 60  # positives that are expected of a label for a promise of its own, and at least
NAMED = 5  # labels of a sentence
PER_ERROR_FREE = 5  # times the photos that would be needed without a single error


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
    if scope == "shared":
        made = _shared("precision", wrong_share, tuning, tested, level, confidence)
        return _of_known_labels(made, tested)
    return _per_label("precision", tuning, tested, level, confidence)


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
        return _shared_recall(evidence, None, level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    if scope == "shared":
        return _shared_recall(tested, tuning, level, confidence)
    whole = tested if evidence.groups is not None else evidence
    return _per_label("recall", tuning, tested, level, confidence, whole=whole)


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
    made = _shared("f", f_loss, tuning, tested, level, confidence, only_start=True)
    return _of_known_labels(made, tested)


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
    rule = _shared("tags", wrong_entries(tuning.answers.probs.shape[1]), tuning, tuning, level, 0.5)
    value = rule.rule.value if isinstance(rule.rule, Threshold) and rule.promises else 0.5
    sizes = (tuning.answers.probs >= value).sum(1)
    most = max(1, ceil(float(np.quantile(sizes, 0.95))))
    capped = _capped(tuning, most), _capped(tested, most)
    made = _shared("tags", wrong_entries(most), *capped, level, confidence)
    made = _of_known_labels(made, tested)
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
) -> Promised:
    """Return one threshold for all labels, on log-odds less ``shift`` per label."""
    offset = np.zeros(len(tested.names)) if shift is None else shift
    parts = [
        ScoredEntries(_log_odds(e) - offset, e.answers.present, e.answers.absent, e.groups)
        for e in (tuning, tested)
    ]
    test: Test = "betting" if what == "tags" else "Hoeffding-Bentkus"
    if len(tested.names) == 1 and what in ("precision", "tags"):
        test = "exact binomial"
    scale, alone = len(tested) / max(len(tuning), 1), measure
    if tested.groups is not None and tuning.groups is not None:
        measure, test = by_whole_groups(alone), "betting"
        scale = tested.groups.count / tuning.groups.count
    easy = 0.0 if only_start or test == "betting" else EASY
    candidates = candidate_sequence(parts[0], measure, 1 - level, 1 - confidence, scale, easy)
    cut = walk(
        parts[1],
        measure,
        candidates[:1] if only_start else candidates,
        1 - level,
        1 - confidence,
        test,
        tuning=None if tuning is tested else parts[0],
    )
    if cut is None:
        return Promised(Threshold(NEVER), (), (refusal(what, tested, level, confidence),))
    threshold, counted, risk = cut
    promise = made_promise(what, tested, level, confidence, counted, 1 - risk, test)
    if tested.groups is not None:
        lost, weights = (side[:, 0] for side in alone(parts[1], np.array([threshold]), 0.0))
        promise = with_group_facts(promise, tested.groups, lost, weights)
    values = [_as_probability(threshold + move) for move in offset]
    rule = Threshold(values[0] if shift is None else tuple(values))
    return Promised(rule, (promise,))


def _per_label(
    what: Literal["precision", "recall"],
    tuning: Evidence,
    tested: Evidence,
    level: float,
    confidence: float,
    whole: Evidence | None = None,
) -> Promised:
    """Return a threshold per label; ``whole`` are all photos, for labels that need no tuning."""
    names = tested.names
    needed = max(FEWEST, PER_ERROR_FREE * ceil(log(1 - confidence) / log(level)))
    values = [0.0 if what == "recall" else NEVER] * len(names)
    promises: list[Promise] = []
    refused: list[str] = []
    rare = []
    known = _known_labels(tested if whole is None else whole)
    if not known.all():
        refused.append(_nothing_known([names[k] for k in np.flatnonzero(~known)]))
    for k in np.flatnonzero(known).tolist():
        column, held = tuning.columns([k]), (tested if whole is None else whole).columns([k])
        scale = len(tested) / max(len(tuning), 1)
        if column.answers.present.sum() * scale < needed:
            rare.append(k)
            continue
        if what == "recall":
            threshold, promise = _recall(held, column, level, confidence)
            made = Promised(
                Threshold(_as_probability(threshold)), () if promise is None else (promise,)
            )
        else:
            made = _shared(what, wrong_share, column, held, level, confidence)
        if (
            made.promises
            and isinstance(made.rule, Threshold)
            and isinstance(made.rule.value, float)
        ):
            values[k] = made.rule.value
            promises += [replace(p, labels=(names[k],)) for p in made.promises]
        else:
            refused.append(f"{names[k]}: {refusal(what, held, level, confidence)}")
    if rare:
        pool, common = tested.columns(rare), tuning.columns(rare)
        shift = _interpolated(what, common, level)
        if what == "recall":
            threshold, promise = _recall(pool, common, level, confidence, shift)
            made = Promised(
                Threshold(tuple(_as_probability(threshold + move) for move in shift)),
                () if promise is None else (promise,),
            )
        else:
            made = _shared(what, wrong_share, common, pool, level, confidence, shift=shift)
        if made.promises and isinstance(made.rule, Threshold):
            for k, value in zip(rare, np.broadcast_to(made.rule.value, len(rare)), strict=True):
                values[k] = float(value)
            promises += [replace(p, labels=pool.names) for p in made.promises]
        else:
            several = f"{counted(len(rare), 'label')} with few photos, together"
            refused.append(f"{several}: {refusal(what, pool, level, confidence)}")
    return Promised(Threshold(tuple(values)), tuple(promises), tuple(refused))


def _shared_recall(
    tested: Evidence, tuning: Evidence | None, level: float, confidence: float
) -> Promised:
    threshold, promise = _recall(tested, tuning, level, confidence)
    if promise is None:
        return Promised(Threshold(0.0), (), (refusal("recall", tested, level, confidence),))
    return _of_known_labels(Promised(Threshold(_as_probability(threshold)), (promise,)), tested)


def _recall(
    tested: Evidence,
    tuning: Evidence | None,
    level: float,
    confidence: float,
    shift: Numbers | float = 0.0,
) -> tuple[float, Promise | None]:
    """Return the highest threshold on log-odds less ``shift`` whose recall is promised."""
    other = None if tuning is None else (tuning, _log_odds(tuning) - shift)
    return recall_threshold(tested, _log_odds(tested) - shift, level, confidence, other)


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

    known = answers.present | answers.absent
    common = cut(scores.ravel(), answers.present.ravel(), known.ravel())
    positives = answers.present.sum(0)
    weight = positives / (positives + PRIOR_POSITIVES)
    own = [
        cut(scores[:, k], answers.present[:, k], known[:, k]) if positives[k] else common
        for k in range(len(part.names))
    ]
    return np.asarray(weight * np.array(own) + (1 - weight) * common)


def _of_known_labels(made: Promised, tested: Evidence) -> Promised:
    """Return what is promised of the labels that photos know, of a rule of one threshold."""
    known, rule = _known_labels(tested), made.rule
    if known.all() or not made.promises or not isinstance(rule, Threshold):
        return made
    if made.promises[0].what != "recall":
        rule = Threshold(tuple(np.where(known, rule.value, NEVER).tolist()))
    own, others = (tuple(tested.names[k] for k in np.flatnonzero(mask)) for mask in (known, ~known))
    promises = tuple(replace(promise, labels=own) for promise in made.promises)
    return replace(made, rule=rule, promises=promises, refused=(_nothing_known(others),))


def _known_labels(evidence: Evidence) -> NDArray[np.bool_]:
    """Return of which labels (K,) some photo says whether it carries them."""
    return np.asarray((evidence.answers.present | evidence.answers.absent).any(0), np.bool_)


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


def _as_probability(threshold: float) -> float:
    return just_below(float(expit(threshold)))

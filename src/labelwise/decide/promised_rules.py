"""Rules that keep a promise on new photos.

Each function takes the photos the promise is made on (:class:`Evidence`) and walks a sequence of
candidates, safest first, testing each ("risk > 1 - level") until one cannot be rejected. Where
the risk need not fall along the way (precision, F) the sequence is set on a ``tuning``
share of the photos, which then enter no test: it starts at the candidate with the most evidence
and goes on to lower thresholds, which choose more. Recall only falls as the threshold rises, so
all photos are tested, at all thresholds (Bates et al., 2021), unless thresholds of rare labels
have to be set against each other first.

Per label, a label with enough photos has a promise of its own. The others have one together, on
average over them, with thresholds that shrink from the label's own towards the common one, the
less is known of it (as Interp-Q of Ding et al., 2025, does for sets), moved together until the
promise holds.
"""

from dataclasses import dataclass, replace
from math import ceil, log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from labelwise.decide.promises import Evidence, Promise, What
from labelwise.decide.rules import NEVER, AtMost, Rule, Threshold, TopK, just_below
from labelwise.decide.sequences import (
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
from labelwise.errors import SettingsError
from labelwise.numeric.bounds import binomial_p_values, hoeffding_bentkus_p_values
from labelwise.system.text import counted

__all__ = [
    "Promised",
    "Wish",
    "find_promise",
    "promise_f",
    "promise_precision",
    "promise_recall",
    "promise_tags",
]

Scope = Literal["shared", "label"]
PRIOR_POSITIVES = 20  # of a rare label, at which its own threshold weighs as much as the common
FEWEST = 60  # positives that are expected of a label for a promise of its own, and at least
PER_ERROR_FREE = 5  # times the photos that would be needed without a single error


@dataclass(frozen=True)
class Promised:
    """A rule, what it promises, and in words what could not be promised."""

    rule: Rule
    promises: tuple[Promise, ...]
    refused: tuple[str, ...] = ()


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
        return _shared("precision", wrong_share, tuning, tested, level, confidence)
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
    if scope == "shared":
        threshold, promise = _recall(evidence, _log_odds(evidence), level, confidence)
        if promise is None:
            return Promised(Threshold(0.0), (), (refusal("recall", evidence, level, confidence),))
        return Promised(Threshold(_as_probability(threshold)), (promise,))
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    return _per_label("recall", tuning, tested, level, confidence, whole=evidence)


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
    return _shared("f", f_loss, tuning, tested, level, confidence, only_start=True)


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
    found = _shared(
        "tags", wrong_entries(tuning.answers.probs.shape[1]), tuning, tuning, level, 0.5
    )
    value = found.rule.value if isinstance(found.rule, Threshold) and found.promises else 0.5
    sizes = (tuning.answers.probs >= value).sum(1)
    most = max(1, ceil(float(np.quantile(sizes, 0.95))))
    tuning, tested = _capped(tuning, most), _capped(tested, most)
    made = _shared("tags", wrong_entries(most), tuning, tested, level, confidence)
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
        ScoredEntries(_log_odds(e) - offset, e.answers.present, e.answers.absent)
        for e in (tuning, tested)
    ]
    test: Test = "betting" if what == "tags" else "Hoeffding-Bentkus"
    if len(tested.names) == 1 and what in ("precision", "tags"):
        test = "exact binomial"
    scale = len(tested) / max(len(tuning), 1)
    easy = 0.0 if only_start or what == "tags" else EASY
    candidates = candidate_sequence(parts[0], measure, 1 - level, 1 - confidence, scale, easy)
    found = walk(
        parts[1],
        measure,
        candidates[:1] if only_start else candidates,
        1 - level,
        1 - confidence,
        test,
        tuning=None if tuning is tested else parts[0],
    )
    if found is None:
        return Promised(Threshold(NEVER), (), (refusal(what, tested, level, confidence),))
    threshold, counted, risk = found
    promise = made_promise(what, tested, level, confidence, counted, 1 - risk, test)
    values = [_as_probability(threshold + move) for move in offset]
    rule = Threshold(values[0] if shift is None else tuple(values))
    return Promised(rule, (promise,))


def _recall(
    evidence: Evidence, scores: Numbers, level: float, confidence: float
) -> tuple[float, Promise | None]:
    """Return the highest threshold on the scores whose recall is promised."""
    present = evidence.answers.present
    held = present.sum(1)
    rows = held > 0
    own = np.unique(scores[present])
    binary = present.shape[1] == 1

    def losses_at(place: int) -> Numbers:
        found = (present[rows] & (scores[rows] >= own[place])).sum(1)
        return np.asarray(1 - found / held[rows])

    def kept(place: int) -> bool:
        losses = losses_at(place)
        if binary:
            p = binomial_p_values(np.rint(losses.sum()), np.array(len(losses)), 1 - level)
        else:
            count = np.array(len(losses))
            p = hoeffding_bentkus_p_values(losses.mean(), count, 1 - level)
        return bool(np.all(p <= 1 - confidence))

    if not len(own) or not kept(0):
        return -np.inf, None
    passed, failed = 0, len(own)  # losses only rise, so the last that keeps it is bisected
    while failed - passed > 1:
        middle = (passed + failed) // 2
        passed, failed = (middle, failed) if kept(middle) else (passed, middle)
    test = "exact binomial" if binary else "Hoeffding-Bentkus"
    value = 1 - float(losses_at(passed).mean())
    counted = int(np.count_nonzero(rows))
    made = made_promise("recall", evidence, level, confidence, counted, value, test)
    return float(own[passed]), made


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
    for k in range(len(names)):
        part, held = tuning.columns([k]), (tested if whole is None else whole).columns([k])
        scale = len(tested) / max(len(tuning), 1)
        if part.answers.present.sum() * scale < needed:
            rare.append(k)
            continue
        if what == "recall":
            threshold, promise = _recall(held, _log_odds(held), level, confidence)
            made = Promised(
                Threshold(_as_probability(threshold)), () if promise is None else (promise,)
            )
        else:
            made = _shared(what, wrong_share, part, held, level, confidence)
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
            threshold, promise = _recall(pool, _log_odds(pool) - shift, level, confidence)
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


def _interpolated(what: str, part: Evidence, level: float) -> Numbers:
    """Return log-odds thresholds between each label's own and the common one."""
    scores, answers = _log_odds(part), part.answers

    def cut(rows: Numbers, present: NDArray[np.bool_], known: NDArray[np.bool_]) -> float:
        order = np.argsort(-rows[known], kind="stable")
        right = present[known][order].cumsum()
        if what == "recall":
            reached = np.flatnonzero(right >= level * max(right[-1] if len(right) else 0, 1))
            place = int(reached[0]) if len(reached) else -1
        else:
            reached = np.flatnonzero(right >= level * np.arange(1, len(right) + 1))
            place = int(reached[-1]) if len(reached) else 0
        return float(rows[known][order][place]) if len(order) else 0.0

    known = answers.present | answers.absent
    common = cut(scores.ravel(), answers.present.ravel(), known.ravel())
    positives = answers.present.sum(0)
    weight = positives / (positives + PRIOR_POSITIVES)
    own = [
        cut(scores[:, k], answers.present[:, k], known[:, k]) if positives[k] else common
        for k in range(len(part.names))
    ]
    return np.asarray(weight * np.array(own) + (1 - weight) * common)


def _capped(evidence: Evidence, most: int) -> Evidence:
    """Return the evidence without all but the ``most`` most probable labels of an image."""
    answers = evidence.answers
    kept = TopK(most)(answers.probs)
    present, absent = answers.present & kept, answers.absent & kept
    return replace(evidence, answers=replace(answers, present=present, absent=absent))


def _parts(
    evidence: Evidence, tuning: Evidence | None, share: float, seed: int
) -> tuple[Evidence, Evidence]:
    return (tuning, evidence) if tuning is not None else evidence.divided(share, seed)


def _log_odds(evidence: Evidence) -> Numbers:
    probs = np.clip(np.asarray(evidence.answers.probs, dtype=np.float64), 0, 1)
    return np.asarray(np.clip(logit(probs), -700, 700))


def _as_probability(threshold: float) -> float:
    return just_below(float(expit(threshold)))

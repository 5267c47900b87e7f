"""Rules, lists and answers that keep a promise on new photos.

Each function takes the photos the promise is made on (:class:`Evidence`) and walks a sequence of
candidates, safest first, testing each ("risk > 1 - level") until one cannot be rejected. Where
the risk need not fall along the way (precision, F, lists) the sequence is set on a ``tuning``
share of the photos, which then enter no test: it starts at the candidate with the most evidence
and goes on to lower thresholds, which choose more. Recall only falls as the threshold rises, so
all photos are tested, at all thresholds (Bates et al., 2021).

Per label, a label with enough photos has a promise of its own. The others have one together, on
average over them, with thresholds that shrink from the label's own towards the common one, the
less is known of it (as Interp-Q of Ding et al., 2025, does for sets), moved together until the
promise holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from labelwise.decide.arrays import Answers, Matrix, as_numpy
from labelwise.decide.bounds import (
    betting_p_values,
    binomial_p_values,
    first_failure,
    hoeffding_bentkus_p_values,
)
from labelwise.decide.promises import Evidence, Promise, What
from labelwise.decide.rules import NEVER, AtMost, Rule, Threshold, TopK, expected_f, just_below
from labelwise.errors import SettingsError

__all__ = [
    "Promised",
    "PromisedAnswers",
    "PromisedList",
    "Wish",
    "certainty",
    "find_promise",
    "list_candidates",
    "promise_answers",
    "promise_f",
    "promise_list",
    "promise_precision",
    "promise_recall",
    "promise_tags",
]

Numbers = NDArray[np.float64]
Scope = Literal["shared", "label"]
Test = Literal["exact binomial", "Hoeffding-Bentkus", "betting"]
COARSE, FINE = 120, 80  # candidates on the tuning photos, and on the others
PRIOR_POSITIVES = 20  # of a rare label, at which its own threshold weighs as much as the common
EASY = 1e-3  # times delta: the p-value that the first candidate is expected to have
FEWEST = 60  # positives that are expected of a label for a promise of its own, and at least
DOUBT = 0.3  # log-odds by which the expected error of a list may be off
PER_ERROR_FREE = 5  # times the photos that would be needed without a single error


@dataclass(frozen=True)
class Promised:
    """A rule, what it promises, and in words what could not be promised."""

    rule: Rule
    promises: tuple[Promise, ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromisedList:
    """The lowest score a list may hold; ``promise`` is None where nothing can be promised."""

    threshold: float
    promise: Promise | None
    refused: str = ""


@dataclass(frozen=True)
class PromisedAnswers:
    """A rule that answers images of enough certainty and leaves the others to a person."""

    rule: Rule
    measure: Literal["all", "precision", "f"]
    least: float
    promise: Promise | None
    refused: str = ""

    def __call__(self, probs: Matrix) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the sets (N, K), and for which images (N,) a person should be asked."""
        values = as_numpy(probs)
        sets = np.asarray(self.rule(values))
        return sets, certainty(values, sets, self.measure) < self.least


@dataclass(frozen=True)
class _Scored:
    """Scores (N, K) compared with thresholds, and which entries are present and absent."""

    scores: Numbers
    present: NDArray[np.bool_]
    absent: NDArray[np.bool_]

    def counts(self, entries: NDArray[np.bool_], candidates: Numbers) -> Numbers:
        """Return how many such entries each image has at or above falling candidates, (N, T)."""
        size = len(candidates)
        row, column = np.nonzero(entries)
        place = size - np.searchsorted(candidates[::-1], self.scores[row, column], side="right")
        table = np.bincount(row * (size + 1) + place, minlength=len(entries) * (size + 1))
        return table.reshape(len(entries), size + 1)[:, :-1].cumsum(1).astype(np.float64)


# What a risk is: (scored, candidates, allowed risk) -> (excess over it, weight), both (N, T).
# The risk is sum(excess) / sum(weight) + allowed; an excess is at most 1 - allowed.
Risk = Callable[[_Scored, Numbers, float], tuple[Numbers, Numbers]]


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
        if self.what == "recall":
            return promise_recall(evidence, scope=self.scope, **options)
        options |= {"tuning": tuning, "seed": seed}
        if self.what == "precision":
            return promise_precision(evidence, scope=self.scope, **options)
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
    _check(level, 0.5)
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
    _check(level, confidence, scope)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    if scope == "shared":
        return _shared("precision", _wrong_share, tuning, tested, level, confidence)
    return _per_label("precision", tuning, tested, level, confidence)


def promise_recall(
    evidence: Evidence,
    *,
    level: float,
    confidence: float = 0.95,
    scope: Scope = "shared",
) -> Promised:
    """Return the highest threshold of which the recall is promised.

    ``scope="shared"`` promises the share of an image's labels that are chosen, on average over
    images that carry one; "label" the share of each label's images.
    """
    _check(level, confidence, scope)
    if scope == "shared":
        threshold, promise = _recall(evidence, _log_odds(evidence), level, confidence)
        if promise is None:
            return Promised(Threshold(0.0), (), (_refusal("recall", evidence, level, confidence),))
        return Promised(Threshold(_as_probability(threshold)), (promise,))
    return _per_label("recall", evidence, evidence, level, confidence)


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
    _check(level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    return _shared("f", _f_loss, tuning, tested, level, confidence, only_start=True)


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
    _check(level, confidence)
    tuning, tested = _parts(evidence, tuning, tuning_share, seed)
    found = _shared(
        "tags", _wrong_entries(tuning.answers.probs.shape[1]), tuning, tuning, level, 0.5
    )
    value = found.rule.value if isinstance(found.rule, Threshold) and found.promises else 0.5
    sizes = (tuning.answers.probs >= value).sum(1)
    most = max(1, ceil(float(np.quantile(sizes, 0.95))))
    tuning, tested = _capped(tuning, most), _capped(tested, most)
    made = _shared("tags", _wrong_entries(most), tuning, tested, level, confidence)
    promises = tuple(replace(promise, at_most=most) for promise in made.promises)
    return Promised(AtMost(made.rule, most), promises, made.refused)


def promise_list(
    scores: Matrix,
    right: Matrix,
    *,
    wrong_at_most: float,
    confidence: float = 0.95,
    candidates: Matrix | None = None,
    tuning_share: float = 0.2,
    seed: int = 0,
    photos: str = "photos",
) -> PromisedList:
    """Return the lowest score (N,) at which a list holds at most this share of wrong images.

    The size of the library plays no part. ``candidates`` are scores, the safest first, that were
    chosen without these photos (:func:`list_candidates`); without them a share of the photos sets
    the sequence.
    """
    level = 1 - wrong_at_most
    _check(level, confidence)
    values = np.asarray(as_numpy(scores), dtype=np.float64).reshape(-1, 1)
    truth = as_numpy(right).reshape(-1, 1).astype(bool)
    if np.isnan(values).any() or len(values) != len(truth):
        raise ValueError("scores must be numbers, one for each image that is right or wrong")
    every = Evidence(Answers(values, truth, ~truth), ("list",), None, photos)
    given = None if candidates is None else np.asarray(as_numpy(candidates), dtype=np.float64)
    if given is not None:
        tested = every
    else:
        tuning, tested = every.divided(tuning_share, seed)
        scale = len(tested) / len(tuning)
        given = _sequence(_raw(tuning), _wrong_share, 1 - level, 1 - confidence, scale)
    found = _walk(_raw(tested), _wrong_share, given, 1 - level, 1 - confidence, "exact binomial")
    if found is None:
        return PromisedList(np.inf, None, _refusal("list", tested, level, confidence))
    threshold, counted, risk = found
    promise = _promise("list", tested, level, confidence, counted, 1 - risk, "exact binomial")
    return PromisedList(threshold, replace(promise, labels=()))


def list_candidates(
    probs: Matrix, photos: int, *, wrong_at_most: float, confidence: float = 0.95
) -> Numbers:
    """Return thresholds for :func:`promise_list`, from probabilities (N,) of other photos.

    No label is looked at: a list is expected to be as wrong as its probabilities say, which gives
    each threshold a chance to pass its test on ``photos`` photos. The sequence starts where the
    list it leads to is expected to be longest,

        length(start) pass(start) + sum over t below it of  added(t) min of pass from start to t.

    If the probabilities lie, the promise still holds; it finds less.
    """
    ranked = np.sort(np.asarray(as_numpy(probs), dtype=np.float64).ravel())[::-1]
    if not len(ranked):
        return ranked
    places = np.unique(np.rint(np.geomspace(1, len(ranked), 2 * COARSE)).astype(int))
    expected = ((1 - ranked).cumsum() / np.arange(1, len(ranked) + 1))[places - 1]
    trials = np.floor(places / len(ranked) * photos)
    passing = _chances_to_pass(expected, trials, wrong_at_most, 1 - confidence)
    added = np.diff(places, prepend=0)
    values = []
    for start in range(len(places)):
        reached = np.minimum.accumulate(passing[:, start:], axis=1)
        length = reached[:, 0] * places[start] + reached[:, 1:] @ added[start + 1 :]
        values.append(length.mean())
    return np.asarray(np.unique(ranked[places[int(np.argmax(values)) :] - 1])[::-1])


def _chances_to_pass(expected: Numbers, trials: Numbers, risk: float, delta: float) -> Numbers:
    """Return the chance (2, T) that the binomial test passes, at odds of error off by DOUBT."""
    from scipy.stats import binom  # slow to import, and needed for promised lists alone

    most = binom.ppf(delta, trials, risk)
    most = np.where(binom.cdf(most, trials, risk) <= delta, most, most - 1)
    odds = logit(np.clip(expected, 1e-9, 1 - 1e-9))
    chances = [binom.cdf(most, trials, expit(odds + doubt)) for doubt in (-DOUBT, DOUBT)]
    return np.where(trials > 0, np.stack(chances), 0.0)


def promise_answers(
    evidence: Evidence,
    rule: Rule,
    *,
    level: float,
    confidence: float = 0.95,
    measure: Literal["all", "precision", "f"] = "all",
    tuning_share: float = 0.2,
    seed: int = 0,
) -> PromisedAnswers:
    """Return which images to answer so that the answers are right, and the others to ask about.

    ``measure``: "all" counts an image as right if its whole set is; "precision" and "f" as the
    share of its chosen labels that are right, and its F1. The rule must not be fitted here.
    """
    _check(level, confidence)
    answers = evidence.answers
    sets = np.asarray(rule(answers.probs)) & (answers.present | answers.absent)
    hits, chosen = (sets & answers.present).sum(1), sets.sum(1)
    held = answers.present.sum(1)
    if measure == "all":
        losses = ((sets != answers.present) & (answers.present | answers.absent)).any(1) * 1.0
    elif measure == "precision":
        losses = np.where(chosen > 0, 1 - hits / np.maximum(chosen, 1), 0.0)
    else:
        losses = np.where(chosen + held > 0, 1 - 2 * hits / np.maximum(chosen + held, 1), 0.0)
    sure = certainty(answers.probs, np.asarray(rule(answers.probs)), measure)
    tests: dict[str, Test] = {"all": "exact binomial", "precision": "Hoeffding-Bentkus"}
    test = tests.get(measure, "betting")
    order = np.random.default_rng(seed).permutation(len(sure))
    cut = max(1, round(tuning_share * len(sure)))
    parts = [_Graded(sure[rows], losses[rows]) for rows in (order[:cut], order[cut:])]
    scale = len(order) / cut - 1
    candidates = _sequence(parts[0], _graded, 1 - level, 1 - confidence, scale)
    found = _walk(parts[1], _graded, candidates, 1 - level, 1 - confidence, test)
    tested = evidence.rows(np.sort(order[cut:]))
    if found is None:
        refusal = _refusal("answers", tested, level, confidence)
        return PromisedAnswers(rule, measure, np.inf, None, refusal)
    least, counted, risk = found
    promise = _promise("answers", tested, level, confidence, counted, 1 - risk, test)
    return PromisedAnswers(rule, measure, least, replace(promise, labels=()))


def certainty(
    probs: Matrix, sets: NDArray[np.bool_], measure: Literal["all", "precision", "f"] = "all"
) -> Numbers:
    """Return how right (N,) each set is expected to be, from calibrated probabilities.

    "all" is the log of the chance that the whole set is right, labels being independent given
    the image; "precision" the mean probability of its labels, 1 where there is none; "f" its
    expected F1.
    """
    values = np.asarray(as_numpy(probs), dtype=np.float64)
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
class _Graded:
    """A score and a loss in [0, 1] for each image, in the shape :func:`_sequence` walks."""

    scores: Numbers
    losses: Numbers


def _graded(graded: Any, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    counted = (graded.scores[:, None] >= candidates).astype(np.float64)
    return counted * (graded.losses[:, None] - risk), counted


def _wrong_share(scored: _Scored, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    chosen = scored.counts(scored.present | scored.absent, candidates)
    wrong = scored.counts(scored.absent, candidates)
    counted = (chosen > 0).astype(np.float64)
    return counted * (wrong / np.maximum(chosen, 1) - risk), counted


def _wrong_entries(most: int) -> Risk:
    """Return the risk of tags, scaled so that the excess is below 1 - risk as the others' is."""

    def excess(scored: _Scored, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
        chosen = scored.counts(scored.present | scored.absent, candidates)
        wrong = scored.counts(scored.absent, candidates)
        weight: Numbers = chosen / most
        return wrong / most - risk * weight, weight

    return excess


def _f_loss(scored: _Scored, candidates: Numbers, risk: float) -> tuple[Numbers, Numbers]:
    chosen = scored.counts(scored.present | scored.absent, candidates)
    hits = scored.counts(scored.present, candidates)
    held = scored.present.sum(1, keepdims=True)
    total = chosen + held
    seen = (scored.present | scored.absent).any(1, keepdims=True)
    counted: Numbers = np.repeat(seen.astype(np.float64), len(candidates), axis=1)
    loss = np.where(total > 0, 1 - 2 * hits / np.maximum(total, 1), 0.0)
    return counted * (loss - risk), counted


def _p_values(excess: Numbers, counted: Numbers, risk: float, test: Test) -> Numbers:
    if test == "betting":
        return betting_p_values(excess, 1 - risk)
    counts = counted.sum(0)
    losses = (excess + risk * counted).sum(0)
    if test == "exact binomial":
        return binomial_p_values(np.rint(losses), counts, risk)
    return hoeffding_bentkus_p_values(losses / np.maximum(counts, 1), counts, risk)


def _sequence(
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


def _walk(
    scored: Any, measure: Any, candidates: Numbers, risk: float, delta: float, test: Test
) -> tuple[float, int, float] | None:
    """Return the last candidate before the first failure, how many count, and the risk there."""
    if not len(candidates):
        return None
    excess, counted = measure(scored, candidates, risk)
    passed = first_failure(_p_values(excess, counted, risk, test), delta)
    if passed == 0:
        return None
    last = passed - 1
    count = int(np.count_nonzero(counted[:, last]))
    seen = float(excess[:, last].sum() / counted[:, last].sum() + risk)
    return float(candidates[last]), count, seen


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
        _Scored(_log_odds(e) - offset, e.answers.present, e.answers.absent)
        for e in (tuning, tested)
    ]
    test: Test = "Hoeffding-Bentkus" if what == "precision" else "betting"
    if len(tested.names) == 1 and what in ("precision", "tags"):
        test = "exact binomial"
    scale = len(tested) / max(len(tuning), 1)
    easy = 0.0 if only_start or what == "tags" else EASY
    candidates = _sequence(parts[0], measure, 1 - level, 1 - confidence, scale, easy)
    found = _walk(
        parts[1],
        measure,
        candidates[:1] if only_start else candidates,
        1 - level,
        1 - confidence,
        test,
    )
    if found is None:
        return Promised(Threshold(NEVER), (), (_refusal(what, tested, level, confidence),))
    threshold, counted, risk = found
    promise = _promise(what, tested, level, confidence, counted, 1 - risk, test)
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
    made = _promise("recall", evidence, level, confidence, counted, value, test)
    return float(own[passed]), made


def _per_label(
    what: Literal["precision", "recall"],
    tuning: Evidence,
    tested: Evidence,
    level: float,
    confidence: float,
) -> Promised:
    names = tested.names
    needed = max(FEWEST, PER_ERROR_FREE * ceil(log(1 - confidence) / log(level)))
    values = [0.0 if what == "recall" else NEVER] * len(names)
    promises: list[Promise] = []
    refused: list[str] = []
    rare = []
    for k in range(len(names)):
        part, held = tuning.columns([k]), tested.columns([k])
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
            made = _shared(what, _wrong_share, part, held, level, confidence)
        if (
            made.promises
            and isinstance(made.rule, Threshold)
            and isinstance(made.rule.value, float)
        ):
            values[k] = made.rule.value
            promises += [replace(p, labels=(names[k],)) for p in made.promises]
        else:
            refused.append(f"{names[k]}: {_refusal(what, held, level, confidence)}")
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
            made = _shared(what, _wrong_share, common, pool, level, confidence, shift=shift)
        if made.promises and isinstance(made.rule, Threshold):
            for k, value in zip(rare, np.broadcast_to(made.rule.value, len(rare)), strict=True):
                values[k] = float(value)
            promises += [replace(p, labels=pool.names) for p in made.promises]
        else:
            several = f"{len(rare)} label{'s' * (len(rare) > 1)} with few photos, together"
            refused.append(f"{several}: {_refusal(what, pool, level, confidence)}")
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


def _raw(evidence: Evidence) -> _Scored:
    answers = evidence.answers
    return _Scored(answers.probs, answers.present, answers.absent)


def _as_probability(threshold: float) -> float:
    return just_below(float(expit(threshold)))


def _check(level: float, confidence: float, scope: str = "shared") -> None:
    if not 0 < level < 1 or not 0 < confidence < 1:
        raise SettingsError(
            f"level and confidence must lie strictly between 0 and 1, got {level} and {confidence}"
        )
    if scope not in ("shared", "label"):
        raise SettingsError(f"scope must be 'shared' or 'label', got {scope!r}")


def _promise(
    what: What,
    evidence: Evidence,
    level: float,
    confidence: float,
    counted: int,
    observed: float,
    test: str,
) -> Promise:
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


def _refusal(what: str, evidence: Evidence, level: float, confidence: float) -> str:
    least = ceil(log(1 - confidence) / log(level))
    return (
        f"{what} {level:g} cannot be promised with {confidence:.0%} confidence on these "
        f"{len(evidence):,} photos (without a single error {least:,} that count would be needed); "
        "use more photos, a lower level or less confidence"
    )

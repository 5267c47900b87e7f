"""Lists that hold few wrong images, and answers with the doubtful images left to a person.

Both walk a sequence of thresholds on one number per image: how probable it is that it answers a
query, or how sure its label set is.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from labelwise.decide.arrays import Answers, Matrix, as_numpy
from labelwise.decide.promises import Evidence, Promise
from labelwise.decide.rules import Rule, expected_f
from labelwise.decide.sequences import (
    COARSE,
    Graded,
    Numbers,
    ScoredEntries,
    Test,
    candidate_sequence,
    check_levels,
    graded_loss,
    made_promise,
    refusal,
    walk,
    wrong_share,
)

__all__ = [
    "PromisedAnswers",
    "PromisedList",
    "certainty",
    "list_candidates",
    "promise_answers",
    "promise_list",
]

Measure = Literal["all", "precision", "f"]
DOUBT = 0.3  # log-odds by which the expected error of a list may be off


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
    measure: Measure
    least: float
    promise: Promise | None
    refused: str = ""

    def __call__(self, probs: Matrix) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the sets (N, K), and for which images (N,) a person should be asked."""
        values = as_numpy(probs)
        sets = np.asarray(self.rule(values))
        return sets, certainty(values, sets, self.measure) < self.least


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
    check_levels(level, confidence)
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
        given = candidate_sequence(_raw(tuning), wrong_share, 1 - level, 1 - confidence, scale)
    found = walk(_raw(tested), wrong_share, given, 1 - level, 1 - confidence, "exact binomial")
    if found is None:
        return PromisedList(np.inf, None, refusal("list", tested, level, confidence))
    threshold, counted, risk = found
    promise = made_promise("list", tested, level, confidence, counted, 1 - risk, "exact binomial")
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
    measure: Measure = "all",
    tuning_share: float = 0.2,
    seed: int = 0,
) -> PromisedAnswers:
    """Return which images to answer so that the answers are right, and the others to ask about.

    ``measure``: "all" counts an image as right if its whole set is; "precision" and "f" as the
    share of its chosen labels that are right, and its F1. The rule must not be fitted here.
    """
    check_levels(level, confidence)
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
    parts = [Graded(sure[rows], losses[rows]) for rows in (order[:cut], order[cut:])]
    scale = len(order) / cut - 1
    candidates = candidate_sequence(parts[0], graded_loss, 1 - level, 1 - confidence, scale)
    found = walk(parts[1], graded_loss, candidates, 1 - level, 1 - confidence, test)
    tested = evidence.rows(np.sort(order[cut:]))
    if found is None:
        why = refusal("answers", tested, level, confidence)
        return PromisedAnswers(rule, measure, np.inf, None, why)
    least, counted, risk = found
    promise = made_promise("answers", tested, level, confidence, counted, 1 - risk, test)
    return PromisedAnswers(rule, measure, least, replace(promise, labels=()))


def certainty(probs: Matrix, sets: NDArray[np.bool_], measure: Measure = "all") -> Numbers:
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


def _raw(evidence: Evidence) -> ScoredEntries:
    answers = evidence.answers
    return ScoredEntries(answers.probs, answers.present, answers.absent)

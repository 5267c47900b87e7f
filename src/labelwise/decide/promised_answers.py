"""Answers that are right often enough, with the doubtful images left to a person.

A sequence of thresholds on one number per image, how sure its label set is, is tested on photos
that fitted nothing; see :mod:`sequences`.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.fixed_sequence import (
    EASY,
    Graded,
    Numbers,
    Test,
    candidate_sequence,
    check_levels,
    graded_loss,
    made_promise,
    refusal,
    walk,
)
from labelwise.decide.groups import by_whole_groups, with_group_facts
from labelwise.decide.promises import Evidence, Promise
from labelwise.decide.rules import Rule, expected_f
from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.arrays import to_numpy as as_numpy

Measure = Literal["all", "precision", "f"]


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
    test: Test = "exact binomial" if measure == "all" else "Hoeffding-Bentkus"
    groups, easy = evidence.groups, EASY
    risk_of: Any = graded_loss
    if groups is None:
        order = np.random.default_rng(seed).permutation(len(sure))
        cut = max(1, round(tuning_share * len(sure)))
        places = order[:cut], order[cut:]
    else:
        places = groups.divided(tuning_share, seed)
    parts = [
        Graded(sure[rows], losses[rows], None if groups is None else groups.take(rows))
        for rows in places
    ]
    tested = evidence.rows(np.sort(places[1]))
    scale = len(places[1]) / len(places[0])
    if groups is not None and parts[0].groups is not None:
        risk_of, test, easy = by_whole_groups(graded_loss), "betting", 0.0
        scale = groups.count / parts[0].groups.count - 1
    candidates = candidate_sequence(parts[0], risk_of, 1 - level, 1 - confidence, scale, easy)
    tuning = parts[0] if groups is not None else None
    found = walk(parts[1], risk_of, candidates, 1 - level, 1 - confidence, test, tuning)
    if found is None:
        why = refusal("answers", tested, level, confidence)
        return PromisedAnswers(rule, measure, np.inf, None, why)
    least, counted, risk = found
    promise = made_promise("answers", tested, level, confidence, counted, 1 - risk, test)
    if parts[1].groups is not None:
        lost, weights = (side[:, 0] for side in graded_loss(parts[1], np.array([least]), 0.0))
        promise = with_group_facts(promise, parts[1].groups, lost, weights)
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

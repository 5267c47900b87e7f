"""The rule ``auto``: of three, the one with the best F over images by cross-validation.

    expected-f       the set of most expected F1 of each image; needs no fit
    best-f-shared    one threshold of best F1 for all labels
    best-f-shrunk    a threshold of best F1 per label, drawn to the shared one

F over images is the mean of each image's F1, over known labels; an image that has none and is
given none counts 1. Rows are dealt into folds once, each rule is fitted without a fold and judged
on it. The earlier of two equals is taken: it has fewer numbers to fit.
"""

from collections.abc import Callable, Mapping
from functools import partial
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, read_answers
from labelwise.decide.rules import ExpectedF, Rule
from labelwise.decide.thresholds import best_f, shrunken_f
from labelwise.numeric.arrays import Array as Matrix

FOLDS = 5
MOST_ROWS = 5000  # are enough to tell the rules apart

Fit = Callable[[Matrix, Matrix, Matrix | None], Rule]


def _expected(probs: Matrix, labels: Matrix, observed: Matrix | None) -> Rule:
    return ExpectedF()


CANDIDATES: Mapping[str, Fit] = {
    "expected-f": _expected,
    "best-f-shared": partial(best_f, scope="shared"),
    "best-f-shrunk": shrunken_f,
}


def image_f(sets: NDArray[np.bool_], answers: Answers) -> NDArray[np.float64]:
    """Return the F1 (N,) of each image's set over its known labels."""
    chosen = sets & (answers.present | answers.absent)
    both = 2.0 * (chosen & answers.present).sum(1)
    size = chosen.sum(1) + answers.present.sum(1)
    return np.where(size > 0, both / np.maximum(size, 1), 1.0)


def mean_f_of(
    fit: Fit, probs: Matrix, labels: Matrix, observed: Matrix | None = None
) -> float | None:
    """Return the F over images of a rule by cross-validation, None where it cannot be fitted."""
    answers = read_answers(probs, labels, observed)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(answers.probs))[:MOST_ROWS]
    known = (answers.present | answers.absent).astype(np.float64)
    found = []
    for held in np.array_split(rows, min(FOLDS, len(rows))):
        others = np.setdiff1d(rows, held)
        try:
            with catch_warnings():
                simplefilter("ignore")  # of labels without a positive in a fold
                parts = (array[others] for array in (answers.probs, answers.present * 1.0, known))
                rule = fit(*parts)
        except ValueError:
            return None
        part = Answers(answers.probs[held], answers.present[held], answers.absent[held])
        found.append(image_f(np.asarray(rule(answers.probs[held])), part))
    return float(np.concatenate(found).mean())


def choose_rule(
    probs: Matrix, labels: Matrix, observed: Matrix | None = None
) -> tuple[str, dict[str, float]]:
    """Return the name of the best candidate, and the F over images of each that can be fitted."""
    scores = {
        name: score
        for name, fit in CANDIDATES.items()
        if (score := mean_f_of(fit, probs, labels, observed)) is not None
    }
    return max(scores, key=scores.__getitem__), scores

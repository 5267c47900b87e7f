"""Calibrators and rules, by their names in calibrate and decide, fitted on held-out rows."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelwise import calibrate, decide
from labelwise.decide import Check, Promise, Promised, Rule
from labelwise.decide.cross_fit import same_sets
from labelwise.links import Link
from labelwise.predictions import Predictions

__all__ = ["check_promises", "cross_fitted", "fit_calibrator", "fit_rule", "make_promise"]


def fit_calibrator(
    name: str,
    predictions: Predictions,
    link: Link | None,
    groups: NDArray[np.str_] | None = None,
) -> tuple[Link | None, str, str]:
    """Return the fitted link, what it is in words, and the name of what fitted it.

    The link is None, without words, where it stays as it is.
    """
    logits, labels, observed = predictions.logits, predictions.labels, predictions.observed
    fitted, words, choice = calibrate.fit_calibrator(
        name, logits, labels, link, observed, groups=groups, source=predictions.split
    )
    return fitted, words, name if choice is None else choice.name


def fit_rule(text: str, predictions: Predictions, link: Link) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of held-out rows, and what it is in words."""
    rows = predictions.with_link(link)
    return decide.fit_rule(text, rows.decision_probs(), rows.majority, rows.observed)


def make_promise(
    text: str, link: Link, promise: Predictions, val: Predictions, confidence: float, seed: int
) -> Promised:
    """Return the rule that keeps a promise, made on rows that neither link nor weights saw.

    The validation rows, which they did see, only set the order in which thresholds are tried.
    """
    words = f"{len(promise):,} of validation that fitted nothing"
    kept = promise.with_link(link).evidence(photos=words, fitted_on=val.ids)
    tuning = val.with_link(link).evidence(photos="validation")
    return decide.find_promise(text)(kept, confidence, tuning, seed)


def cross_fitted(
    promised: Promised, calibrator: str, link: Link, own: Link | None, rows: Predictions
) -> tuple[Promised, Link]:
    """Return the calibrator of all rows, and the promise with thresholds of the same sets."""
    fitted, *_ = fit_calibrator(calibrator, rows, own)
    last = link if fitted is None else fitted
    rule = same_sets(promised.rule, link, last, rows.logits, rows.names)
    return replace(promised, rule=rule), last


def check_promises(promises: Iterable[Promise], rule: Rule, rows: Predictions) -> tuple[Check, ...]:
    """Return how each promise of a rule stands on other rows, under their link."""
    sets = rows.sets(rule).numpy()
    return tuple(
        decide.check_promise(
            promise, sets, rows.majority, rows.observed, names=rows.names, ids=rows.ids
        )
        for promise in promises
    )

"""Calibrators, rules and promises, by their names in calibrate and decide, on held-out rows.

The one road from predictions to what is fitted on them: ``train`` takes it after training, and
``calibrate`` and ``decide`` with people's own scores.
"""

from collections.abc import Iterable
from dataclasses import replace

from labelwise import calibration, decide
from labelwise.calibration import Choice
from labelwise.calibration.auto import FOLDS
from labelwise.decide import Check, OnePerGroup, Promise, Promised, Rule
from labelwise.decide.promised_rules import Wish, same_sets
from labelwise.links import Grouped, Link
from labelwise.predictions import Predictions
from labelwise.taxonomy import AttributeColumns


def fit_calibrator(
    name: str,
    predictions: Predictions,
    link: Link | None,
    *,
    folds: int = FOLDS,
    source: str = "these scores",
) -> tuple[Link | None, str, Choice | None]:
    """Return the fitted link, what it is in words, and what ``auto`` compared.

    The link is None, without words, where it stays as it is. ``source`` names the rows in errors.
    Photos of one group stay together in the folds of ``auto``.
    """
    logits, labels, observed = predictions.logits, predictions.labels, predictions.observed
    groups = None if predictions.groups is None else predictions.groups.codes
    return calibration.fit_calibrator(
        name, logits, labels, link, observed, groups=groups, folds=folds, source=source
    )


def fit_groups(
    predictions: Predictions | None, link: Link, columns: AttributeColumns, words: str
) -> tuple[Link, str]:
    """Return a link that obeys groups of labels, fitted where there are rows, and its words."""
    said = f"{words or 'own probabilities'}, one label per group"
    if predictions is None:
        return Grouped(link, columns.exactly_one, columns.at_most_one), said
    own = predictions
    return calibration.within_groups(own.logits, own.labels, link, columns, own.observed), said


def one_per_group(rule: Rule, words: str, columns: AttributeColumns) -> tuple[Rule, str]:
    """Return a rule whose sets obey groups of labels, and its words."""
    made = OnePerGroup(rule, columns.exactly_one, columns.at_most_one)
    return made, f"{words}, one label per group"


def fit_rule(
    text: str, predictions: Predictions, link: Link, photos_per_day: float | None = None
) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of held-out rows, and what it is in words."""
    rows = predictions.with_link(link)
    return decide.fit_rule(
        text, rows.decision_probs(), rows.majority, rows.observed, rows.groups, photos_per_day
    )


def make_promise(
    wish: Wish,
    link: Link,
    rows: Predictions,
    fitted_on: Predictions | None,
    *,
    photos: str,
    confidence: float,
    seed: int,
) -> Promised:
    """Return the rule that keeps a promise, made on ``rows`` that neither link nor weights saw.

    The rows that the link was fitted on only set the order in which thresholds are tried.
    ``photos`` says in words which rows the promise is made on. Rows in groups are tested by group.
    """
    if fitted_on is not None:
        rows.refuse_shared_groups(fitted_on, "the promise would rest on photos like fitted ones")
    used = () if fitted_on is None else fitted_on.ids
    kept = rows.with_link(link).evidence(photos=photos, fitted_on=used)
    tuning = None if fitted_on is None else fitted_on.with_link(link).evidence(photos=photos)
    return wish(kept, confidence, tuning, seed)


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
    sets = rows.sets(rule)
    return tuple(
        decide.check_promise(
            promise,
            sets,
            rows.majority,
            rows.observed,
            names=rows.names,
            ids=rows.ids,
            groups=rows.groups,
        )
        for promise in promises
    )

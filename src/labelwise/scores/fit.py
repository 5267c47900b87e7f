"""Calibrators, rules and promises by name: fitted on held-out rows, judged on other ones.

``train`` takes this road after training, ``calibrate`` and ``decide`` with people's own scores. The
rows that judge are of another split, of another file, or of the folds that a fit did not see: rows
of one group, such as a patient's, are never on both sides. What is saved after folds is fitted on
all rows and a little better than its figures, since each fit saw fewer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise import calibration, decide
from labelwise.base.groups import Groups
from labelwise.calibration import Candidate, Choice
from labelwise.calibration.auto import AUTO, FOLDS, link_to_spec
from labelwise.decide import Check, OnePerGroup, Promise, Promised, Rule, find_promise, find_rule
from labelwise.decide.promised_rules import CROSS_FITTED_SHARE, Wish, check_cross_fit, same_sets
from labelwise.decide.rules import rule_to_spec
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation import Evaluation, evaluate
from labelwise.links import Grouped, Link
from labelwise.predictions import Predictions
from labelwise.scores.read import ScoreTable
from labelwise.scores.tables import FITTED_FORMAT
from labelwise.tables.score_files import Kind
from labelwise.taxonomy import AttributeColumns

SHARE = 0.5  # of the rows, that test the promise
ONLY_RANK = "these scores only rank, so {}; calibrate them first, as with --calibrator platt"


def fit_calibrator(
    name: str,
    predictions: Predictions,
    link: Link | None,
    *,
    folds: int = FOLDS,
    source: str = "these scores",
) -> tuple[Link | None, str, Choice | None]:
    """Return the fitted link (None: it stays), its words, and what ``auto`` compared."""
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


@dataclass(frozen=True, eq=False)
class PromisedScores:
    """A rule with its promises, the link it needs, and how they stand on other rows if given."""

    promised: Promised
    link: Link
    link_words: str
    names: tuple[str, ...]
    fitted_on: str
    checks: tuple[Check, ...] = ()
    kind: Kind = "logits"

    def spec(self) -> dict[str, object]:
        return {
            "format": FITTED_FORMAT,
            "names": list(self.names),
            "scores": self.kind,
            "rule": rule_to_spec(self.promised.rule),
            "promises": [promise.spec() for promise in self.promised.promises],
            "refused": list(self.promised.refused),
            "probabilities": link_to_spec(self.link),
            "fitted_on": self.fitted_on,
            "checks": [
                {name: getattr(check, name) for name in ("verdict", "value", "lower", "upper")}
                | {"photos": check.counted}
                for check in self.checks
            ],
        }


def promise_scores(
    table: ScoreTable,
    text: str,
    *,
    confidence: float = 0.95,
    calibrator: str = "none",
    share: float | None = None,
    cross_fit: bool = False,
    other: ScoreTable | None = None,
    fit_on: str | None = None,
    report_on: str | None = None,
    seed: int = 0,
) -> PromisedScores:
    """Return a rule that keeps the promise of a text, made on rows that fitted nothing.

    With a calibrator, ``share`` of the rows (half) are kept from it for the promise. With
    ``cross_fit`` that share is 0.8, and the calibrator is fitted again on all rows afterwards, with
    thresholds that choose the same sets. Rows of ``other``, or of the split ``report_on``, check
    the promise.
    """
    wish = find_promise(text)
    if cross_fit:
        check_cross_fit(wish, calibrator)
    if share is None:
        share = CROSS_FITTED_SHARE if cross_fit else SHARE
    seen: Predictions | None = None
    if other is not None or report_on is not None:
        held, seen, words = divided_rows(table, other, fit_on, report_on)
    else:
        held, words = split_rows(table, fit_on, "one with --fit-on"), fit_on or table.source
    if not 0 < share < 1:
        raise SettingsError(f"the share for the promise must lie between 0 and 1, got {share}")
    link, link_words, rows, others = held.link, "", held, ""
    fitted: Predictions | None = None
    if calibrator != "none":
        groups = held.groups or Groups(np.arange(len(held)), len(held))
        fitted, rows = map(held.take, groups.divided(1 - share, seed))
        plan, choice = chosen_plan(fitted, FitPlan(calibrator, "none"))
        calibrator, made = plan.calibrator, fit_pair(fitted, plan, choice)
        link, link_words = made.link or held.link, made.link_words
        others = f"; the calibrator was fitted on {len(fitted):,} others"
    if link is None:
        raise SettingsError(ONLY_RANK.format("nothing can be promised"))
    how: Any = {"photos": words, "confidence": confidence, "seed": seed}
    promised = make_promise(wish, link, rows, fitted, **how)
    if cross_fit:
        promised, link = cross_fitted(promised, calibrator, link, held.link, held)
        others += f", and for the probabilities again on all {len(held):,}"
    checks: tuple[Check, ...] = ()
    if seen is not None:
        checks = check_promises(promised.promises, promised.rule, seen.with_link(link))
    fitted_on = f"{len(rows):,} rows of {words}{others}"
    return PromisedScores(promised, link, link_words, held.names, fitted_on, checks, table.kind)


LEAKED = "what is fitted on some photos of a group looks better on its others than on new groups"


@dataclass(frozen=True)
class FitPlan:
    """What is fitted, by name, and how the rows are divided."""

    calibrator: str = "none"
    rule: str = "0.5"
    folds: int = 5
    seed: int = 0
    photos_per_day: float | None = None  # for rules per day
    attributes: AttributeColumns | None = None  # labels that exclude each other


@dataclass(frozen=True, eq=False)
class FittedPair:
    """A link (``None``: the scores keep theirs) and a rule, in words too; what was compared."""

    link: Link | None
    link_words: str
    rule: Rule | None
    rule_words: str
    compared: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Judged:
    """The evaluation, the rows and sets it is of, what to keep, and which rows fitted that."""

    evaluation: Evaluation
    predictions: Predictions
    made: FittedPair
    fitted_on: str
    fitted_rows: Predictions
    sets: NDArray[np.bool_] | None = None
    kind: Kind = "logits"

    @property
    def link(self) -> Link | None:
        return self.made.link or self.predictions.link


def fixed_rule(text: str) -> Rule | None:
    """Return the rule of a text that needs no fit, such as ``0.5`` or ``top-4``; or ``none``."""
    if text == "none":
        return None
    rule = find_rule(text).fixed
    if rule is None:
        known = f"0.5, top-4, expected-f or none, got {text!r}"
        way = "others are fitted by `labelwise calibrate`"
        raise SettingsError(f"a rule without a fit must be a threshold such as {known}; {way}")
    return rule


def judge_as_given(
    table: ScoreTable,
    rule: Rule | None,
    *,
    split: str | None = None,
    by: Sequence[str] = (),
    **options: Any,
) -> Evaluation:
    """Return the evaluation of scores as they are; nothing is fitted."""
    predictions = split_rows(table, split, "one with --split, or all with --split all")
    parts = [table.subgroups(column, predictions) for column in by]
    return evaluate(predictions, predictions.link, rule, by=parts, notes=table.notes, **options)


def judge(
    table: ScoreTable,
    plan: FitPlan,
    *,
    other: ScoreTable | None = None,
    fit_on: str | None = None,
    report_on: str | None = None,
    by: Sequence[str] = (),
    **options: Any,
) -> Judged:
    """Fit as planned and judge on other rows: of ``other``, of a split, or of folds.

    A calibrator left to ``auto`` is chosen once, on all the rows that may be fitted on. ``by`` are
    columns whose values make subgroups that are judged by themselves too.
    """
    told = table if other is None else other
    thresholds: Rule | None = None
    notes: tuple[str, ...] = ()
    calibrated: Link | NDArray[np.float64] | None
    if other is not None or fit_on is not None or report_on is not None:
        held, seen, words = divided_rows(table, other, fit_on, report_on)
        made = fit_pair(held, *chosen_plan(held, plan))
        calibrated, how = made.link, f"fitted on {words}"
        judged = seen if made.link is None else seen.with_link(made.link)
        sets = None if made.rule is None else judged.sets(made.rule)
        rule: Any = made.rule
        fitted_on = f"{len(held):,} rows of {words}"
    else:
        held = seen = split_rows(table, None, "two with --fit-on and --report-on")
        plan, choice = chosen_plan(held, plan)
        made = fit_pair(held, plan, choice)

        def fit(rows: Predictions) -> tuple[Link | None, Rule | None]:
            pair = fit_pair(rows, plan)
            return pair.link, pair.rule

        fits = crossfit(held, fit, folds=plan.folds, seed=plan.seed)
        calibrated, how = fits.log_odds, f"cross-fitted in {plan.folds} folds"
        rule = sets = fits.sets
        thresholds, fitted_on = made.rule, f"all {len(held):,} rows"
        notes = (
            f"One undivided table: calibrator and rule were fitted {plan.folds} times on "
            f"{plan.folds - 1} of {plan.folds} parts and judged on the rest, so that no row is "
            f"judged by a fit that saw it. What is saved was fitted on {fitted_on}.",
        )
    evaluation = evaluate(
        seen,
        seen.link,
        rule,
        calibrated=calibrated,
        calibrator=made.link_words and f"{made.link_words}, {how}",
        rule_words=made.rule_words and f"{made.rule_words}, {how}",
        thresholds=thresholds,
        notes=(*notes, *table.notes, *made.notes),
        attributes=plan.attributes,
        by=[told.subgroups(column, seen) for column in by],
        **options,
    )
    return Judged(evaluation, seen, made, fitted_on, held, sets, table.kind)


def chosen_plan(predictions: Predictions, plan: FitPlan) -> tuple[FitPlan, Choice | None]:
    """Return the plan with ``auto`` replaced by what it chooses on these rows."""
    if plan.calibrator != AUTO:
        return plan, None
    *_, choice = fit_calibrator(AUTO, predictions, predictions.link, folds=plan.folds)
    if choice is None or choice.link is predictions.link:
        return replace(plan, calibrator="none"), choice
    return replace(plan, calibrator=choice.name), choice


def fit_pair(predictions: Predictions, plan: FitPlan, choice: Choice | None = None) -> FittedPair:
    """Return what the plan fits on these rows."""
    given = predictions.link
    link, words, _ = fit_calibrator(plan.calibrator, predictions, given, folds=plan.folds)
    notes: tuple[str, ...] = ()
    if choice is not None:
        words = words and choice.words
        if link is None:
            notes = ("No calibrator had less log loss than the scores as they are.",)
    last = link or given
    if plan.attributes is not None and last is not None:
        link, words = fit_groups(predictions, last, plan.attributes, words)
        last = link
    pair = FittedPair(link, words, None, "", () if choice is None else choice.candidates, notes)
    if plan.rule == "none":
        return pair
    if last is None:
        raise SettingsError(ONLY_RANK.format("no rule can be fitted"))
    rule, rule_words = fit_rule(plan.rule, predictions, last, plan.photos_per_day)
    if plan.attributes is not None:
        rule, rule_words = one_per_group(rule, rule_words, plan.attributes)
    return replace(pair, rule=rule, rule_words=rule_words)


def divided_rows(
    table: ScoreTable, other: ScoreTable | None, fit_on: str | None, report_on: str | None
) -> tuple[Predictions, Predictions, str]:
    """Return the rows to fit on, those to judge on, and the first ones' name; none in both."""
    if other is None:
        if fit_on is None or report_on is None:
            raise SettingsError("--fit-on and --report-on go together: name both splits")
        if fit_on == report_on:
            raise SettingsError(f"--fit-on and --report-on must differ, got {fit_on!r} twice")
        held, seen = table.part(fit_on), table.part(report_on)
        seen.refuse_shared_groups(held, LEAKED)
        return held, seen, fit_on
    held = split_rows(table, fit_on, "one with --fit-on")
    seen = split_rows(other, report_on, "one with --report-on")
    seen = seen.with_columns(held.names, of=table.source, source=other.source)
    shared = set(held.ids) & set(seen.ids)
    if shared:
        why = "what is fitted on a row cannot be judged on it"
        both = f"{table.source} and {other.source}"
        raise DataError(f"{both} share rows, first {min(shared)!r}; {why}")
    seen.refuse_shared_groups(held, LEAKED)
    return held, seen, table.source


def split_rows(table: ScoreTable, split: str | None, way: str) -> Predictions:
    """Return the rows of the split, or all where there is no choice to make.

    ``way`` is what a person types to make the choice, as in "one with --split".
    """
    if split == "all" or (split is None and table.split is None):
        return table.predictions
    if split is not None or table.split is None:
        return table.part(split or "")
    there = sorted(set(table.split.tolist()))
    if len(there) > 1:
        raise SettingsError(f"{table.source} has the splits {', '.join(there)}; name {way}")
    return table.part(there[0])


@dataclass(frozen=True)
class CrossFit:
    """Out-of-fold log-odds and sets, each (N, K); ``None`` where nothing of the kind was fitted."""

    log_odds: NDArray[np.float64] | None
    sets: NDArray[np.bool_] | None


def folds_of(rows: int, folds: int, seed: int, groups: Groups | None = None) -> NDArray[np.intp]:
    """Return the fold of every row; sizes differ by at most one row, or one group."""
    units, what = (rows, "rows") if groups is None else (groups.count, "groups")
    if not 2 <= folds <= units:
        raise SettingsError(f"folds must lie between 2 and the {units} {what}, got {folds}")
    dealt = np.random.default_rng(seed).permutation(np.arange(units) % folds)
    return dealt if groups is None else dealt[groups.codes]


def crossfit(
    predictions: Predictions,
    fit: Callable[[Predictions], tuple[Link | None, Rule | None]],
    *,
    folds: int = 5,
    seed: int = 0,
) -> CrossFit:
    """Return what fits on the other folds say of each row."""
    fold = folds_of(len(predictions), folds, seed, predictions.groups)
    log_odds = np.empty(predictions.logits.shape)
    sets = np.zeros(log_odds.shape, bool)
    link, rule = None, None
    for number in range(folds):
        held = fold == number
        logits = predictions.logits[held]
        link, rule = fit(predictions.take(np.flatnonzero(~held)))
        if link is not None:
            log_odds[held] = link.log_odds(logits).astype(np.float64)
        last = link or predictions.link
        if rule is not None and last is not None:
            sets[held] = rule(last.decision_probs(logits))
    return CrossFit(None if link is None else log_odds, None if rule is None else sets)

"""Fitting a calibrator and a rule on scores and judging them on rows they did not see.

Three ways to keep the roles apart: two splits of one file, two files, or folds of one file.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.calibrate import Candidate, Choice, auto
from labelwise.decide import Rule, find_rule
from labelwise.errors import DataError, SettingsError
from labelwise.evaluate import Evaluation, evaluate
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.scores.folds import crossfit
from labelwise.scores.read import ScoreTable
from labelwise.training.fitting import fit_calibrator, fit_rule

__all__ = ["Fitted", "Judged", "Plan", "chosen_sets", "fixed_rule", "judge", "judge_as_given"]


@dataclass(frozen=True)
class Plan:
    """What is fitted, by name, and how the rows are divided."""

    calibrator: str = "none"
    rule: str = "0.5"
    folds: int = 5
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Fitted:
    """A link (``None``: the scores keep theirs) and a rule, in words too; what was compared."""

    link: Link | None
    link_words: str
    rule: Rule | None
    rule_words: str
    compared: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Judged:
    """The evaluation, the rows it is of, what to keep, and which rows that was fitted on.

    ``sets`` are those the evaluation is of, where a rule was fitted; ``fitted_rows`` the rows that
    link and rule were fitted on.
    """

    evaluation: Evaluation
    predictions: Predictions
    made: Fitted
    fitted_on: str
    fitted_rows: Predictions
    sets: Tensor | None = None

    @property
    def link(self) -> Link | None:
        """The link to use from now on."""
        return self.made.link or self.predictions.link


def fixed_rule(text: str) -> Rule | None:
    """Return the rule of a text that needs no fit, such as ``0.5`` or ``top-4``; or ``none``.

    >>> fixed_rule("top-4"), fixed_rule("0.5")
    (TopK(k=4), Threshold(value=0.5))
    """
    if text == "none":
        return None
    rule = find_rule(text).fixed
    if rule is None:
        raise SettingsError(
            "a rule that needs no fit must be a threshold such as 0.5, top-4, expected-f or none, "
            f"got {text!r}; others are fitted by `labelwise decide`"
        )
    return rule


def judge_as_given(
    table: ScoreTable, rule: Rule | None, *, split: str | None = None, **options: Any
) -> Evaluation:
    """Return the evaluation of scores as they are; nothing is fitted."""
    predictions = _only(table, split)
    return evaluate(predictions, predictions.link, rule, **options)


def judge(
    table: ScoreTable,
    plan: Plan,
    *,
    other: ScoreTable | None = None,
    fit_on: str | None = None,
    report_on: str | None = None,
    **options: Any,
) -> Judged:
    """Fit as planned and judge on other rows: of ``other``, of a split, or of folds.

    A calibrator left to ``auto`` is chosen once, on all the rows that may be fitted on.
    """
    if other is not None or fit_on is not None or report_on is not None:
        held, seen, words = _divided(table, other, fit_on, report_on)
        made = _fit(held, *_chosen(held, plan))
        evaluation = evaluate(
            seen,
            seen.link,
            made.rule,
            calibrated=made.link,
            calibrator=made.link_words and f"{made.link_words}, fitted on {words}",
            rule_words=made.rule_words and f"{made.rule_words}, fitted on {words}",
            notes=made.notes,
            **options,
        )
        sets = None if made.rule is None else chosen_sets(seen, made)
        return Judged(evaluation, seen, made, f"{len(held):,} rows of {words}", held, sets)
    whole = _only(table, None)
    plan, choice = _chosen(whole, plan)
    made = _fit(whole, plan, choice)
    fits = crossfit(whole, lambda part: _pair(_fit(part, plan)), folds=plan.folds, seed=plan.seed)
    note = (
        f"One undivided table: calibrator and rule were fitted {plan.folds} times on "
        f"{plan.folds - 1} of {plan.folds} parts and judged on the rest, so that no row is judged "
        f"by a fit that saw it. What is saved was fitted on all {len(whole):,} rows."
    )
    evaluation = evaluate(
        whole,
        whole.link,
        fits.sets,
        calibrated=fits.log_odds,
        calibrator=made.link_words and f"{made.link_words}, cross-fitted in {plan.folds} folds",
        rule_words=made.rule_words and f"{made.rule_words}, cross-fitted in {plan.folds} folds",
        thresholds=made.rule,
        notes=(note, *made.notes),
        **options,
    )
    return Judged(evaluation, whole, made, f"all {len(whole):,} rows", whole, fits.sets)


@torch.no_grad()
def chosen_sets(predictions: Predictions, made: Fitted) -> Tensor:
    """Return the sets that the fitted link and rule choose."""
    link = made.link or predictions.link
    if link is None or made.rule is None:
        raise SettingsError("there is no rule, or no link for it")
    sets: Tensor = made.rule(link.decision_probs(predictions.logits))
    return sets


def _chosen(predictions: Predictions, plan: Plan) -> tuple[Plan, Choice | None]:
    """Return the plan with ``auto`` replaced by what it chooses on these rows."""
    if plan.calibrator != "auto":
        return plan, None
    logits, labels, observed = predictions.logits, predictions.labels, predictions.observed
    try:
        choice = auto(
            logits, labels, predictions.link, observed, folds=min(plan.folds, len(predictions))
        )
    except ValueError as error:
        raise DataError(f"no calibrator can be fitted on these scores: {error}") from None
    kept = choice.link is predictions.link
    return replace(plan, calibrator="none" if kept else choice.name.replace(" ", "-")), choice


def _fit(predictions: Predictions, plan: Plan, choice: Choice | None = None) -> Fitted:
    """Return what the plan fits on these rows."""
    link, words = fit_calibrator(plan.calibrator, predictions, predictions.link)
    notes: tuple[str, ...] = ()
    if choice is not None:
        words = words and f"{words}, chosen by log loss over {choice.folds} folds"
        if link is None:
            notes = ("No calibrator had less log loss than the scores as they are.",)
    last = link or predictions.link
    compared = () if choice is None else choice.candidates
    if plan.rule == "none":
        return Fitted(link, words, None, "", compared, notes)
    if last is None:
        raise SettingsError(
            "these scores only rank, so no rule can be fitted; calibrate them first, "
            "for example with --calibrate platt"
        )
    rule, rule_words = fit_rule(plan.rule, predictions, last)
    return Fitted(link, words, rule, rule_words, compared, notes)


def _pair(made: Fitted) -> tuple[Link | None, Rule | None]:
    return made.link, made.rule


def _divided(
    table: ScoreTable, other: ScoreTable | None, fit_on: str | None, report_on: str | None
) -> tuple[Predictions, Predictions, str]:
    if other is None:
        if fit_on is None or report_on is None:
            raise SettingsError("--fit-on and --report-on go together: name both splits")
        if fit_on == report_on:
            raise SettingsError(f"--fit-on and --report-on must differ, got {fit_on!r} twice")
        return table.part(fit_on), table.part(report_on), fit_on
    held = table.part(fit_on) if fit_on else _only(table, None)
    seen = other.part(report_on) if report_on else _only(other, None)
    if set(held.names) != set(seen.names):
        name = sorted(set(held.names) ^ set(seen.names))[0]
        raise DataError(
            f"{table.source} and {other.source} must have the same labels, {name!r} is in one only"
        )
    shared = set(held.ids) & set(seen.ids)
    if shared:
        raise DataError(
            f"{table.source} and {other.source} share rows, first {min(shared)!r}; "
            "what is fitted on a row cannot be judged on it"
        )
    return held, _ordered(seen, held.names), table.source


def _only(table: ScoreTable, split: str | None) -> Predictions:
    """Return the rows of the split, or all where there is no choice to make."""
    if split == "all":
        return table.predictions
    if split is not None:
        return table.part(split)
    if table.split is None:
        return table.predictions
    there = sorted(set(table.split.tolist()))
    if len(there) > 1:
        raise SettingsError(
            f"{table.source} has the splits {', '.join(there)}; name one with --split "
            "(or fit and report with --fit-on and --report-on)"
        )
    return table.part(there[0])


def _ordered(predictions: Predictions, names: tuple[str, ...]) -> Predictions:
    if predictions.names == names:
        return predictions
    columns = [predictions.names.index(name) for name in names]
    observed = predictions.observed
    return replace(
        predictions,
        names=names,
        logits=predictions.logits[:, columns],
        labels=predictions.labels[:, columns],
        observed=None if observed is None else observed[:, columns],
    )

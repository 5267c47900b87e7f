"""Promises made on people's own scores, with what is fitted kept apart from what is promised on.

With cross-fitting, the calibrator is fitted again on all rows once the promise is made: see
``decide.cross_fit``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.calibration.link_specs import link_to_spec
from labelwise.decide import Check, Promised, find_promise
from labelwise.decide.cross_fit import CROSS_FITTED_SHARE, check_cross_fit
from labelwise.decide.specs import rule_to_spec
from labelwise.errors import SettingsError
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.scores.cross_validate import FitPlan, chosen_plan, divided_rows, fit_pair, split_rows
from labelwise.scores.fit import check_promises, cross_fitted, make_promise
from labelwise.scores.read import ScoreTable
from labelwise.scores.tables import FITTED_FORMAT, Kind

SHARE = 0.5  # of the rows, that test the promise


def _divided(rows: Predictions, share: float, seed: int) -> tuple[Predictions, Predictions]:
    """Return a share of the rows, or of their groups, and the rest."""
    if rows.groups is not None:
        first, others = rows.groups.divided(share, seed)
        return rows.take(first), rows.take(others)
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = max(1, min(len(rows) - 1, round(share * len(rows))))
    return rows.take(np.sort(order[:cut])), rows.take(np.sort(order[cut:]))


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

    def spec(self) -> dict[str, Any]:
        """Return it as plain data."""
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
                {
                    "verdict": c.verdict,
                    "value": c.value,
                    "lower": c.lower,
                    "upper": c.upper,
                    "photos": c.counted,
                }
                for c in self.checks
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
        held, words = (
            (table.part(fit_on), fit_on) if fit_on else (split_rows(table, None), table.source)
        )
    if not 0 < share < 1:
        raise SettingsError(f"the share for the promise must lie between 0 and 1, got {share}")
    link, link_words, rows = held.link, "", held
    fitted: Predictions | None = None
    if calibrator != "none":
        fitted, rows = _divided(held, 1 - share, seed)
        plan, choice = chosen_plan(fitted, FitPlan(calibrator, "none"))
        calibrator, made = plan.calibrator, fit_pair(fitted, plan, choice)
        link, link_words = made.link or held.link, made.link_words
    if link is None:
        raise SettingsError(
            "these scores only rank, so nothing can be promised; calibrate them first, "
            "for example with --calibrate platt"
        )
    promised = make_promise(
        wish, link, rows, fitted, photos=words, confidence=confidence, seed=seed
    )
    if cross_fit:
        promised, link = cross_fitted(promised, calibrator, link, held.link, held)
    checks: tuple[Check, ...] = ()
    if seen is not None:
        checks = check_promises(promised.promises, promised.rule, seen.with_link(link))
    part = "" if fitted is None else f"; the calibrator was fitted on {len(fitted):,} others"
    if cross_fit:
        part += f", and for the probabilities again on all {len(held):,}"
    return PromisedScores(
        promised,
        link,
        link_words,
        held.names,
        f"{len(rows):,} rows of {words}{part}",
        checks,
        table.kind,
    )

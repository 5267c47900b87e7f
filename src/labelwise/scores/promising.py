"""Promises made on people's own scores, with what is fitted kept apart from what is promised on.

Cross-fitting: a calibrator fitted on some rows orders the thresholds, the other rows test them, and
the probabilities that are used from then on come from a calibrator fitted on all rows. The promise
is one about sets, "label k where its logit is at least v_k"; with strictly rising links

    p_k >= t_k  under the first link   <=>   logit >= v_k   <=>   p'_k >= t'_k  under the second

so thresholds t'_k = second(first^-1(t_k)) choose the very sets that were tested, and nothing of the
rows that tested them has entered these sets. Few rows are enough to order thresholds, so more are
left to test them than where half is kept from the one calibrator there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from labelwise.decide import (
    Check,
    Evidence,
    Promised,
    Rule,
    Threshold,
    check_promise,
    find_promise,
)
from labelwise.errors import SettingsError
from labelwise.links import Link
from labelwise.methods import link_to_spec, rule_to_spec
from labelwise.predictions import Predictions
from labelwise.scores.judging import FitPlan, chosen_plan, divided_rows, fit_pair, split_rows
from labelwise.scores.read import ScoreTable, take
from labelwise.scores.tables import FITTED_FORMAT, Kind

__all__ = ["PromisedScores", "evidence_of", "promise_scores", "same_sets"]

SHARE, CROSS_FITTED_SHARE = 0.5, 0.8  # of the rows, that test the promise
NEAR = 1e-6  # between logits this far from a threshold on each side a link must rise
FAR = 1e3


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


@torch.no_grad()
def evidence_of(
    predictions: Predictions, link: Link, *, photos: str, fitted_on: Sequence[str] = ()
) -> Evidence:
    """Return predictions as photos that a promise can be made on."""
    probs = link.decision_probs(predictions.logits)
    return Evidence.read(
        probs,
        predictions.majority,
        predictions.observed,
        names=predictions.names,
        ids=predictions.ids,
        fitted_on=fitted_on,
        photos=photos,
    )


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
    if cross_fit and calibrator == "none":
        raise SettingsError("cross-fitting is of a calibrator; name one, such as platt")
    if cross_fit and wish.what == "tags":
        raise SettingsError(
            "tags take the most probable labels of a photo, which another calibrator would change; "
            "promise them without cross-fitting"
        )
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
    link, link_words, tuning, photos = held.link, "", None, held
    if calibrator != "none":
        order = np.random.default_rng(seed).permutation(len(held))
        cut = max(1, min(len(held) - 1, round((1 - share) * len(held))))
        fitted, photos = (take(held, np.sort(part)) for part in (order[:cut], order[cut:]))
        plan = chosen_plan(fitted, FitPlan(calibrator, "none"))
        made = fit_pair(fitted, *plan)
        link, link_words = made.link or held.link, made.link_words
        if link is not None:
            tuning = evidence_of(fitted, link, photos=words)
    if link is None:
        raise SettingsError(
            "these scores only rank, so nothing can be promised; calibrate them first, "
            "for example with --calibrate platt"
        )
    used = tuning.ids if tuning is not None and tuning.ids is not None else ()
    evidence = evidence_of(photos, link, photos=words, fitted_on=used)
    promised = wish(evidence, confidence, tuning, seed)
    if cross_fit:
        last = fit_pair(held, *plan).link or link
        rule = same_sets(promised.rule, link, last, held)
        promised, link = replace(promised, rule=rule), last
    checks: tuple[Check, ...] = ()
    if seen is not None:
        with torch.no_grad():
            sets = np.asarray(promised.rule(link.decision_probs(seen.logits).numpy()))
        checks = tuple(
            check_promise(p, sets, seen.majority, seen.observed, names=seen.names, ids=seen.ids)
            for p in promised.promises
        )
    part = "" if tuning is None else f"; the calibrator was fitted on {len(tuning):,} others"
    if cross_fit:
        part += f", and for the probabilities again on all {len(held):,}"
    return PromisedScores(
        promised,
        link,
        link_words,
        held.names,
        f"{len(evidence):,} rows of {words}{part}",
        checks,
        table.kind,
    )


@torch.no_grad()
def same_sets(rule: Rule, before: Link, after: Link, rows: Predictions) -> Threshold:
    """Return the thresholds under one link that choose the sets a rule chooses under another.

    They also choose the same sets of ``rows``, where rounding would part the two.
    """
    if not isinstance(rule, Threshold) or before.couples_labels or after.couples_labels:
        raise SettingsError(
            "only thresholds on links of single labels choose the same sets under another link; "
            "promise without cross-fitting"
        )
    given = np.broadcast_to(np.asarray(rule.value, dtype=np.float64), len(rows.names))
    inside = (given > 0) & (given < 1)
    start = torch.from_numpy(np.where(inside, given, 0.5))
    places = before.logits_at(start)
    for link in (before, after):
        low, high = (link.log_odds(places + move) for move in (-NEAR, NEAR))
        flat = np.flatnonzero(inside & ~(low < high).numpy())
        if len(flat):
            name = rows.names[flat[0]]
            raise SettingsError(
                f"the calibrator must rise, and at the threshold of {name!r} it does not; "
                "use platt, temperature or beta, or promise without cross-fitting"
            )
    chosen = torch.from_numpy(np.asarray(rule(before.decision_probs(rows.logits).numpy())))
    values = rows.logits.double()
    least = torch.where(chosen, values, torch.inf).amin(0).clamp(-FAR, FAR)
    most = torch.where(chosen, -torch.inf, values).amax(0).clamp(-FAR, FAR)
    above, below = (after.decision_probs(part).numpy() for part in (least, most))
    moved = np.minimum(after.decision_probs(places).numpy(), above)
    moved = np.where(moved > below, moved, above)  # rounding parts no photo from its side
    return Threshold(tuple(np.where(inside, moved, given).tolist()))

"""Wish: a promise that is asked for by its text, such as ``precision=0.9``.

Where photos come in groups, the same promise is also made photo by photo, only to say what it
would have been worth.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from labelwise.decide.fixed_sequence import check_levels
from labelwise.decide.groups import photo_warning
from labelwise.decide.promised_rules import (
    Promised,
    Scope,
    promise_f,
    promise_precision,
    promise_recall,
    promise_tags,
)
from labelwise.decide.promises import Evidence
from labelwise.errors import SettingsError


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
        made = self._made(evidence, confidence, tuning, seed)
        if evidence.groups is None:
            return made
        alone, others = evidence.ungrouped(), None if tuning is None else tuning.ungrouped()
        by_photo = self._made(alone, confidence, others, seed)
        if not by_photo.promises or self.scope == "label":
            return made
        warning = photo_warning(by_photo.promises[0], by_photo.rule, evidence)
        return replace(made, warning=warning)

    def _made(
        self, evidence: Evidence, confidence: float, tuning: Evidence | None, seed: int
    ) -> Promised:
        options: dict[str, Any] = {"level": self.level, "confidence": confidence}
        options |= {"tuning": tuning, "seed": seed}
        if self.what in ("precision", "recall"):
            promise = promise_precision if self.what == "precision" else promise_recall
            return promise(evidence, scope=self.scope, **options)
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
    check_levels(level, 0.5)
    return Wish(what, level, "label" if per_label else "shared")  # type: ignore[arg-type]

"""Rules as plain data, and back; what is made by its kind from plain data is made here."""

from collections.abc import Mapping
from inspect import signature
from typing import Any, TypeVar

from labelwise.decide.rules import (
    AtMost,
    ExpectedF,
    OnePerGroup,
    Rule,
    Threshold,
    TopK,
    WithParents,
)
from labelwise.errors import SettingsError
from labelwise.numeric.finite import require_finite, require_numbers
from labelwise.system.text import one_line_of
from labelwise.types import nearest

T = TypeVar("T")

RULES: dict[str, type[Rule]] = {
    rule.kind: rule for rule in (AtMost, ExpectedF, OnePerGroup, Threshold, TopK, WithParents)
}


def rule_to_spec(rule: Rule) -> dict[str, Any]:
    """Return a rule as plain data."""
    return {"kind": rule.kind, **rule.spec()}


def rule_from_spec(spec: Mapping[str, Any]) -> Rule:
    """Return the rule that ``rule_to_spec`` described."""
    return made_from_spec(spec, RULES, "rule")


def made_from_spec(spec: Mapping[str, Any], kinds: Mapping[str, type[T]], what: str) -> T:
    """Return the link or rule that plain data describes, if all of its numbers are numbers."""
    try:
        require_finite(spec, what)
        return _made(spec, kinds, what)
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise SettingsError(f"the {what} cannot be made: {one_line_of(error)}") from None


def _made(spec: Mapping[str, Any], kinds: Mapping[str, type[T]], what: str) -> T:
    """Return the link or rule that plain data describes, the ones inside it included."""
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise SettingsError(f"unknown {what} {kind!r:.60}{nearest(str(kind), kinds)}")
    inner = spec.get(what)
    if inner is not None and not (isinstance(inner, Mapping) and "kind" in inner):
        raise TypeError(f"the {what} inside must be one with a kind, got {inner!r:.60}")
    arguments = {
        key: _made(value, kinds, what) if isinstance(value, Mapping) and "kind" in value else value
        for key, value in spec.items()
        if key != "kind"
    }
    parameters = signature(kinds[kind]).parameters
    texts = {name for name, one in parameters.items() if isinstance(one.default, str)}
    for key in arguments.keys() - texts:  # some are kept as they come
        require_numbers(arguments[key], key)
    return kinds[kind](**arguments)

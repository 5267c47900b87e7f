"""Rules as plain data, and back."""

from collections.abc import Mapping
from typing import Any

from labelwise.decide.rules import (
    AtMost,
    ExpectedF,
    OnePerGroup,
    Rule,
    Threshold,
    TopK,
    WithParents,
)
from labelwise.links import made_from_spec

RULES: dict[str, type[Rule]] = {
    rule.kind: rule for rule in (AtMost, ExpectedF, OnePerGroup, Threshold, TopK, WithParents)
}


def rule_to_spec(rule: Rule) -> dict[str, Any]:
    """Return a rule as plain data."""
    return {"kind": rule.kind, **rule.spec()}


def rule_from_spec(spec: Mapping[str, Any]) -> Rule:
    """Return the rule that ``rule_to_spec`` described."""
    return made_from_spec(spec, RULES, "rule")

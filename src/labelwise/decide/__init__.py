"""From probabilities to label sets: rules, and functions that fit them."""

from labelwise.decide.grammar import RuleFit, find_rule, fit_rule
from labelwise.decide.risk import GroupRules, by_group, control_false_alarms, control_recall
from labelwise.decide.rules import NEVER, ExpectedF, Rule, Threshold, TopK, expected_f
from labelwise.decide.thresholds import average_k, best_f, least_cost, precision_at, recall_at

__all__ = [
    "NEVER",
    "ExpectedF",
    "GroupRules",
    "Rule",
    "RuleFit",
    "Threshold",
    "TopK",
    "average_k",
    "best_f",
    "by_group",
    "control_false_alarms",
    "control_recall",
    "expected_f",
    "find_rule",
    "fit_rule",
    "least_cost",
    "precision_at",
    "recall_at",
]

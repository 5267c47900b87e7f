"""From probabilities to label sets: rules, and functions that fit them."""

from labelwise.decide.average_k import average_k
from labelwise.decide.expected_f import ExpectedF, expected_f
from labelwise.decide.groups import GroupRules, by_group
from labelwise.decide.risk import control_false_alarms, control_recall
from labelwise.decide.rules import NEVER, Rule, Threshold, TopK
from labelwise.decide.thresholds import best_f, least_cost, precision_at, recall_at

__all__ = [
    "NEVER",
    "ExpectedF",
    "GroupRules",
    "Rule",
    "Threshold",
    "TopK",
    "average_k",
    "best_f",
    "by_group",
    "control_false_alarms",
    "control_recall",
    "expected_f",
    "least_cost",
    "precision_at",
    "recall_at",
]

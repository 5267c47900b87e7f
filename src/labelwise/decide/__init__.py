"""From probabilities to label sets: rules, and functions that fit them."""

from labelwise.decide.audits import Audit
from labelwise.decide.cut_lists import cut_to_try, is_believed, list_above, most_to_expect
from labelwise.decide.estimate import (
    Answered,
    CountEstimate,
    estimate_count,
    estimate_total,
    exact_count_bounds,
    recall_of,
)
from labelwise.decide.figures import LabelFigures, label_figures
from labelwise.decide.guarantee_spec import Wish, find_promise
from labelwise.decide.hypergeometric import ListBound, list_bound
from labelwise.decide.kept_lists import (
    KeptLists,
    ListAnswers,
    ListVerdict,
    judge_list,
    judge_lists,
)
from labelwise.decide.list_checks import (
    ListCheck,
    ListToCheck,
    error_share,
    list_to_check,
    prior_of,
    promised_check,
)
from labelwise.decide.parse_rule import RuleFit, find_rule, fit_rule
from labelwise.decide.promised_answers import PromisedAnswers, certainty, promise_answers
from labelwise.decide.promised_lists import (
    PromisedList,
    expected_list,
    least_wrong,
    lowest_cut,
    sure_list,
)
from labelwise.decide.promised_rules import (
    Promised,
    promise_f,
    promise_precision,
    promise_recall,
    promise_tags,
)
from labelwise.decide.promises import Check, Evidence, Promise, check_promise, percent
from labelwise.decide.risk import (
    GroupRules,
    by_group,
    control_f,
    control_false_alarms,
    control_precision,
    control_recall,
)
from labelwise.decide.rules import (
    NEVER,
    AtMost,
    ExpectedF,
    OnePerGroup,
    Rule,
    Threshold,
    TopK,
    WithParents,
    expected_f,
)
from labelwise.decide.thresholds import (
    average_k,
    best_f,
    false_alarms_at,
    least_cost,
    precision_at,
    recall_at,
    specificity_at,
)

__all__ = [
    "NEVER",
    "Answered",
    "AtMost",
    "Audit",
    "Check",
    "CountEstimate",
    "Evidence",
    "ExpectedF",
    "GroupRules",
    "KeptLists",
    "LabelFigures",
    "ListAnswers",
    "ListBound",
    "ListCheck",
    "ListToCheck",
    "ListVerdict",
    "OnePerGroup",
    "Promise",
    "Promised",
    "PromisedAnswers",
    "PromisedList",
    "Rule",
    "RuleFit",
    "Threshold",
    "TopK",
    "Wish",
    "WithParents",
    "average_k",
    "best_f",
    "by_group",
    "certainty",
    "check_promise",
    "control_f",
    "control_false_alarms",
    "control_precision",
    "control_recall",
    "cut_to_try",
    "error_share",
    "estimate_count",
    "estimate_total",
    "exact_count_bounds",
    "expected_f",
    "expected_list",
    "false_alarms_at",
    "find_promise",
    "find_rule",
    "fit_rule",
    "is_believed",
    "judge_list",
    "judge_lists",
    "label_figures",
    "least_cost",
    "least_wrong",
    "list_above",
    "list_bound",
    "list_to_check",
    "lowest_cut",
    "most_to_expect",
    "percent",
    "precision_at",
    "prior_of",
    "promise_answers",
    "promise_f",
    "promise_precision",
    "promise_recall",
    "promise_tags",
    "promised_check",
    "recall_at",
    "recall_of",
    "specificity_at",
    "sure_list",
]

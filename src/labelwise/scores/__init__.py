"""People's own scores: reading them, and judging calibrators and rules fitted on them."""

from labelwise.scores.fit import (
    FitPlan,
    Judged,
    crossfit,
    fixed_rule,
    judge,
    judge_as_given,
    promise_scores,
)
from labelwise.scores.fitted import (
    apply,
    comparison,
    decision,
    read_fitted,
    save_applied,
    save_calibration,
    save_intervals,
    save_json,
    save_probabilities,
)
from labelwise.scores.read import ScoreTable, read_scores, read_unlabelled
from labelwise.scores.run import RunScores, read_run, score_data

__all__ = [
    "FitPlan",
    "Judged",
    "RunScores",
    "ScoreTable",
    "apply",
    "comparison",
    "crossfit",
    "decision",
    "fixed_rule",
    "judge",
    "judge_as_given",
    "promise_scores",
    "read_fitted",
    "read_run",
    "read_scores",
    "read_unlabelled",
    "save_applied",
    "save_calibration",
    "save_intervals",
    "save_json",
    "save_probabilities",
    "score_data",
]

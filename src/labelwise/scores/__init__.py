"""People's own scores: reading them, and judging calibrators and rules fitted on them."""

from labelwise.scores.cross_validate import (
    CrossFit,
    FitPlan,
    FittedPair,
    Judged,
    PromisedScores,
    crossfit,
    fixed_rule,
    judge,
    judge_as_given,
    promise_scores,
)
from labelwise.scores.fitted import (
    Applied,
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
from labelwise.scores.read import ScoreTable, UnlabelledScores, read_scores, read_unlabelled
from labelwise.scores.run import RunScores, read_run, score_data

__all__ = [
    "Applied",
    "CrossFit",
    "FitPlan",
    "FittedPair",
    "Judged",
    "PromisedScores",
    "RunScores",
    "ScoreTable",
    "UnlabelledScores",
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

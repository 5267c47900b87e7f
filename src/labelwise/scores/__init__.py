"""People's own scores: reading them, and judging calibrators and rules fitted on them."""

from labelwise.scores.folds import CrossFit, crossfit
from labelwise.scores.judging import (
    Fitted,
    Judged,
    Plan,
    chosen_sets,
    fixed_rule,
    judge,
    judge_as_given,
)
from labelwise.scores.promising import PromisedScores, evidence_of, promise_scores
from labelwise.scores.read import ScoreTable, read_scores
from labelwise.scores.run import RunScores, read_run
from labelwise.scores.write import (
    comparison,
    decision,
    save_calibration,
    save_json,
    save_probabilities,
)

__all__ = [
    "CrossFit",
    "Fitted",
    "Judged",
    "Plan",
    "PromisedScores",
    "RunScores",
    "ScoreTable",
    "chosen_sets",
    "comparison",
    "crossfit",
    "decision",
    "evidence_of",
    "fixed_rule",
    "judge",
    "judge_as_given",
    "promise_scores",
    "read_run",
    "read_scores",
    "save_calibration",
    "save_json",
    "save_probabilities",
]

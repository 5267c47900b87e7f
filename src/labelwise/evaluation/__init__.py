"""Predictions × link × rule → Evaluation."""

from labelwise.evaluation.assemble import Subgroups, describe_link, evaluate
from labelwise.evaluation.cause import TrainingRows
from labelwise.evaluation.evaluation import (
    Calibration,
    Curve,
    DataFacts,
    Evaluation,
    Figure,
    LabelCurves,
    LabelRow,
    RankingFigures,
    RetrievalPoint,
    Sets,
    ShotGroup,
    StageScores,
    SubgroupFigure,
    SubgroupRow,
    ZeroLabel,
)
from labelwise.evaluation.mergeable import EvaluationSums, measure

__all__ = [
    "Calibration",
    "Curve",
    "DataFacts",
    "Evaluation",
    "EvaluationSums",
    "Figure",
    "LabelCurves",
    "LabelRow",
    "RankingFigures",
    "RetrievalPoint",
    "Sets",
    "ShotGroup",
    "StageScores",
    "SubgroupFigure",
    "SubgroupRow",
    "Subgroups",
    "TrainingRows",
    "ZeroLabel",
    "describe_link",
    "evaluate",
    "measure",
]

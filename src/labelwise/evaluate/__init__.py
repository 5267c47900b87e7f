"""Predictions × link × rule → Evaluation."""

from labelwise.evaluate.assemble import describe_link, evaluate
from labelwise.evaluate.evaluation import (
    Calibration,
    Curve,
    DataFacts,
    Evaluation,
    Figure,
    LabelRow,
    RankingFigures,
    RetrievalPoint,
    Sets,
    ShotGroup,
    StageScores,
    ZeroLabel,
)
from labelwise.evaluate.sums import EvaluationSums, measure

__all__ = [
    "Calibration",
    "Curve",
    "DataFacts",
    "Evaluation",
    "EvaluationSums",
    "Figure",
    "LabelRow",
    "RankingFigures",
    "RetrievalPoint",
    "Sets",
    "ShotGroup",
    "StageScores",
    "ZeroLabel",
    "describe_link",
    "evaluate",
    "measure",
]

"""Predictions × link × rule → Evaluation."""

from labelwise.evaluate.assemble import describe_link, evaluate
from labelwise.evaluate.evaluation import (
    Calibration,
    Curve,
    DataFacts,
    Evaluation,
    Figure,
    LabelRow,
    Quietness,
    RankingFigures,
    RetrievalPoint,
    Sets,
    ShotGroup,
    ZeroLabel,
)

__all__ = [
    "Calibration",
    "Curve",
    "DataFacts",
    "Evaluation",
    "Figure",
    "LabelRow",
    "Quietness",
    "RankingFigures",
    "RetrievalPoint",
    "Sets",
    "ShotGroup",
    "ZeroLabel",
    "describe_link",
    "evaluate",
]

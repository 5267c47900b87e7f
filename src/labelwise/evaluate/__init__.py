"""Predictions × link × rule → Evaluation."""

import sys
from types import ModuleType
from typing import Any

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


class _Evaluate(ModuleType):
    """This module, so that ``labelwise.evaluate(...)`` is what people guess it to be."""

    def __call__(self, *given: Any, **options: Any) -> Evaluation:
        return evaluate(*given, **options)


sys.modules[__name__].__class__ = _Evaluate

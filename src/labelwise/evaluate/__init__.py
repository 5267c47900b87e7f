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
from labelwise.evaluate.subgroups import Subgroups
from labelwise.evaluate.summing import measure
from labelwise.evaluate.sums import EvaluationSums

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

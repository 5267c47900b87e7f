"""Train, calibrate, decide and search with images that carry no label, one, or many.

    run = labelwise.train("photos.csv", backbone="resnet18", epochs=10)
    run = labelwise.load_run("runs/photos-auto")
    run.model().predict("new.jpg").labels

``load`` reads a table of labels, ``load_run`` a finished run, ``load_model`` a model in any form.
Names are imported when they are first used, so that ``import labelwise`` is instant; type checkers
and editors see them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelwise.system.lazy import imported_later

if TYPE_CHECKING:
    from labelwise import data, decide, metrics, objectives, retrieval
    from labelwise.api import calibrate, evaluate, export, load_run, predict, train
    from labelwise.data import LabelTable, load
    from labelwise.decide import Rule, Threshold, TopK
    from labelwise.errors import LabelwiseError
    from labelwise.evaluation import Evaluation
    from labelwise.links import Link, Sigmoid, Softmax
    from labelwise.methods import METHODS, Method
    from labelwise.models import (
        ModelSpec,
        Predictor,
        RunFolder,
        Scored,
        Scorer,
        load_model,
        score,
        scoring,
    )
    from labelwise.networks.heads import Head
    from labelwise.objectives import BCE, SPA, LabelPairs, Objective, Quasibinary, TwoWay
    from labelwise.photos import Index, search
    from labelwise.predictions import Predictions
    from labelwise.retrieval import Query, retrieval_map
    from labelwise.types import LabelSpace, Outputs, Targets

__version__ = "0.3.0"

__all__ = [
    "BCE",
    "METHODS",
    "SPA",
    "Evaluation",
    "Head",
    "Index",
    "LabelPairs",
    "LabelSpace",
    "LabelTable",
    "LabelwiseError",
    "Link",
    "Method",
    "ModelSpec",
    "Objective",
    "Outputs",
    "Predictions",
    "Predictor",
    "Quasibinary",
    "Query",
    "Rule",
    "RunFolder",
    "Scored",
    "Scorer",
    "Sigmoid",
    "Softmax",
    "Targets",
    "Threshold",
    "TopK",
    "TwoWay",
    "__version__",
    "calibrate",
    "data",
    "decide",
    "evaluate",
    "export",
    "load",
    "load_model",
    "load_run",
    "metrics",
    "objectives",
    "predict",
    "retrieval",
    "retrieval_map",
    "score",
    "scoring",
    "search",
    "train",
]

_MODULES = {name: name for name in ("data", "decide", "metrics", "objectives", "retrieval")}
_MODULES |= {"scoring": "models.scoring"}
_HOMES = {
    "api": ("calibrate", "evaluate", "export", "load_run", "predict", "train"),
    "data": ("LabelTable", "load"),
    "decide": ("Rule", "Threshold", "TopK"),
    "errors": ("LabelwiseError",),
    "evaluation": ("Evaluation",),
    "networks.heads": ("Head",),
    "links": ("Link", "Sigmoid", "Softmax"),
    "methods": ("METHODS", "Method"),
    "models": ("ModelSpec", "Predictor", "RunFolder", "Scored", "Scorer", "load_model", "score"),
    "objectives": ("BCE", "LabelPairs", "Objective", "Quasibinary", "SPA", "TwoWay"),
    "predictions": ("Predictions",),
    "retrieval": ("Query", "retrieval_map"),
    "photos": ("Index", "search"),
    "types": ("LabelSpace", "Outputs", "Targets"),
}

if not TYPE_CHECKING:  # else a checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"labelwise.{_MODULES[name]}")
        return imported_later("labelwise", _HOMES)(name)


def __dir__() -> list[str]:
    return __all__

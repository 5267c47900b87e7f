"""Train, calibrate, decide and search with images that carry no label, one, or many.

    run = labelwise.train("photos.csv", backbone="resnet18", epochs=10)
    run = labelwise.load_run("runs/photos-auto")
    run.model().predict("new.jpg").labels

``load`` reads a table of labels, ``load_run`` a finished run, ``load_model`` a model in any form.
Names are imported when they are first used, so that ``import labelwise`` is instant; type checkers
and editors see them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise import decide, metrics, queries, tables
    from labelwise.api import calibrate, evaluate, export, load_run, predict, train
    from labelwise.decide import Rule, Threshold, TopK
    from labelwise.errors import LabelwiseError
    from labelwise.evaluation import Evaluation
    from labelwise.learn import objectives
    from labelwise.learn.heads import Head
    from labelwise.learn.methods import METHODS, Method
    from labelwise.learn.objectives import BCE, SPA, LabelPairs, Objective, Quasibinary, TwoWay
    from labelwise.learn.predictor import Predictor
    from labelwise.links import Link, Sigmoid, Softmax
    from labelwise.models import ModelSpec, RunFolder, Scored, Scorer, load_model, score, scoring
    from labelwise.photos import Index, search
    from labelwise.predictions import Predictions
    from labelwise.queries import Query, retrieval_map
    from labelwise.tables import LabelTable, load
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
    "decide",
    "evaluate",
    "export",
    "load",
    "load_model",
    "load_run",
    "metrics",
    "objectives",
    "predict",
    "queries",
    "retrieval_map",
    "score",
    "scoring",
    "search",
    "tables",
    "train",
]

_MODULES = {name: name for name in ("decide", "metrics", "queries", "tables")}
_MODULES |= {"objectives": "learn.objectives", "scoring": "models.scoring"}
_FORMER = {"data": "tables", "retrieval": "queries"}  # rooms as they were called until 0.3
_HOMES = {
    "api": ("calibrate", "evaluate", "export", "load_run", "predict", "train"),
    "tables": ("LabelTable", "load"),
    "decide": ("Rule", "Threshold", "TopK"),
    "errors": ("LabelwiseError",),
    "evaluation": ("Evaluation",),
    "learn.heads": ("Head",),
    "links": ("Link", "Sigmoid", "Softmax"),
    "learn.methods": ("METHODS", "Method"),
    "learn.predictor": ("Predictor",),
    "models": ("ModelSpec", "RunFolder", "Scored", "Scorer", "load_model", "score"),
    "learn.objectives": ("BCE", "LabelPairs", "Objective", "Quasibinary", "SPA", "TwoWay"),
    "predictions": ("Predictions",),
    "queries": ("Query", "retrieval_map"),
    "photos": ("Index", "search"),
    "types": ("LabelSpace", "Outputs", "Targets"),
}

if not TYPE_CHECKING:  # else a checker would believe in any name

    def __getattr__(name: str) -> object:
        if name in _MODULES or name in _FORMER:
            return import_module(f"labelwise.{_MODULES.get(name) or _FORMER[name]}")
        return imported_later("labelwise", _HOMES)(name)


def __dir__() -> list[str]:
    return __all__

"""Train, calibrate, decide and search with images that carry no label, one, or many.

Names are imported when they are first used, so that ``import labelwise`` is instant.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BCE": "objectives",
    "LabelTable": "data",
    "Link": "links",
    "METHODS": "methods",
    "Objective": "objectives",
    "Outputs": "types",
    "Predictions": "predictions",
    "Predictor": "predictor",
    "Quasibinary": "objectives",
    "Query": "retrieval",
    "SPA": "objectives",
    "Sigmoid": "links",
    "Softmax": "links",
    "Targets": "types",
    "Threshold": "decide",
    "TopK": "decide",
    "TwoWay": "objectives",
    "load": "data",
    "retrieval_map": "retrieval",
}
_MODULES = ("calibrate", "decide", "evaluate", "metrics", "objectives", "retrieval")

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"labelwise.{name}")
    if name in _HOMES:
        return vars(import_module(f"labelwise.{_HOMES[name]}"))[name]
    raise AttributeError(f"module 'labelwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

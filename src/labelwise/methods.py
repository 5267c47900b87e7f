"""METHODS: the only place where a name becomes an object.

A method is a named bundle of head and objective, with a sentence, a source and an honest word on
what its probabilities are. Links, heads and methods are looked up here and nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from labelwise.errors import SettingsError
from labelwise.heads import Head, LinearHead
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.objectives import BCE, Objective
from labelwise.types import DatasetFacts, nearest

__all__ = [
    "HEADS",
    "LINKS",
    "METHODS",
    "Method",
    "find_method",
    "link_from_spec",
    "link_to_spec",
]

Honesty = Literal["proper", "improper", "ranking only"]


@dataclass(frozen=True)
class Method:
    """A named way to train: how its objective is made, which head it needs, what it promises.

    ``make(facts, **options)`` returns the objective; ``options`` names its knobs and defaults.
    """

    make: Callable[..., Objective]
    probabilities: Honesty
    sentence: str
    source: str
    head: str = "linear"
    options: Mapping[str, Any] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "bce": Method(
        make=lambda facts: BCE(),
        probabilities="proper",
        sentence="Binary cross-entropy: every label its own coin.",
        source="METHODS baseline of all five papers",
    ),
}

HEADS: dict[str, type[Head]] = {"linear": LinearHead}

LINKS: dict[str, type[Link]] = {link.kind: link for link in (Sigmoid, Softmax)}


def find_method(name: str) -> Method:
    """Return the method of that name; an unknown name says which are nearest."""
    if name not in METHODS:
        raise SettingsError(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def make_objective(name: str, facts: DatasetFacts, **options: Any) -> Objective:
    """Return the objective of a method for a training set, with the method's knobs set."""
    method = find_method(name)
    for option in options:
        if option not in method.options:
            raise SettingsError(
                f"method {name!r} has no option {option!r}{nearest(option, method.options)}"
            )
    return method.make(facts, **options)


def link_to_spec(link: Link) -> dict[str, Any]:
    """Return a link as plain data, nested links included."""
    spec = {
        key: link_to_spec(value) if isinstance(value, Link) else value
        for key, value in link.spec().items()
    }
    return {"kind": link.kind, **spec}


def link_from_spec(spec: Mapping[str, Any]) -> Link:
    """Return the link that ``link_to_spec`` described."""
    kind = spec.get("kind")
    if kind not in LINKS:
        raise SettingsError(f"unknown link {kind!r}{nearest(str(kind), LINKS)}")
    arguments = {
        key: link_from_spec(value) if isinstance(value, Mapping) and "kind" in value else value
        for key, value in spec.items()
        if key != "kind"
    }
    return LINKS[kind](**arguments)

"""Methods, heads, links and rules by name: they are looked up here (rules in ``decide.rules``).

A method is a named bundle of head and objective, with a sentence, a source and an honest word on
what its probabilities are.
"""

from collections.abc import Callable, Iterable
from typing import Any

from labelwise.calibration.auto import LINKS, link_from_spec, link_to_spec
from labelwise.decide.rules import RULES, rule_from_spec, rule_to_spec
from labelwise.errors import SettingsError
from labelwise.learn.heads import BoostHead, Head, LinearHead, MLDecoder, QueryDecoder, TwoHead
from labelwise.learn.methods.catalogue import METHODS, READINGS, Method
from labelwise.learn.objectives import Objective
from labelwise.models.spec import HeadSpec
from labelwise.types import DatasetFacts, nearest

__all__ = [
    "HEADS",
    "LINKS",
    "METHODS",
    "READINGS",
    "RULES",
    "Method",
    "check_options",
    "find_head",
    "find_method",
    "link_from_spec",
    "link_to_spec",
    "make_head",
    "make_objective",
    "rule_from_spec",
    "rule_to_spec",
]

HEADS: dict[str, type[Head]] = {
    "boostlu": BoostHead,
    "linear": LinearHead,
    "ml-decoder": MLDecoder,
    "query2label": QueryDecoder,
    "two-head": TwoHead,
}


LEFT = {
    "em": "entropy.py:EntropyMaximisation",
    "em+apl": "entropy.py:EntropyWithPseudoLabels",
    "gr": "robust.py:GeneralizedRobust",
    "ll-ct": "large_losses.py:LargeLossCorrected",
    "ll-cp": "large_losses.py:LargeLossForGood",
}


def find_method(name: str) -> Method:
    """Return the method of that name; an unknown name says which are nearest."""
    if name in LEFT:
        raise SettingsError(
            f"the method {name!r} is no longer built in; compare it as evidence/methods/"
            f"{LEFT[name]} of labelwise's sources"
        )
    if name not in METHODS:
        raise SettingsError(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def find_head(name: str) -> Callable[..., Head]:
    """Return what makes the heads of that name; an unknown name says which are nearest."""
    if name not in HEADS:
        raise SettingsError(f"unknown head {name!r}{nearest(name, HEADS)}")
    return HEADS[name]


def make_head(spec: HeadSpec, channels: int, num_labels: int) -> Head:
    """Return a new head for features of so many channels."""
    try:
        return find_head(spec.name)(channels, num_labels, **spec.options)
    except TypeError as error:
        raise SettingsError(f"head {spec.name!r}: {error}") from None


def make_objective(name: str, facts: DatasetFacts, **options: Any) -> Objective:
    """Return the objective of a method for a training set, with some of its options set."""
    check_options(name, options)
    return find_method(name).objective(facts, **options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise if a method has no option of such a name; the message says which are nearest."""
    known = find_method(name).options
    for option in options:
        if option not in known:
            raise SettingsError(f"method {name!r} has no option {option!r}{nearest(option, known)}")

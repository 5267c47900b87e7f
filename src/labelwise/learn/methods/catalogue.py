"""METHODS: every way to train, by name, as ``catalogue.toml`` says; READINGS: their readings."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from inspect import signature
from typing import Any, Literal

from labelwise.learn import objectives
from labelwise.learn.objectives import (
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    SPA,
    Asymmetric,
    Focusing,
    Objective,
    Side,
)
from labelwise.types import DatasetFacts

Honesty = Literal["proper", "improper", "ranking only"]


@dataclass(frozen=True)
class Method:
    """A named way to train: its objective, its options, its head, what its probabilities are.

    ``make(**options)`` returns the objective. Its keyword arguments (or those of ``arguments``,
    where it only passes them on) are the options, with their defaults, except what ``changed``
    says. ``from_facts`` names arguments that the training set supplies; one of another name than
    its fact is an option too, None by default. ``tuning`` holds the values that are tried for an
    option where methods are tuned.
    """

    make: Callable[..., Objective]
    probabilities: Honesty
    sentence: str
    source: str
    head: str = "linear"
    arguments: Callable[..., Any] | None = None
    changed: Mapping[str, object] = field(default_factory=dict)
    from_facts: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, object]:
        parameters = signature(self.arguments or self.make).parameters.items()
        stated = {name: own.default for name, own in parameters if name != "link"}
        merged = {**stated, **dict.fromkeys(self.from_facts), **self.changed}
        return {k: value for k, value in merged.items() if self.from_facts.get(k) != k}

    def objective(self, facts: DatasetFacts, **options: Any) -> Objective:
        supplied = {name: getattr(facts, fact) for name, fact in self.from_facts.items()}
        merged = {**self.options, **options}
        given = {k: v for k, v in merged.items() if v is not None or k not in supplied}
        return self.make(**{**supplied, **given})


def spa(
    *,
    zeta_pos: float = CROSS_ENTROPY.zeta,
    k_pos: float = CROSS_ENTROPY.k,
    b_pos: float = CROSS_ENTROPY.b,
    zeta_neg: float = EASY_NEGATIVES.zeta,
    k_neg: float = EASY_NEGATIVES.k,
    b_neg: float = EASY_NEGATIVES.b,
) -> Objective:
    """Return the strictly proper asymmetric loss of six numbers."""
    return SPA(Side(zeta_pos, k_pos, b_pos), Side(zeta_neg, k_neg, b_neg))


def asymmetric(**options: Any) -> Objective:
    """Return the asymmetric loss of the options of its focusing."""
    return Asymmetric(Focusing(**options))


def _maker(objective: Callable[..., Objective], adds: str | None) -> Callable[..., Objective]:
    """Return what makes an objective: alone, read through phi, or with a term of a weight."""
    if adds is None:
        return objective

    def through_phi(*, phi: Literal["right", "printed"], **options: Any) -> Objective:
        return Asymmetric(Focusing(**options), phi=phi)

    def with_pairs(*, lpr_weight: float, **options: Any) -> Objective:
        total: Objective = objective(**options) + lpr_weight * objectives.LabelPairs()
        return total

    def with_term(*, term_weight: float, **options: Any) -> Objective:
        total: Objective = objective(**options) + term_weight * getattr(objectives, adds)()
        return total

    builders: dict[str, Callable[..., Objective]] = {"phi": through_phi, "LabelPairs": with_pairs}
    return builders.get(adds, with_term)


def _method(objective: str, adds: str | None = None, reading: str = "", **stated: Any) -> Method:
    made = {"spa": spa, "asymmetric": asymmetric}
    make = made[objective] if objective in made else getattr(objectives, objective)
    tuning = {name: tuple(values) for name, values in stated.pop("tuning", {}).items()}
    arguments = Focusing if make is asymmetric else make
    return Method(_maker(make, adds), arguments=arguments, tuning=tuning, **stated)


_ENTRIES = tomllib.loads(files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8"))
METHODS: dict[str, Method] = {name: _method(**entry) for name, entry in _ENTRIES.items()}
READINGS: dict[str, str] = {name: entry["reading"] for name, entry in _ENTRIES.items()}

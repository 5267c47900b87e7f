"""Method: a named way to train, with everything that belongs to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, Literal

from labelwise.objectives import Objective
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
    changed: Mapping[str, Any] = field(default_factory=dict)
    from_facts: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options and their defaults."""
        parameters = signature(self.arguments or self.make).parameters
        stated = {name: one.default for name, one in parameters.items()}
        supplied = {name: None for name in self.from_facts}
        merged = {**stated, **supplied, **self.changed}
        return {k: value for k, value in merged.items() if self.from_facts.get(k) != k}

    def objective(self, facts: DatasetFacts, **options: Any) -> Objective:
        """Return the objective for a training set, with some of the options set."""
        supplied = {name: getattr(facts, fact) for name, fact in self.from_facts.items()}
        merged = {**self.options, **options}
        given = {k: v for k, v in merged.items() if v is not None or k not in supplied}
        return self.make(**{**supplied, **given})

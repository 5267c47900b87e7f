"""A rule for each group of images, such as each camera or each site."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Matrix, as_numpy
from labelwise.decide.rules import Rule
from labelwise.errors import DataError
from labelwise.types import nearest

__all__ = ["GroupRules", "by_group"]


@dataclass(frozen=True)
class GroupRules:
    """The rule of each group."""

    rules: Mapping[str, Rule]

    def __call__(self, probs: Matrix, groups: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the (N, K) sets of images whose groups (N,) are given."""
        values, names = as_numpy(probs), _names(groups, len(probs))
        sets = np.zeros(values.shape, dtype=bool)
        for name in np.unique(names).tolist():
            if name not in self.rules:
                raise DataError(f"no rule was fitted for group {name!r}{nearest(name, self.rules)}")
            rows = names == name
            sets[rows] = self.rules[name](values[rows])
        return sets


def by_group(
    fit: Callable[..., Rule],
    probs: Matrix,
    labels: Matrix,
    groups: NDArray[Any],
    observed: Matrix | None = None,
    **options: Any,
) -> GroupRules:
    """Return the rules ``fit(probs, labels, observed, **options)`` of the images of each group.

    A promise made by the fit then holds within each group.
    """
    values, truth, names = as_numpy(probs), as_numpy(labels), _names(groups, len(probs))
    seen = None if observed is None else as_numpy(observed)
    rules = {}
    for name in np.unique(names).tolist():
        rows = names == name
        part = None if seen is None else seen[rows]
        rules[name] = fit(values[rows], truth[rows], part, **options)
    return GroupRules(rules)


def _names(groups: NDArray[Any], count: int) -> NDArray[np.str_]:
    names = np.asarray(groups)
    if names.shape != (count,):
        raise ValueError(f"groups must name each of the {count} images, got shape {names.shape}")
    return names.astype(str)

"""Intervals over seeds, paired differences, and what they allow us to say.

    interval    mean ± t(n-1, 97.5 %) s / sqrt(n), from three seeds on
    difference  d = mean of a_i - b_i, seed by seed: runs of one seed share data and order
                var d = s_d^2 / n + sum over test images m of (U_am - U_bm)^2
    verdict     all pairs of methods sorted by p, the j-th held against 5 % / t_j

The best method is found on the data that then judges it, so all m (m - 1) / 2 pairs are tested. t_j
is the largest number of pairs that can be equal when j - 1 are not (Shaffer 1986: equal methods
form groups, and a group of g has g (g - 1) / 2 pairs). The chance of any false claim in a table is
then at most 5 %.

U_am is how much image m moves the mean figure of a (the infinitesimal jackknife); of images in
groups, what all images of group m move. Degrees of freedom are Satterthwaite's: the images' are
taken as many, the groups' are those of :func:`labelwise.numeric.groups.freedom_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, isfinite, isinf, isnan, nan, sqrt

import numpy as np

from labelwise.numeric.special import stdtr, stdtrit

Covariance = Mapping[str, Mapping[str, float]]
ENOUGH = 3  # runs that an interval over seeds needs


@dataclass(frozen=True)
class SeedMean:
    """A mean over n runs with its 95 % interval; infinite with fewer than ``ENOUGH`` runs."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """``first - second`` over shared seeds: its interval, p value, and what all pairs allow."""

    first: str
    second: str
    over_seeds: SeedMean
    p_value: float
    distinguishable: bool = False


def seed_mean(values: Sequence[float]) -> SeedMean:
    """Return the mean of the defined values with its 95 % interval over runs."""
    kept = np.array([value for value in values if not isnan(value)])
    if not len(kept):
        return SeedMean(nan, nan, nan, 0)
    mean = float(kept.mean())
    if len(kept) < ENOUGH or isinf(mean):
        return SeedMean(mean, -inf, inf, len(kept))
    half = float(stdtrit(len(kept) - 1, 0.975) * kept.std(ddof=1) / sqrt(len(kept)))
    return SeedMean(mean, mean - half, mean + half, len(kept))


def paired_difference(
    first: str,
    second: str,
    values: Mapping[str, Mapping[int, float]],
    image_covariance: Covariance | None = None,
    freedom: float = inf,
) -> Difference:
    """Return ``values[first] - values[second]`` over shared seeds, with the variance of images."""
    seeds = sorted(set(values[first]) & set(values[second]))
    gaps = [values[first][seed] - values[second][seed] for seed in seeds]
    over_seeds = seed_mean(gaps)
    if over_seeds.n < 2:
        return Difference(first, second, over_seeds, 1.0)
    by_seeds = float(np.var(gaps, ddof=1)) / over_seeds.n
    by_images = 0.0
    if image_covariance is not None:
        first_row, other = image_covariance[first], image_covariance[second]
        by_images = max(first_row[first] + other[second] - 2 * first_row[second], 0.0)
    spread = sqrt(by_seeds + by_images)
    if spread == 0:
        return Difference(first, second, over_seeds, 1.0 if over_seeds.mean == 0 else 0.0)
    parts = by_seeds**2 / (over_seeds.n - 1)
    parts += by_images**2 / freedom
    joint = (by_seeds + by_images) ** 2 / parts if parts else inf
    p_value = float(2 * stdtr(joint, -abs(over_seeds.mean) / spread))
    return Difference(first, second, over_seeds, p_value)


def compare_to_best(
    values: Mapping[str, Mapping[int, float]],
    *,
    higher_is_better: bool,
    image_covariance: Covariance | None = None,
    freedom: float = inf,
) -> list[Difference]:
    """Return the difference of every method to the best one, decided among all pairs."""
    means = {name: seed_mean(list(by_seed.values())).mean for name, by_seed in values.items()}
    defined = {name: mean for name, mean in means.items() if isfinite(mean)}
    if len(defined) < 2:
        return []
    best = (max if higher_is_better else min)(defined, key=defined.__getitem__)
    others = [name for name in defined if name != best]
    pairs = [(name, best) for name in others] + list(combinations(others, 2))
    gaps = [paired_difference(*pair, values, image_covariance, freedom) for pair in pairs]
    told_apart = shaffer([gap.p_value for gap in gaps], len(defined))
    decided = [
        replace(gap, distinguishable=apart)
        for gap, apart in zip(gaps, told_apart, strict=True)
        if gap.second == best
    ]
    return sorted(decided, key=lambda gap: gap.p_value)


def shaffer(p_values: Sequence[float], methods: int, alpha: float = 0.05) -> list[bool]:
    """Return which of all pairs of the methods are told apart, at most ``alpha`` for any error."""
    possible = np.array(sorted(_equal_pairs(methods)))
    order, told_apart = np.argsort(p_values, kind="stable"), [False] * len(p_values)
    for rejected, pair in enumerate(order.tolist()):
        left = possible[possible <= len(p_values) - rejected].max()
        if p_values[pair] > alpha / left:
            break
        told_apart[pair] = True
    return told_apart


@lru_cache
def _equal_pairs(methods: int) -> frozenset[int]:
    """Return how many pairs can be equal: a group of g equal methods, and those of the rest."""
    if methods < 2:
        return frozenset({0})
    return frozenset(
        group * (group - 1) // 2 + rest
        for group in range(1, methods + 1)
        for rest in _equal_pairs(methods - group)
    )


def verdict(
    metric: str,
    differences: Sequence[Difference],
    *,
    higher_is_better: bool,
    images: bool = False,
    groups: int | None = None,
) -> str:
    """Say which methods differ significantly from the best one, and which do not."""
    if not differences:
        return f"{metric}: fewer than two methods have a value, so there is nothing to compare."
    best = differences[0].second
    runs = min(gap.over_seeds.n for gap in differences)
    if runs < 2:
        return f"{metric}: {best} is ahead, but one seed cannot tell luck from skill."
    behind = [gap.first for gap in differences if gap.distinguishable]
    level = [gap.first for gap in differences if not gap.distinguishable]
    word = "higher" if higher_is_better else "lower"
    parts = []
    if behind:
        drawn = "test images" if groups is None else f"{groups:,} groups of test images"
        chance = f"{runs} seeds and of the {drawn}" if images else f"{runs} seeds"
        parts.append(f"{best} is {word} than {_listed(behind)} beyond the spread of {chance}")
    if level:
        parts.append(f"{best} does not differ significantly from {_listed(level)}")
    return f"{metric}: {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

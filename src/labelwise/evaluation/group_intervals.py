"""Intervals of figures on photos that come in groups: the jackknife that leaves out whole groups.

    se^2 = (G - 1) / G sum_g (v_g - mean v)^2,        v_g the figure without group g

with quantiles of Student's law, whose degrees of freedom are G - 1, or fewer where few groups carry
the variance (:func:`labelwise.numeric.groups.freedom_of`). The values without a group are exact
for means (sums less what the group adds), F1 (counts likewise) and average precision (the ranking
without the group's photos). Of more than 200 groups, whole ones are put together by chance and 200
are left out in turn, which estimates the same variance.

Of fewer than 15 groups a skewed mean, such as the log loss, is held less often: with 5, 8 and 10
uneven ones alike by 0.8, 95 % intervals held it in 90, 91 and 92 % of 600 draws, with 15, 20 and 40
in 93 to 95 (``benchmarks/group_figures.py --only few``). A note says so.

Photos of a group are alike, so that the variance over photos is too small by the design effect;
see :mod:`labelwise.numeric.groups`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics import average_precision
from labelwise.numeric.groups import Groups, freedom_of
from labelwise.numeric.special import stdtrit
from labelwise.system.text import counted

Floats = NDArray[np.float64]
MOST_LEFT_OUT = 200  # groups that are left out one after another
FEW = 15  # groups; of fewer, intervals of a skewed mean are too narrow


def student_reach(moved: Floats, most: float = np.inf) -> float:
    """Return how many standard errors a 95 % interval reaches each way, as groups move it (G,).

    There are at most ``most`` degrees of freedom.
    """
    return float(stdtrit(min(freedom_of(moved), most), 0.975))


def mean_interval_by_group(
    value: float | None, sums: Floats, counts: NDArray[np.generic], groups: Groups, highest: float
) -> tuple[float | None, float | None]:
    """Return the interval of sum of ``sums`` / sum of ``counts`` (N,), cut to [0, highest]."""
    added, weights = groups.sums(sums), groups.sums(counts)
    added, weights = added[weights > 0], weights[weights > 0]
    count = len(weights)
    if value is None or count < 2 or not np.isfinite(added).all():
        return None, None
    without = (added.sum() - added) / (weights.sum() - weights)
    moved = without - without.mean()
    error = np.sqrt((count - 1) / count * (moved**2).sum())
    half = student_reach(moved) * float(error)
    return max(0.0, value - half), min(highest, value + half)


def mean_ap_without_groups(
    scores: NDArray[Any], present: NDArray[Any], known: NDArray[Any] | None, groups: Groups
) -> Floats:
    """Return the mean average precision without each group (G,), over the labels that have one.

    Without the only group that has a label, its average precision stays as it is.
    """
    parts = groups.bundled(MOST_LEFT_OUT)
    total, labels = np.zeros(parts.count), 0
    for column in range(scores.shape[1]):
        rows = slice(None) if known is None else known[:, column]
        hits, values = present[:, column][rows], scores[:, column][rows]
        if hits.any():
            total += _ap_without(values, hits, parts.codes[rows], parts.count)
            labels += 1
    return total / max(labels, 1)


def _ap_without(
    scores: NDArray[np.floating], hits: NDArray[np.bool_], codes: NDArray[np.int64], count: int
) -> Floats:
    """Return one label's average precision without each group (G,)."""
    order = np.argsort(-scores, kind="stable")
    score, hit, code = scores[order], hits[order], codes[order]
    whole = average_precision(score[:, None], hit[:, None]).value
    values = np.full(count, whole)
    for group in np.unique(code):
        kept = code != group
        if hit[kept].any():
            values[group] = _ranked_ap(score[kept], hit[kept])
    return values


def _ranked_ap(score: NDArray[np.floating], hit: NDArray[np.bool_]) -> float:
    """Return the average precision of falling scores, equal ones as one threshold."""
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True))
    right = np.cumsum(hit)[last].astype(np.float64)
    gained = np.diff(right, prepend=0.0)
    return float((gained * right / (last + 1)).sum() / right[-1])


def macro_f1_without_groups(
    sets: NDArray[Any], present: NDArray[Any], known: NDArray[Any] | None, groups: Groups
) -> Floats:
    """Return the mean F1 without each group (G,), over the labels present or chosen somewhere."""
    parts = groups.bundled(MOST_LEFT_OUT)
    chosen = sets if known is None else sets & known
    both, size = (
        parts.sums(part)
        for part in (2 * (chosen & present).astype(np.int64), chosen.astype(np.int64) + present)
    )
    some = size.sum(0) > 0
    left = size.sum(0)[some] - size[:, some]
    whole = both.sum(0)[some] / size.sum(0)[some]
    hits = both.sum(0)[some] - both[:, some]
    scores = np.where(left > 0, hits / np.maximum(left, 1), whole)
    return np.asarray(scores.mean(1)) if some.any() else np.zeros(parts.count)


def groups_note(groups: Groups | None, influence: Floats | None) -> tuple[str, ...]:
    """Return a sentence on the groups of the photos, and how alike these are; none without.

    ``influence`` (N,) is what each photo moves the log loss by, where there is one.
    """
    if groups is None:
        return ()
    least, most = int(groups.sizes.min()), int(groups.sizes.max())
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = (
        f"The {len(groups):,} photos come in {counted(groups.count, 'group')} of {sizes}: "
        "intervals and tests leave out or draw whole groups"
    )
    effect = None if influence is None else groups.design_effect(influence)
    if effect is not None and effect > 1:
        text += (
            f". By the log loss, photos of a group are alike: design effect {effect:.1f}, as good "
            f"as {len(groups) / effect:,.0f} independent photos, and intervals over photos would "
            f"be {1 / np.sqrt(effect):.0%} as wide as they have to be"
        )
    few = f"With fewer than {FEW} groups these intervals may be too narrow."
    return (f"{text}.", *([few] if 1 < groups.count < FEW else []))

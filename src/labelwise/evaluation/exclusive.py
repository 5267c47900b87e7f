"""Labels that exclude each other: how often the right one is chosen, and who breaks their rule.

    accuracy = photos whose set holds of the group what is there / photos with the group known

with the interval of Clopper and Pearson, or, of photos that come in groups, the jackknife over
groups. Labels that break the rule are a conflict: they are counted, and unknown from there on.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from labelwise.evaluation.calibration import Known
from labelwise.evaluation.evaluation import ExclusiveRow
from labelwise.evaluation.group_intervals import mean_interval_by_group
from labelwise.numeric.bounds import clopper_pearson
from labelwise.predictions import Predictions
from labelwise.system.text import counted
from labelwise.taxonomy import AttributeColumns


def settled_labels(
    predictions: Predictions, columns: AttributeColumns
) -> tuple[Predictions, list[int]]:
    """Return predictions whose labels obey the groups, and the clashes of each group."""
    if predictions.has_soft_labels():  # soft ones may share
        return predictions, [0] * len(columns.groups)
    clashes = []
    for group in columns.groups:
        predictions, found = predictions.settled(columns.alone(group))
        clashes.append(int(found.conflicts.sum()))
    return predictions, clashes


def clash_note(count: int) -> tuple[str, ...]:
    """Return what was done with labels that break a rule, if some do."""
    if not count:
        return ()
    return (
        f"{counted(count, 'photo')} with labels that exclude each other, or with none of a group "
        "that must have one: which is wrong nobody knows, so these labels are taken as unknown "
        "(labelwise data rules lists them).",
    )


def exclusive_rows(
    columns: AttributeColumns,
    names: Sequence[str],
    known: Known,
    sets: NDArray[Any] | None,
    clashes: Sequence[int],
) -> tuple[ExclusiveRow, ...]:
    """Return the figures of each group; ``clashes`` are its photos with labels that break it."""
    return tuple(
        _row(columns, group, names, known, sets, count)
        for group, count in zip(columns.groups, clashes, strict=True)
    )


def _row(
    columns: AttributeColumns,
    group: tuple[int, ...],
    names: Sequence[str],
    known: Known,
    sets: NDArray[Any] | None,
    clashes: int,
) -> ExclusiveRow:
    labels, needs_one = tuple(names[column] for column in group), group in columns.exactly_one
    observed = None if known.observed is None else known.observed
    present = known.present
    chosen = present if sets is None else sets
    seen, same = columns.right_rows(group, chosen, present, observed)
    total, right = int(seen.sum()), int(same.sum())
    if sets is None:
        return ExclusiveRow(labels, needs_one, total, clashes=clashes)
    share = right / total if total else None
    low: float | None
    high: float | None
    if known.groups is not None:
        low, high = mean_interval_by_group(share, same.astype(float), seen, known.groups, 1.0)
    elif total:
        low, high = clopper_pearson(right, total, 0.975)
    else:
        low = high = None
    broken = int(columns.broken(group, chosen).sum())
    return ExclusiveRow(labels, needs_one, total, clashes, right, share, low, high, broken)

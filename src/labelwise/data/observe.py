"""Tables of which less is known, or less is right: single positives, partial labels, noise.

Single positives as in Cole et al. 2021, bit for bit: RandomState(seed), made anew for the training
file (train and val rows, in order) and for the test file; for each image the positive columns are
shuffled and the first is kept, then the negative columns are shuffled too, although none is kept.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import LabelSets, LabelTable
from labelwise.errors import SettingsError

Change = Callable[
    [NDArray[np.bool_], NDArray[np.bool_]], tuple[NDArray[np.bool_], NDArray[np.bool_]]
]


def observe_uniform(
    labels: NDArray[np.generic], *, num_pos: int = 1, num_neg: int = 0, seed: int = 1200
) -> NDArray[np.int8]:
    """Return (N, K): 1 where a label is observed present, -1 observed absent, 0 not observed."""
    random = np.random.RandomState(seed)
    observed = np.zeros(labels.shape, np.int8)
    for row, truth in enumerate(labels.astype(np.bool_)):
        positives, negatives = np.flatnonzero(truth), np.flatnonzero(~truth)
        random.shuffle(positives)
        observed[row, positives[:num_pos]] = 1
        random.shuffle(negatives)
        observed[row, negatives[:num_neg]] = -1
    return observed


def single_positive(
    table: LabelTable,
    *,
    num_pos: int = 1,
    num_neg: int = 0,
    seed: int = 1200,
    splits: Collection[str] = ("train",),
) -> LabelTable:
    """Return the table where rows of ``splits`` keep one present label and the rest is unknown.

    Without a split column every row is corrupted. An image without label becomes unlabelled.
    """
    table.require_hard("single positives are chosen among labels that are 0 or 1")
    labels, known = table.targets()
    split = np.full(len(table), "train") if table.split is None else table.split
    for is_test in (False, True):
        rows = np.flatnonzero((split == "test") == is_test)
        seen = observe_uniform(labels[rows], num_pos=num_pos, num_neg=num_neg, seed=seed)
        chosen = np.isin(split[rows], list(splits)) | (table.split is None)
        here = rows[chosen]
        if known is None and len(here):
            known = np.ones(labels.shape, np.bool_)
        if known is not None:
            known[here] &= seen[chosen] != 0
    mask = np.ones(labels.shape, np.bool_) if known is None else known
    return replace(
        table,
        present=LabelSets.from_dense(labels.astype(np.bool_) & mask),
        unknown=LabelSets.from_dense(~mask),
    )


def keep_known(table: LabelTable, rate: float, *, seed: int = 0) -> LabelTable:
    """Return the table where every known entry stays known with chance ``rate``."""
    _require_chance(rate)
    random = np.random.default_rng(seed)

    def change(
        present: NDArray[np.bool_], unknown: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        hidden = unknown | (random.random(unknown.shape) >= rate)
        return present & ~hidden, hidden

    return _changed(table, change)


def flip_labels(
    table: LabelTable, *, present: float = 0.0, absent: float = 0.0, seed: int = 0
) -> LabelTable:
    """Return the table with noise: known labels change state with the chance of their state."""
    _require_chance(present)
    _require_chance(absent)
    random = np.random.default_rng(seed)

    def change(
        there: NDArray[np.bool_], unknown: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        flip = random.random(there.shape) < np.where(there, present, absent)
        return (there ^ flip) & ~unknown, unknown

    return _changed(table, change)


def _changed(table: LabelTable, change: Change) -> LabelTable:
    """Return the table with every block of (present, unknown) masks changed."""
    table.require_hard("hiding or flipping labels is for those that are 0 or 1")
    parts = [
        change(present, unknown)
        for (_, present), (_, unknown) in zip(
            table.present.blocks(), table.unknown.blocks(), strict=True
        )
    ]
    return replace(
        table,
        present=LabelSets.concatenate([LabelSets.from_dense(present) for present, _ in parts]),
        unknown=LabelSets.concatenate([LabelSets.from_dense(unknown) for _, unknown in parts]),
    )


def _require_chance(value: float) -> None:
    if not 0 <= value <= 1:
        raise SettingsError(f"a rate must be in [0, 1], got {value}")

"""Tables made of tables: labels that obey rules, single positives, partial labels, noise.

Single positives as in Cole et al. 2021, bit for bit: RandomState(seed), made anew for the training
file (train and val rows, in order) and for the test file; for each image the positive columns are
shuffled and the first is kept, then the negative columns are shuffled too, although none is kept.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import BLOCK, LabelSets, LabelTable, SoftLabels
from labelwise.errors import SettingsError
from labelwise.system.text import counted
from labelwise.taxonomy import AttributeColumns, AttributeGroups, Taxonomy
from labelwise.types import LabelSpace

Rows = NDArray[np.int64]
Values = NDArray[Any]
Mask = NDArray[np.bool_]
BY_CHANCE = "hiding or flipping labels is for those that are 0 or 1"


@dataclass(frozen=True)
class SettledTable:
    """A table that obeys groups, their columns, the rows that broke one, and what was learned."""

    table: LabelTable
    columns: AttributeColumns
    conflicts: tuple[int, ...]
    learned: int

    def sentence(self) -> str:
        first = f", first {self.table.ids[self.conflicts[0]]!r}" if self.conflicts else ""
        return (
            f"{counted(len(self.conflicts), 'photo')} of {len(self.table):,} "
            f"{'breaks' if len(self.conflicts) == 1 else 'break'} a rule{first}; "
            f"{counted(self.learned, 'more label')} {'is' if self.learned == 1 else 'are'} known "
            "by the rules"
        )


def obey_groups(table: LabelTable, groups: AttributeGroups) -> SettledTable:
    """Return the table completed by rules of groups; labels that break one become unknown."""
    table.require_hard("rules of groups know yes, no and unknown")
    columns = groups.within(table.space)
    conflicts: list[int] = []
    learned = 0

    def settle(rows: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        nonlocal learned
        settled = columns.settled(labels.astype(np.float64), known)
        conflicts.extend(rows[settled.conflicts].tolist())
        learned += settled.learned
        return settled.labels, settled.observed

    return SettledTable(_changed(table, settle), columns, tuple(conflicts), learned)


@dataclass(frozen=True)
class Obeyed:
    """A table that obeys a taxonomy: labels that were known and rose, and that were learned.

    ``added`` are groups that became labels.
    """

    table: LabelTable
    raised: int
    learned: int
    added: tuple[str, ...] = ()

    def sentence(self) -> str:
        groups = f"; {len(self.added)} groups became labels" if self.added else ""
        return (
            f"by the taxonomy {self.raised:,} labels were raised, since a kind of them is there, "
            f"and {self.learned:,} unknown ones became known{groups}"
        )


def obey_taxonomy(table: LabelTable, taxonomy: Taxonomy, *, add_groups: bool = False) -> Obeyed:
    """Return the table with labels completed by :meth:`LabelTree.complete`.

    ``add_groups`` makes labels of parents that are none: present if one of their kinds is, absent
    if all of them are absent, otherwise unknown.
    """
    import torch

    names = table.space.names
    taxonomy.within(table.space)  # names that mean nothing
    groups = taxonomy.all_above(names) if add_groups else ()
    own = set(names)
    added = tuple(name for name in groups if name not in own)
    space = LabelSpace((*names, *added))
    tree = taxonomy.within(space)
    raised = learned = 0

    def complete(_: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        nonlocal raised, learned
        more = ((0, 0), (0, len(added)))
        none_below = np.pad(known & (labels == 0), more, constant_values=True)
        for child, parent in tree.upward if added else ():
            none_below[:, parent] &= none_below[:, child]
        seen = np.pad(known, more)
        seen[:, len(names) :] = none_below[:, len(names) :]
        wide = torch.from_numpy(np.pad(labels, more))
        values, there = tree.complete(wide, torch.from_numpy(seen))
        full, now = values.numpy(), np.ones_like(seen) if there is None else there.numpy()
        raised += int((known & (full[:, : len(names)] != labels)).sum())
        learned += int((now[:, : len(names)] & ~known).sum())
        return full, now

    return Obeyed(_changed(table, complete, space), raised, learned, added)


def _changed(
    table: LabelTable,
    change: Callable[[Rows, Values, Mask], tuple[Values, Mask]],
    space: LabelSpace | None = None,
) -> LabelTable:
    """Return the table with labels (n, K) of some rows, and which are known, changed in blocks."""
    parts = []
    step = max(1, BLOCK // max(1, len(space or table.space)))
    for start in range(0, len(table), step):
        rows = np.arange(start, min(start + step, len(table)))
        labels, observed = table.targets(rows)
        known = np.ones(labels.shape, np.bool_) if observed is None else observed
        values, now = change(rows, labels, known)
        values = np.where(now, values, 0).astype(np.float32)
        sets = LabelSets.from_dense(values > 0.5), LabelSets.from_dense(~now)
        parts.append((*sets, SoftLabels.from_dense(values)))
    if not parts:
        return table
    present, unknown, soft = zip(*parts, strict=True)
    return replace(
        table,
        space=space or table.space,
        present=LabelSets.concatenate(present),
        unknown=LabelSets.concatenate(unknown),
        soft=SoftLabels.concatenate(soft),
    )


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
    labels, observed = table.targets()
    known = np.ones(labels.shape, np.bool_) if observed is None else observed
    split = np.full(len(table), "train") if table.split is None else table.split
    for is_test in (False, True):
        rows = np.flatnonzero((split == "test") == is_test)
        seen = observe_uniform(labels[rows], num_pos=num_pos, num_neg=num_neg, seed=seed)
        chosen = np.isin(split[rows], list(splits)) | (table.split is None)
        known[rows[chosen]] &= seen[chosen] != 0
    return replace(
        table,
        present=LabelSets.from_dense(labels.astype(np.bool_) & known),
        unknown=LabelSets.from_dense(~known),
    )


def keep_known(table: LabelTable, rate: float, *, seed: int = 0) -> LabelTable:
    """Return the table where every known entry stays known with chance ``rate``."""
    _require_chance(rate)
    table.require_hard(BY_CHANCE)
    random = np.random.default_rng(seed)
    return _changed(
        table, lambda _, labels, known: (labels, known & (random.random(known.shape) < rate))
    )


def flip_labels(
    table: LabelTable, *, present: float = 0.0, absent: float = 0.0, seed: int = 0
) -> LabelTable:
    """Return the table with noise: known labels change state with the chance of their state."""
    _require_chance(present)
    _require_chance(absent)
    table.require_hard(BY_CHANCE)
    random = np.random.default_rng(seed)

    def flip(_: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        there = labels > 0.5
        return there ^ (random.random(there.shape) < np.where(there, present, absent)), known

    return _changed(table, flip)


def _require_chance(value: float) -> None:
    if not 0 <= value <= 1:
        raise SettingsError(f"a rate must be in [0, 1], got {value}")

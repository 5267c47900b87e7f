"""Tables whose labels obey a taxonomy: a present child makes its parent present, and so on."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labelwise.data.table import BLOCK, LabelSets, LabelTable, SoftLabels
from labelwise.system.text import counted
from labelwise.taxonomy import AttributeColumns, AttributeGroups
from labelwise.types import LabelSpace

# Tables whose labels obey groups that exclude each other (:mod:`labelwise.taxonomy`).


@dataclass(frozen=True)
class SettledTable:
    """A table that obeys groups, their columns, the rows that broke one, and what was learned."""

    table: LabelTable
    columns: AttributeColumns
    conflicts: tuple[int, ...]
    learned: int

    def sentence(self) -> str:
        """Return what was done, in words."""
        first = f", first {self.table.ids[self.conflicts[0]]!r}" if self.conflicts else ""
        breaks = "breaks" if len(self.conflicts) == 1 else "break"
        are = "is" if self.learned == 1 else "are"
        return (
            f"{counted(len(self.conflicts), 'photo')} of {len(self.table):,} {breaks} a rule"
            f"{first}; {counted(self.learned, 'more label')} {are} known by the rules"
        )


def obey_groups(table: LabelTable, groups: AttributeGroups) -> SettledTable:
    """Return the table with labels as :meth:`AttributeColumns.settled` leaves them.

    Labels of a group that a photo breaks become unknown.
    """
    table.require_hard("rules of groups know yes, no and unknown")
    columns = groups.within(table.space)
    parts, broken, learned = [], [], 0
    step = max(1, BLOCK // max(1, len(table.space)))
    for start in range(0, len(table), step):
        rows = np.arange(start, min(start + step, len(table)))
        labels, observed = table.targets(rows)
        found = columns.settled(labels.astype(np.float64), observed)
        broken.append(rows[found.conflicts])
        learned += found.learned
        there = found.observed & (found.labels > 0.5)
        parts.append((LabelSets.from_dense(there), LabelSets.from_dense(~found.observed)))
    if not parts:
        return SettledTable(table, columns, (), 0)
    present, unknown = zip(*parts, strict=True)
    done = replace(
        table, present=LabelSets.concatenate(present), unknown=LabelSets.concatenate(unknown)
    )
    return SettledTable(done, columns, tuple(np.concatenate(broken).tolist()), learned)


if TYPE_CHECKING:
    from labelwise.taxonomy import Taxonomy


@dataclass(frozen=True)
class Obeyed:
    """A table that obeys a taxonomy, and what that took.

    ``raised`` labels were known and are higher now, since a kind of them is there; ``learned`` ones
    were unknown. ``added`` are groups that became labels.
    """

    table: LabelTable
    raised: int
    learned: int
    added: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return what was done, in words."""
        groups = f"; {len(self.added)} groups became labels" if self.added else ""
        return (
            f"by the taxonomy {self.raised:,} labels were raised, since a kind of them is there, "
            f"and {self.learned:,} unknown ones became known{groups}"
        )


def obey_taxonomy(table: LabelTable, taxonomy: "Taxonomy", *, add_groups: bool = False) -> Obeyed:
    """Return the table with labels completed by :meth:`LabelTree.complete`.

    ``add_groups`` makes labels of parents that are none: present if one of their kinds is, absent
    if all of them are absent, otherwise unknown.
    """
    import torch

    names = table.space.names
    added: tuple[str, ...] = ()
    taxonomy.within(table.space)  # names that mean nothing
    if add_groups:
        known_names = set(names)
        added = tuple(name for name in taxonomy.all_above(names) if name not in known_names)
    space = LabelSpace((*names, *added))
    tree = taxonomy.within(space)
    parts, raised, learned = [], 0, 0
    step = max(1, BLOCK // max(1, len(space)))
    for start in range(0, len(table), step):
        rows = np.arange(start, min(start + step, len(table)))
        labels, observed = table.targets(rows)
        known = np.ones(labels.shape, np.bool_) if observed is None else observed
        wide = np.pad(labels, ((0, 0), (0, len(added))))
        seen = np.pad(known, ((0, 0), (0, len(added))))
        none_below = np.pad(known & (labels == 0), ((0, 0), (0, len(added))), constant_values=True)
        for child, parent in tree.upward if added else ():
            none_below[:, parent] &= none_below[:, child]
        seen[:, len(names) :] = none_below[:, len(names) :]
        values, there = tree.complete(torch.from_numpy(wide), torch.from_numpy(seen))
        full, now = values.numpy(), np.ones_like(seen) if there is None else there.numpy()
        raised += int((known & (full[:, : len(names)] != labels)).sum())
        learned += int((now[:, : len(names)] & ~known).sum())
        full = np.where(now, full, 0)
        soft = SoftLabels.from_dense(full.astype(np.float32))
        parts.append((LabelSets.from_dense(full > 0.5), LabelSets.from_dense(~now), soft))
    present, unknown, soft_parts = zip(*parts, strict=True)
    done = replace(
        table,
        space=space,
        present=LabelSets.concatenate(present),
        unknown=LabelSets.concatenate(unknown),
        soft=None if table.soft is None else SoftLabels.concatenate(soft_parts),
    )
    return Obeyed(done, raised, learned, added)

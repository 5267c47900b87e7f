"""Tables whose labels obey groups that exclude each other (:mod:`labelwise.attributes`)."""

from dataclasses import dataclass, replace

import numpy as np

from labelwise.attributes import AttributeColumns, AttributeGroups
from labelwise.data.sets import BLOCK, LabelSets
from labelwise.data.table import LabelTable
from labelwise.system.text import counted


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

"""Attribute groups: labels that exclude each other, such as the colours of a thing.

    exactly-one   one of the labels is present, and only one      (the main colour)
    at-most-one   one of them or none                             (day or night, if it is known)
    any           no rule: the group is only a name for its labels

A file of groups is a CSV with the columns ``group``, ``kind`` and ``labels`` (split on ``|``). A
label is in one group with a rule at most.

With independent labels of log-odds u_k, knowing that a rule holds leaves

    exactly-one   p_k = exp(u_k) / sum_j exp(u_j)             a softmax within the group
    at-most-one   p_k = exp(u_k) / (1 + sum_j exp(u_j))       the same with "none" at 0

which is Bayes' rule; where the labels' own probabilities know the rule already, slope and offsets
of u_k are fitted (:mod:`labelwise.calibration.within_groups`).

What a rule says of labels: where one is present, all others are absent; in exactly-one, where all
others are absent, the last one is present. Two present ones, or none where there must be one, are a
conflict: nobody knows which label is wrong.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.types import LabelSpace, nearest

GroupKind = Literal["exactly-one", "at-most-one", "any"]
KINDS = get_args(GroupKind)
COLUMNS = ("group", "kind", "labels")


@dataclass(frozen=True)
class AttributeGroup:
    """One group: its name, its rule and its labels."""

    name: str
    kind: GroupKind
    labels: tuple[str, ...]


@dataclass(frozen=True)
class AttributeGroups:
    """The groups of a file; ``source`` names it in errors."""

    groups: tuple[AttributeGroup, ...]
    source: str = "attribute groups"

    def __post_init__(self) -> None:
        owner: dict[str, str] = {}
        for group in self.groups:
            if group.kind not in KINDS:
                raise DataError(
                    f"{self.source}: the group {group.name!r} must be one of {', '.join(KINDS)}, "
                    f"got {group.kind!r}{nearest(group.kind, KINDS)}"
                )
            if len(set(group.labels)) < 2 or len(set(group.labels)) < len(group.labels):
                raise DataError(
                    f"{self.source}: the group {group.name!r} must have two labels or more, each "
                    f"once, got {', '.join(group.labels)}"
                )
            for label in group.labels if group.kind != "any" else ():
                if owner.setdefault(label, group.name) != group.name:
                    raise DataError(
                        f"{self.source}: {label!r} is in the groups {owner[label]!r} and "
                        f"{group.name!r}; a label has one rule"
                    )

    @classmethod
    def read(cls, path: Path) -> "AttributeGroups":
        """Return the groups of a CSV file with the columns group, kind and labels."""
        try:
            with Path(path).open(encoding="utf-8-sig", newline="") as stream:
                rows = list(csv.DictReader(stream, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: the groups cannot be read ({error})") from None
        found = []
        for number, row in enumerate(rows, 2):
            for name in COLUMNS:
                if not (row.get(name) or "").strip():
                    raise DataError(f"{path}, line {number}: there is no {name!r}; write {COLUMNS}")
            labels = tuple(label.strip() for label in row["labels"].split("|"))
            kind: GroupKind = row["kind"].strip()  # type: ignore[assignment]  # checked above
            found.append(AttributeGroup(row["group"].strip(), kind, labels))
        if not found:
            raise DataError(f"{path}: there are no groups; write the columns {', '.join(COLUMNS)}")
        return cls(tuple(found), str(path))

    def within(self, space: LabelSpace) -> "AttributeColumns":
        """Return the groups as columns of some labels; a label that is none of them is an error."""
        column = {name: place for place, name in enumerate(space.names)}
        exactly, most = [], []
        for group in self.groups:
            for label in group.labels:
                if label not in column:
                    raise DataError(
                        f"{self.source}: {label!r} of the group {group.name!r} is not a label"
                        f"{nearest(label, column)}"
                    )
            places = tuple(column[label] for label in group.labels)
            if group.kind == "exactly-one":
                exactly.append(places)
            elif group.kind == "at-most-one":
                most.append(places)
        return AttributeColumns(tuple(exactly), tuple(most))


@dataclass(frozen=True, eq=False)
class Settled:
    """Labels (N, K) and which are known, after the rules; conflicts (N,) are rows that break one.

    In a group that a row breaks, its labels are unknown. ``learned`` labels were unknown and follow
    from others.
    """

    labels: NDArray[np.float64]
    observed: NDArray[np.bool_]
    conflicts: NDArray[np.bool_]
    learned: int


@dataclass(frozen=True)
class AttributeColumns:
    """The columns of each group with a rule."""

    exactly_one: tuple[tuple[int, ...], ...]
    at_most_one: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        every = [column for group in self.groups for column in group]
        if len(set(every)) < len(every):
            raise ValueError(f"a column must be in one group, got {self.groups}")

    @classmethod
    def of(
        cls, exactly_one: Sequence[Sequence[int]], at_most_one: Sequence[Sequence[int]]
    ) -> "AttributeColumns":
        """Return the columns of groups that stand in any sequences, as plain data has them."""
        exactly, most = (
            tuple(tuple(map(int, group)) for group in groups)
            for groups in (exactly_one, at_most_one)
        )
        return cls(exactly, most)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The columns of all groups."""
        return (*self.exactly_one, *self.at_most_one)

    def alone(
        self, group: tuple[int, ...], columns: Sequence[int] | None = None
    ) -> "AttributeColumns":
        """Return the rule of one group; ``columns`` are where its labels stand, if elsewhere."""
        places = group if columns is None else columns
        return self.of([places], []) if group in self.exactly_one else self.of([], [places])

    def settled(self, labels: NDArray[np.float64], observed: NDArray[np.bool_] | None) -> Settled:
        """Return what the rules say of labels (N, K) that are 0, 1 or unknown."""
        values = np.array(labels, np.float64)
        seen = np.ones(values.shape, bool) if observed is None else np.array(observed, bool)
        before = seen.copy()
        broken = np.zeros(len(values), bool)
        for group in self.groups:
            columns = list(group)
            present = (values[:, columns] > 0.5) & seen[:, columns]
            absent = ~(values[:, columns] > 0.5) & seen[:, columns]
            count = present.sum(1)
            wrong = count > 1
            if group in self.exactly_one:
                wrong |= absent.all(1)
                last = ~wrong & (count == 0) & (absent.sum(1) == len(columns) - 1)
                present = present | (last[:, None] & ~absent)
                count = present.sum(1)
            sure = ~wrong & (count == 1)
            block, known = values[:, columns], seen[:, columns]
            block[sure], known[sure] = present[sure] * 1.0, True
            known[wrong] = False
            values[:, columns], seen[:, columns] = block, known
            broken |= wrong
        return Settled(values, seen, broken, int((seen & ~before).sum()))

    def right(
        self,
        group: Sequence[int],
        sets: NDArray[np.bool_],
        labels: NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> tuple[int, int]:
        """Return how many photos have a group known to the last label, and how many sets have it.

        A set is right if it holds of the group what is there, and nothing else.
        """
        seen, same = self.right_rows(group, sets, labels, observed)
        return int(seen.sum()), int(same.sum())

    def right_rows(
        self,
        group: Sequence[int],
        sets: NDArray[np.bool_],
        labels: NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which photos (N,) have a group known to the last label, and right in their set."""
        columns = list(group)
        known = np.ones(labels.shape, bool) if observed is None else observed
        seen: NDArray[np.bool_] = np.all(known[:, columns], axis=1)
        same: NDArray[np.bool_] = np.all(sets[:, columns] == labels[:, columns], axis=1)
        return seen, seen & same

    def broken(self, group: Sequence[int], sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which sets (N,) break the rule of a group."""
        count: NDArray[np.int64] = sets[:, list(group)].sum(1)
        wrong: NDArray[np.bool_] = count > 1
        return wrong | (count == 0) if tuple(group) in self.exactly_one else wrong

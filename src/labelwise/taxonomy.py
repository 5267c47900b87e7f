"""Taxonomy: which label or group is a kind of which; LabelTree: the same among a model's labels.

A photo with a child shows its parent, and without the parent there is no child. Probabilities obey
this if p(parent) >= p(child). Those nearest to given ones p that do so,

    p' = argmin over consistent z of  sum_k KL(z_k || p_k),

are the isotonic regression of the log-odds u along the tree: labels fall into connected blocks,
and each block gets the mean of its u. Since consistent probabilities are a convex set that holds
every consistent labelling y, soft ones too, the Pythagorean inequality of such projections says

    sum_k log loss(y_k, p'_k)  <=  sum_k log loss(y_k, p_k) - sum_k KL(p'_k || p_k):

of an image whose labels are all known the log loss never grows. (The max of the children, or least
squares on p, has no such bound.) From the deepest parents up, with u a parent's and x_1 >= x_2 ...
those of all labels below it, of which earlier steps have made a regression already,

    u becomes   v = max over j >= 0 of (u + x_1 + ... + x_j) / (1 + j),    each x_j  min(x_j, v)

for all images at once: what lies above v joins the parent's block, and the sums of blocks stay.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import A, double, is_traced, like, namespace
from labelwise.base.arrays import is_tensor
from labelwise.base.text import from_cell
from labelwise.errors import DataError
from labelwise.types import LabelSpace, nearest

SKOS_SUFFIXES = (".nt", ".rdf", ".xml", ".jsonld", ".ttl")  # read by labelwise.contrib.skos

# Attribute groups: labels that exclude each other, such as the colours of a thing.
#
#     exactly-one   p_k = exp(u_k) / sum_j exp(u_j)             a softmax within the group
#     at-most-one   p_k = exp(u_k) / (1 + sum_j exp(u_j))       the same with "none" at 0
#     any           no rule: the group is only a name for its labels
#
# The probabilities are Bayes' rule for independent labels of log-odds u_k; where they know the rule
# already, slope and offsets of u_k are fitted (:mod:`labelwise.calibration.regression`).
#
# Where one label is present, all others are absent; in exactly-one, where all others are absent,
# the last one is present. Two present ones, or none where there must be one, are a conflict.

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
            must = f"{self.source}: the group {group.name!r} must"
            if group.kind not in KINDS:
                got = f"got {group.kind!r}{nearest(group.kind, KINDS)}"
                raise DataError(f"{must} be one of {', '.join(KINDS)}, {got}")
            if len(set(group.labels)) < max(2, len(group.labels)):
                got = ", ".join(group.labels)
                raise DataError(f"{must} have two labels or more, each once, got {got}")
            for label in group.labels if group.kind != "any" else ():
                if owner.setdefault(label, group.name) != group.name:
                    both = f"{owner[label]!r} and {group.name!r}"
                    raise DataError(
                        f"{self.source}: {label!r} is in the groups {both}; a label has one rule"
                    )

    @classmethod
    def read(cls, path: Path) -> "AttributeGroups":
        try:
            with Path(path).open(encoding="utf-8-sig", newline="") as stream:
                rows = list(csv.DictReader(stream, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: the groups cannot be read ({error})") from None
        groups = []
        for number, row in enumerate(rows, 2):
            for name in COLUMNS:
                if not (row.get(name) or "").strip():
                    raise DataError(f"{path}, line {number}: there is no {name!r}; write {COLUMNS}")
            labels = tuple(label.strip() for label in row["labels"].split("|"))
            kind = cast("GroupKind", row["kind"].strip())  # which __post_init__ looks at
            groups.append(AttributeGroup(row["group"].strip(), kind, labels))
        if not groups:
            raise DataError(f"{path}: there are no groups; write the columns {', '.join(COLUMNS)}")
        return cls(tuple(groups), str(path))

    def within(self, space: LabelSpace) -> "AttributeColumns":
        """Return the groups as columns of some labels; a label that is none of them is an error."""
        column = {name: position for position, name in enumerate(space.names)}
        columns: dict[str, list[list[int]]] = {kind: [] for kind in KINDS}
        for group in self.groups:
            for label in group.labels:
                if label not in column:
                    what = f"{label!r} of the group {group.name!r} is not a label"
                    raise DataError(f"{self.source}: {what}{nearest(label, column)}")
            columns[group.kind].append([column[label] for label in group.labels])
        return AttributeColumns.of(columns["exactly-one"], columns["at-most-one"])


@dataclass(frozen=True, eq=False)
class Settled:
    """Labels (N, K) after the rules, unknown where a group is broken; conflicts (N,) are its rows.

    ``learned`` labels were unknown and follow from others.
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
        given = (exactly_one, at_most_one)
        return cls(*(tuple(tuple(map(int, group)) for group in groups) for groups in given))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return (*self.exactly_one, *self.at_most_one)

    def alone(
        self, group: tuple[int, ...], columns: Sequence[int] | None = None
    ) -> "AttributeColumns":
        """Return one group with its rule, exactly or at most one.

        ``columns`` are the columns of its labels in another array; by default they are as here.
        """
        columns = group if columns is None else columns
        return self.of([columns], []) if group in self.exactly_one else self.of([], [columns])

    def settled(self, labels: NDArray[np.float64], observed: NDArray[np.bool_] | None) -> Settled:
        """Return labels (N, K) with what follows from the groups' rules.

        ``observed`` (N, K) marks what is known; None: everything. Where one label of a group is
        present, the others become absent; in a group of exactly one whose other labels are all
        absent, the last becomes present. A row that contradicts a rule loses that group.
        """
        values = np.array(labels, np.float64)
        before = np.ones(values.shape, bool) if observed is None else np.asarray(observed, bool)
        seen, broken = before.copy(), np.zeros(len(values), bool)
        for group in self.groups:
            block, known = values[:, list(group)], seen[:, list(group)]
            present, absent = (block > 0.5) & known, (block <= 0.5) & known
            wrong = present.sum(1) > 1
            if group in self.exactly_one:
                wrong |= absent.all(1)
                last = ~present.any(1) & (absent.sum(1) == len(group) - 1)
                present |= last[:, None] & ~absent
            sure = ~wrong & present.any(1)
            block[sure], known[sure] = present[sure], True
            known[wrong] = False
            values[:, list(group)], seen[:, list(group)] = block, known
            broken |= wrong
        return Settled(values, seen, broken, int((seen & ~before).sum()))

    def right_rows(
        self,
        group: Sequence[int],
        sets: NDArray[np.bool_],
        labels: NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two masks (N,): the group is all known; it is, and the sets equal the labels."""
        columns = list(group)
        known = np.ones(labels.shape, bool) if observed is None else observed
        seen = np.asarray(known[:, columns].all(1))
        return seen, seen & (sets[:, columns] == labels[:, columns]).all(1)

    def broken(self, group: Sequence[int], sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
        count = np.asarray(sets[:, list(group)].sum(1))
        return count != 1 if tuple(group) in self.exactly_one else count > 1


T = TypeVar("T")
SHOWN = 10  # of the names at either end of a circle
FAR = 1e4  # log-odds beyond it are believed no more; means of them stay finite


@dataclass(frozen=True)
class Taxonomy:
    """Which label or group is a kind of which: asking for the parent finds the children.

    ``lines`` says in which line of ``source`` each child was named; ``uris`` are the addresses
    that a vocabulary such as AAT gives to its names.
    """

    parents: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    source: str = field(default="", compare=False)
    uris: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        circle = _parents_first(self.parents)[1]
        if circle:
            at, left_out = circle[0], circle[SHOWN:-SHOWN]
            if left_out:
                circle[SHOWN:-SHOWN] = [f"... ({len(left_out):,} more) ..."]
            got = f"got one at {at!r}: {' is a kind of '.join(circle)}"
            raise DataError(f"{self._at(at)}a taxonomy must not turn in circles, {got}")

    def _at(self, name: str) -> str:
        line = f", line {self.lines[name]}" if name in self.lines else ""
        return f"{self.source}{line}: " if self.source else ""

    @classmethod
    def read(cls, path: Path) -> "Taxonomy":
        """Return the taxonomy of a CSV file ``child,parent``, or of one ``a|b|c`` per line.

        SKOS vocabularies are read as N-Triples (.nt, or a folder of them).
        """
        if Path(path).suffix.lower() in SKOS_SUFFIXES or Path(path).is_dir():
            kinds, uris = import_module("labelwise.contrib.skos").read_skos(Path(path))
            return cls(kinds, {}, str(path), uris)
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            rows = list(csv.reader(text.splitlines(), skipinitialspace=True, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: the taxonomy cannot be read ({error})") from None
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not lines:
            raise DataError(f"{path}: the taxonomy is empty; write child,parent or names as a|b|c")
        header = [cell.strip().lower() for cell in rows[lines[0][0] - 1]]
        pairs = []
        if "child" in header and "parent" in header:
            for number, line in lines[1:]:
                cells = [from_cell(cell.strip()) for cell in rows[number - 1]]
                named = dict(zip(header, cells, strict=False))
                if not named.get("child") or not named.get("parent"):
                    rule = f"a line must name a child and its parent, got {line!r}"
                    raise DataError(f"{path}, line {number}: {rule}")
                pairs.append((number, named["child"], named["parent"]))
        elif any("|" in line for _, line in lines):
            for number, line in lines:
                names = [name.strip() for name in line.split("|")]
                if not all(names):
                    raise DataError(f"{path}, line {number}: a name must not be empty, got {names}")
                pairs += [(number, child, parent) for parent, child in pairwise(names)]
        else:
            (number, line), *_ = lines
            rule = "a taxonomy has the header child,parent or lines as animal|dog"
            raise DataError(f"{path}, line {number}: {rule}, got {line!r}")
        parents: dict[str, str] = {}
        line_of: dict[str, int] = {}
        for number, child, parent in pairs:
            if parents.setdefault(child, parent) != parent:
                both = f"{parents[child]!r} (line {line_of[child]}) and {parent!r}"
                raise DataError(f"{path}, line {number}: {child!r} has two parents, {both}")
            line_of.setdefault(child, number)
        if not parents:
            raise DataError(f"{path}: the taxonomy says of nothing what it is a kind of")
        return cls(parents, line_of, str(path))

    def above(self, name: str) -> tuple[str, ...]:
        """Return what a name is a kind of, from the top down."""
        return self.all_above([name])

    def all_above(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return what any of the names is a kind of, each once, a parent before its children."""
        names_above: dict[str, None] = {}
        for name in names:
            path: list[str] = []
            while (name := self.parents.get(name, "")) and name not in names_above:
                path.append(name)
            names_above.update(dict.fromkeys(reversed(path)))
        return tuple(names_above)

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children = defaultdict[str, list[str]](list)
        for child, parent in self.parents.items():
            children[parent].append(child)
        return children

    def below(self, name: str) -> tuple[str, ...]:
        """Return what is a kind of ``name``, at any depth, in the order of the file."""
        below, waiting = set[str](), [name]
        while waiting:
            children = self._children.get(waiting.pop(), [])
            below.update(children)
            waiting += children
        return tuple(child for child in self.parents if child in below)

    def labels(self, name: str, space: LabelSpace) -> tuple[str, ...]:
        """Return the labels of the space that a name asks for, itself included if it is one."""
        known = set(space.names)
        if labels := tuple(label for label in (name, *self.below(name)) if label in known):
            return labels
        names = [*space.names, *dict.fromkeys(self.parents.values())]
        raise DataError(f"unknown label {name!r}{nearest(name, names)}")

    def within(self, space: LabelSpace) -> "LabelTree":
        """Return the tree of a label space; groups that are not labels are passed over.

        A name that is neither a label nor above one is an error: it may be misspelt.
        """
        column = {name: number for number, name in enumerate(space.names)}
        groups = set(self.parents.values())
        for name in self.parents:
            if name not in column and name not in groups:
                none = f"{self._at(name)}there is no label {name!r}{nearest(name, space.names)}"
                raise DataError(f"{none}; leave it out of the taxonomy, or spell it as labels do")
        parent, label_above = [], dict[str, int]()  # above each group that was passed over
        for name in space.names:
            path = [name]
            while (at := self.parents.get(path[-1])) and at not in column and at not in label_above:
                path.append(at)
            parent.append(column.get(at or "", label_above.get(at or "", -1)))
            label_above.update(dict.fromkeys(path[1:], parent[-1]))
        return LabelTree(tuple(parent))


def _parents_first(parents: Mapping[T, T]) -> tuple[list[T], list[T]]:
    """Return all children, each after its parent, and a circle of parents if there is one."""
    order: list[T] = []
    walk_of: dict[T, int] = {}
    for walk, name in enumerate(parents):
        path: list[T] = []
        while name in parents and name not in walk_of:
            walk_of[name] = walk
            path.append(name)
            name = parents[name]
        if path and walk_of.get(name) == walk:
            return order, [*path[path.index(name) :], name]
        order += reversed(path)
    return order, []


@dataclass(frozen=True)
class LabelTree:
    """The column of each label's nearest parent among the labels, -1 where it has none."""

    parent: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = range(-1, len(self.parent))
        if not all(isinstance(at, int) and at in columns for at in self.parent):
            raise ValueError(f"parents must be columns, or -1 for none, got {self.parent}")
        _ = self.level

    @cached_property
    def tops(self) -> list[int]:
        return [column for column, parent in enumerate(self.parent) if parent < 0]

    @cached_property
    def level(self) -> tuple[int, ...]:
        """How deep each label lies: 1 at the top."""
        order, circle = _parents_first(dict(enumerate(self.parent)))
        if circle:
            raise ValueError(f"parents must not turn in circles, got {circle}")
        levels = [0] * len(self.parent) + [0]  # the last is that of -1, above the tops
        for column in order:
            levels[column] = levels[self.parent[column]] + 1
        return tuple(levels[:-1])

    @cached_property
    def upward(self) -> tuple[tuple[int, int], ...]:
        pairs = [(child, parent) for child, parent in enumerate(self.parent) if parent >= 0]
        return tuple(sorted(pairs, key=lambda pair: -self.level[pair[0]]))

    @cached_property
    def _row(self) -> tuple[list[int], list[int], list[int]]:
        """All columns, those below a label right after it; their places, and sizes of subtrees."""
        size = [1] * len(self.parent)
        for child, parent in self.upward:
            size[parent] += size[child]
        position, free, end = [0] * len(self.parent), [0] * len(self.parent), 0
        for top in self.tops:
            position[top], free[top] = end, end + 1
            end += size[top]
        for child, parent in reversed(self.upward):
            position[child], free[child] = free[parent], free[parent] + 1
            free[parent] += size[child]
        return np.argsort(position).tolist(), position, size

    @cached_property
    def parents_upward(self) -> tuple[int, ...]:
        """The columns of all labels that have children, the deepest first."""
        parents = {parent for _, parent in self.upward}
        return tuple(sorted(parents, key=lambda parent: (-self.level[parent], parent)))

    def below(self, column: int) -> list[int]:
        columns, place, size = self._row
        return columns[place[column] + 1 : place[column] + size[column]]

    def above(self, column: int) -> list[int]:
        """Return the columns of what a label is a kind of, the nearest first."""
        columns: list[int] = []
        while (column := self.parent[column]) >= 0:
            columns.append(column)
        return columns

    def top(self, column: int) -> int:
        """Return the column of the top that a label stands under, itself if it is one."""
        return [column, *self.above(column)][-1]

    def family(self, column: int) -> tuple[list[int], "LabelTree"]:
        top = self.top(column)
        columns = sorted([top, *self.below(top)])
        position_of = {k: at for at, k in enumerate(columns)}
        return columns, LabelTree(tuple(position_of.get(self.parent[k], -1) for k in columns))

    def closed(self, sets: A) -> A:
        closed = sets.clone() if is_tensor(sets) else sets.copy()
        for child, parent in self.upward:
            closed[..., parent] |= closed[..., child]
        return closed

    def complete(self, labels: A, observed: A | None = None) -> tuple[A, A | None]:
        """Return labels (N, K) that obey the tree, and which of them are known.

        A present child makes its parent present, whatever was said of it, and a known parent has
        at least the share of a soft child; without a parent its children are absent. What follows
        from nothing stays unknown.
        """
        xp = namespace(labels)
        values = xp.asarray(labels, copy=True)
        if observed is None:
            known = xp.ones_like(values, dtype=xp.bool)
        else:
            known = xp.asarray(observed, copy=True)
        values[~known] = 0
        for child, parent in self.upward:
            present = values[:, child] == 1
            raised = known[:, child] & (present | known[:, parent])
            higher = xp.maximum(values[:, parent], values[:, child])
            values[:, parent] = xp.where(raised, higher, values[:, parent])
            known[:, parent] |= present
        for child, parent in reversed(self.upward):
            absent = known[:, parent] & (values[:, parent] == 0)
            values[:, child] = xp.where(absent, 0, values[:, child])
            known[:, child] |= absent
        return values, known if observed is not None or not bool(known.all()) else None

    def violations(self, values: A) -> A:
        """Return the rows (N,) in which a label lies above its parent."""
        xp = namespace(values)
        if is_traced(values):
            above: Any = xp.greater(*(values[:, list(of)] for of in zip(*self.upward, strict=True)))
            return cast("A", above.any(-1))
        violations: A = xp.zeros_like(values[:, 0], dtype=xp.bool)
        for child, parent in self.upward:
            violations |= values[:, child] > values[:, parent]
        return violations

    def consistent(self, log_odds: A) -> A:
        """Return the nearest log-odds (N, K) that obey the tree; rows that do stay as they are."""
        if not self.upward:
            return log_odds
        xp = namespace(log_odds)
        given = log_odds.detach() if is_tensor(log_odds) else log_odds
        wrong = self.violations(given)
        if is_traced(log_odds):  # a captured program cannot choose rows
            merged = self._merged(double(given).clip(-FAR, FAR))
            consistent: A = xp.where(wrong[:, None], like(merged, given), log_odds)
            return consistent
        if not bool(wrong.any()):
            return log_odds
        consistent = xp.asarray(given, copy=True)
        consistent[wrong] = like(self._merged(double(given[wrong]).clip(-FAR, FAR)), given)
        return consistent

    def _merged(self, values: A) -> A:
        """Return log-odds (N, K) after the isotonic regression of the module's text."""
        xp, (columns, place, sizes) = namespace(values), self._row
        value = values[:, columns]
        for parent in self.parents_upward:
            start, size = place[parent], sizes[parent]
            under = value[:, start + 1 : start + size]
            block = xp.concat([value[:, start, None], -xp.sort(-under, axis=1)], axis=1)
            counts = like(np.arange(1.0, size + 1), values)
            top = xp.max(block.cumsum(1) / counts, axis=1, keepdims=True)
            value[:, start + 1 : start + size] = xp.minimum(under, top)
            value[:, start] = top[:, 0]
        return value[:, place]

    def levels(self) -> dict[int, NDArray[np.int64]]:
        level = np.array(self.level)
        return {int(depth): np.flatnonzero(level == depth) for depth in np.unique(level)}

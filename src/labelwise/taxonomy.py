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
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.numeric.arrays import is_tensor
from labelwise.system.skos import is_skos, read_skos
from labelwise.system.text import from_cell
from labelwise.types import LabelSpace, nearest

if TYPE_CHECKING:  # queries read a taxonomy without torch, which takes seconds to import
    from torch import Tensor


Array = TypeVar("Array", np.ndarray, "Tensor")

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
        sound: set[str] = set()
        for name in self.parents:
            path: dict[str, None] = {}
            at = name
            while at in self.parents and at not in sound:
                if at in path:
                    circle = [*list(path)[list(path).index(at) :], at]
                    left_out = circle[SHOWN:-SHOWN]
                    if left_out:
                        circle[SHOWN:-SHOWN] = [f"... ({len(left_out):,} more) ..."]
                    raise DataError(
                        f"{self._at(at)}a taxonomy must not turn in circles, got one at {at!r}: "
                        f"{' is a kind of '.join(circle)}"
                    )
                path[at] = None
                at = self.parents[at]
            sound.update(path)  # `|=` with the keys of a dictionary would copy the set

    def _at(self, name: str) -> str:
        if name not in self.lines:
            return f"{self.source}: " if self.source else ""
        return f"{self.source}, line {self.lines[name]}: "

    @classmethod
    def read(cls, path: Path) -> "Taxonomy":
        """Return the taxonomy of a CSV file ``child,parent``, or of one ``a|b|c`` per line.

        SKOS vocabularies are read as N-Triples (.nt, or a folder of them), RDF/XML (.rdf, .xml) and
        JSON-LD (.jsonld).
        """
        if is_skos(Path(path)):
            found_names = read_skos(Path(path))
            return cls(found_names.parents, {}, str(path), found_names.uris)
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            rows = list(csv.reader(text.splitlines(), skipinitialspace=True, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: the taxonomy cannot be read ({error})") from None
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not lines:
            raise DataError(f"{path}: the taxonomy is empty; write child,parent or names as a|b|c")
        header = [cell.strip().lower() for cell in rows[lines[0][0] - 1]]
        if "child" in header and "parent" in header:
            places = header.index("child"), header.index("parent")
            pairs = _pairs(path, rows, lines[1:], places)
        elif any("|" in line for _, line in lines):
            pairs = _paths(path, lines)
        else:
            raise DataError(
                f"{path}, line {lines[0][0]}: a taxonomy has the header child,parent or lines as "
                f"animal|dog, got {lines[0][1]!r}"
            )
        parents: dict[str, str] = {}
        found: dict[str, int] = {}
        for number, child, parent in pairs:
            if parents.setdefault(child, parent) != parent:
                raise DataError(
                    f"{path}, line {number}: {child!r} has two parents, {parents[child]!r} (line "
                    f"{found[child]}) and {parent!r}; keep one"
                )
            found.setdefault(child, number)
        if not parents:
            raise DataError(f"{path}: the taxonomy says of nothing what it is a kind of")
        return cls(parents, found, str(path))

    def above(self, name: str) -> tuple[str, ...]:
        """Return what a name is a kind of, from the top down."""
        chain: list[str] = []
        while name in self.parents:
            name = self.parents[name]
            chain.append(name)
        return tuple(reversed(chain))

    def all_above(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return what any of the names is a kind of, each once, a parent before its children."""
        found: dict[str, None] = {}
        for name in names:
            path: list[str] = []
            at = self.parents.get(name)
            while at is not None and at not in found:
                path.append(at)
                at = self.parents.get(at)
            found.update(dict.fromkeys(reversed(path)))
        return tuple(found)

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {}
        for child, parent in self.parents.items():
            children.setdefault(parent, []).append(child)
        return children

    def below(self, name: str) -> tuple[str, ...]:
        """Return what is a kind of ``name``, at any depth, in the order of the file."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            children = self._children.get(waiting.pop(), [])
            found.update(children)
            waiting += children
        return tuple(child for child in self.parents if child in found)

    def labels(self, name: str, space: LabelSpace) -> tuple[str, ...]:
        """Return the labels of the space that a name asks for, itself included if it is one."""
        known = set(space.names)
        found = tuple(label for label in (name, *self.below(name)) if label in known)
        if not found:
            names = [*space.names, *dict.fromkeys(self.parents.values())]
            raise DataError(f"unknown label {name!r}{nearest(name, names)}")
        return found

    def within(self, space: LabelSpace) -> "LabelTree":
        """Return the tree of a label space; groups that are not labels are passed over.

        A name that is neither a label nor above one is an error: it may be misspelt.
        """
        known = set(space.names)
        groups = set(self.parents.values())
        for name in self.parents:
            if name not in known and name not in groups:
                raise DataError(
                    f"{self._at(name)}there is no label {name!r}{nearest(name, space.names)}; "
                    "leave it out of the taxonomy, or spell it as the labels do"
                )
        parent = []
        nearest_label: dict[str, int] = {}  # above each group that was passed over
        for name in space.names:
            groups_passed: list[str] = []
            at = self.parents.get(name)
            while at is not None and at not in known and at not in nearest_label:
                groups_passed.append(at)
                at = self.parents.get(at)
            column = -1 if at is None else nearest_label.get(at, -1)
            if at in known:
                column = space.column(str(at))
            nearest_label.update(dict.fromkeys(groups_passed, column))
            parent.append(column)
        return LabelTree(tuple(parent))


def _pairs(
    path: Path, rows: list[list[str]], lines: list[tuple[int, str]], places: tuple[int, int]
) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        cells = rows[number - 1]
        child, parent = (from_cell(cells[k].strip()) if k < len(cells) else "" for k in places)
        if not child or not parent:
            raise DataError(
                f"{path}, line {number}: a line must name a child and its parent, got {line!r}"
            )
        yield number, child, parent


def _paths(path: Path, lines: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        names = [name.strip() for name in line.split("|")]
        if not all(names):
            raise DataError(f"{path}, line {number}: a name must not be empty, got {line!r}")
        for parent, child in itertools.pairwise(names):
            yield number, child, parent


@dataclass(frozen=True, eq=False)
class TreeRow:
    """The ``columns`` of a tree's labels in a row: each label, then all that is below it.

    ``place`` is where each label stands, ``size`` how many labels it and those below it are.
    """

    columns: NDArray[np.int64]
    place: NDArray[np.int64]
    size: NDArray[np.int64]


@dataclass(frozen=True)
class LabelTree:
    """The column of each label's nearest parent among the labels, -1 where it has none."""

    parent: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = range(-1, len(self.parent))
        if not all(isinstance(at, int) and at in columns for at in self.parent):
            raise ValueError(f"parents must be columns, or -1 for none, got {self.parent}")
        Taxonomy({str(k): str(at) for k, at in enumerate(self.parent) if at >= 0})  # no circles

    @cached_property
    def tops(self) -> list[int]:
        """The columns of the labels that have no parent."""
        return [column for column, parent in enumerate(self.parent) if parent < 0]

    @cached_property
    def level(self) -> tuple[int, ...]:
        """How deep each label lies: 1 at the top."""
        levels = [0] * len(self.parent)
        for column in range(len(self.parent)):
            path: list[int] = []
            while column >= 0 and not levels[column]:
                path.append(column)
                column = self.parent[column]
            depth = levels[column] if column >= 0 else 0
            for place, at in enumerate(reversed(path), 1):
                levels[at] = depth + place
        return tuple(levels)

    @cached_property
    def upward(self) -> tuple[tuple[int, int], ...]:
        """All pairs (child, parent), the deepest children first."""
        pairs = [(child, parent) for child, parent in enumerate(self.parent) if parent >= 0]
        return tuple(sorted(pairs, key=lambda pair: -self.level[pair[0]]))

    @cached_property
    def _row(self) -> "TreeRow":
        """All labels in a row in which those below a label come right after it."""
        size = [1] * len(self.parent)
        for child, parent in self.upward:
            size[parent] += size[child]
        place, free, end = [0] * len(self.parent), [0] * len(self.parent), 0
        for top in self.tops:
            place[top], free[top] = end, end + 1
            end += size[top]
        for child, parent in reversed(self.upward):
            place[child], free[child] = free[parent], free[parent] + 1
            free[parent] += size[child]
        return TreeRow(np.argsort(place), np.array(place, np.int64), np.array(size, np.int64))

    @cached_property
    def parents_upward(self) -> tuple[int, ...]:
        """The columns of all labels that have children, the deepest first."""
        parents = {parent for _, parent in self.upward}
        return tuple(sorted(parents, key=lambda parent: (-self.level[parent], parent)))

    def families(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each parent with all the labels below it, the deepest parents first."""
        for parent in self.parents_upward:
            yield parent, self.below(parent)

    def below(self, column: int) -> list[int]:
        """Return the columns of what is a kind of a label, at any depth."""
        start = int(self._row.place[column])
        found: list[int] = self._row.columns[start + 1 : start + self._row.size[column]].tolist()
        return found

    def above(self, column: int) -> list[int]:
        """Return the columns of what a label is a kind of, the nearest first."""
        found: list[int] = []
        while (column := self.parent[column]) >= 0:
            found.append(column)
        return found

    def top(self, column: int) -> int:
        """Return the column of the top that a label stands under, itself if it is one."""
        return [column, *self.above(column)][-1]

    def family(self, column: int) -> tuple[list[int], "LabelTree"]:
        """Return the columns of all labels under the same top as one, and the tree of these."""
        top = self.top(column)
        columns = sorted([top, *self.below(top)])
        place = {k: at for at, k in enumerate(columns)}
        return columns, LabelTree(tuple(place.get(self.parent[k], -1) for k in columns))

    def closed(self, sets: Array) -> Array:
        """Return sets (..., K) with the parents of all that is in them."""
        found = sets.clone() if is_tensor(sets) else sets.copy()
        for child, parent in self.upward:
            found[..., parent] |= found[..., child]
        return found

    def complete(
        self, labels: "Tensor", observed: "Tensor | None" = None
    ) -> "tuple[Tensor, Tensor | None]":
        """Return labels (N, K) that obey the tree, and which of them are known.

        A present child makes its parent present, whatever was said of it, and a known parent has
        at least the share of a soft child; without a parent its children are absent. What follows
        from nothing stays unknown.
        """
        import torch

        values = labels.clone()
        known = torch.ones_like(values, dtype=torch.bool) if observed is None else observed.clone()
        values[~known] = 0
        for child, parent in self.upward:
            present = values[:, child] == 1
            raised = known[:, child] & (present | known[:, parent])
            higher = torch.maximum(values[:, parent], values[:, child])
            values[:, parent] = torch.where(raised, higher, values[:, parent])
            known[:, parent] |= present
        for child, parent in reversed(self.upward):
            absent = known[:, parent] & (values[:, parent] == 0)
            values[:, child] = torch.where(absent, 0, values[:, child])
            known[:, child] |= absent
        return values, known if observed is not None or not bool(known.all()) else None

    def violations(self, values: "Tensor") -> "Tensor":
        """Return the rows (N,) in which a label lies above its parent."""
        import torch

        found = torch.zeros_like(values[:, 0], dtype=torch.bool)
        for child, parent in self.upward:
            found |= values[:, child] > values[:, parent]
        return found

    def consistent(self, log_odds: "Tensor") -> "Tensor":
        """Return the nearest log-odds (N, K) that obey the tree; rows that do stay as they are."""
        import torch

        with torch.no_grad():
            wrong = self.violations(log_odds)
            if torch.compiler.is_compiling():  # a captured program cannot choose rows
                merged = self._merged(log_odds.double().clamp(-FAR, FAR)).to(log_odds.dtype)
                return torch.where(wrong[:, None], merged, log_odds)
            if not bool(wrong.any()):
                return log_odds
            merged = self._merged(log_odds[wrong].double().clamp(-FAR, FAR)).to(log_odds.dtype)
            result = log_odds.clone()
            result[wrong] = merged
            return result

    def _merged(self, values: "Tensor") -> "Tensor":
        """Return the regression of rows, from the deepest parents up."""
        import torch

        row = self._row
        value = values[:, row.columns.tolist()]
        for parent in self.parents_upward:
            start, size = int(row.place[parent]), int(row.size[parent])
            under = value[:, start + 1 : start + size]
            block = torch.cat([value[:, start, None], under.sort(dim=1, descending=True)[0]], 1)
            sizes = torch.arange(1, size + 1, device=values.device)
            top = (block.cumsum(1) / sizes).amax(1, keepdim=True)
            value[:, start + 1 : start + size] = torch.minimum(under, top)
            value[:, start] = top[:, 0]
        return value[:, row.place.tolist()]

    def levels(self) -> dict[int, NDArray[np.int64]]:
        """Return the columns of each level, from the top."""
        level = np.array(self.level)
        return {int(depth): np.flatnonzero(level == depth) for depth in np.unique(level)}

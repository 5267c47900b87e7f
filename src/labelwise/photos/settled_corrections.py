"""SettledCorrections: what people said of photos, and what follows by the model's own rules.

By its taxonomy a label is present where one of its kinds is, and absent where what it is a kind of
is absent. Of labels that exclude each other, those beside a present one are absent, and the last
one left of exactly one is present. What was said of a label itself stands.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from labelwise.models.spec import ModelSpec
from labelwise.photos.store import Correction, Fact, Store


class SettledCorrections:
    """The corrections of a store under a model that may obey a taxonomy, or groups of labels."""

    def __init__(self, store: Store, spec: ModelSpec) -> None:
        self._store, self._space, self._names = store, spec.space, spec.space.names
        self._tree, self._exclusive = spec.label_tree, spec.exclusive

    def of(self, label: int) -> list[Correction]:
        """Return what people say of a label, and what follows for it."""
        own = self._store.corrections(self._names[label])
        told = {one.row for one in own}
        follows = {one.row: one for one in (*self._by_tree(label), *self._by_group(label))}
        return [*own, *(one for row, one in follows.items() if row not in told)]

    def labels(self) -> set[int]:
        """Return the labels of which something is said or may follow."""
        found = {self._space.column(one.label) for one in self._store.corrections()}
        if self._tree is not None:
            tops = {self._tree.top(label) for label in found}
            found = {label for top in tops for label in (top, *self._tree.below(top))}
        if self._exclusive is not None:
            groups = [group for group in self._exclusive.groups if found.intersection(group)]
            found = found.union(*groups)
        return found

    def _by_tree(self, label: int) -> Iterator[Correction]:
        """Yield what follows for a label from those above and below it in the taxonomy."""
        if self._tree is None:
            return
        for relatives, state in (
            (self._tree.above(label), "absent"),
            (self._tree.below(label), "present"),
        ):
            for relative in relatives:
                for one in self._store.corrections(self._names[relative]):
                    if one.state == state:
                        yield replace(one, label=self._names[label])

    def _by_group(self, label: int) -> Iterator[Correction]:
        """Yield what follows for a label from those that exclude it; nothing where they clash."""
        rules = self._exclusive
        group = () if rules is None else next((g for g in rules.groups if label in g), ())
        if rules is None or not group:
            return
        last: dict[int, Correction] = {}
        said = [self._store.corrections(self._names[column]) for column in group]
        rows = {
            row: at for at, row in enumerate(sorted({one.row for some in said for one in some}))
        }
        labels = np.zeros((len(rows), len(group)))
        observed = np.zeros(labels.shape, np.bool_)
        for at, some in enumerate(said):
            for one in some:
                labels[rows[one.row], at] = one.state == "present"
                observed[rows[one.row], at] = one.state != "unknown"
                last[one.row] = one
        found = rules.alone(group, range(len(group))).settled(labels, observed)
        place = group.index(label)
        for row, at in rows.items():
            if found.observed[at, place]:
                state: Fact = "present" if found.labels[at, place] else "absent"
                yield replace(last[row], label=self._names[label], state=state)

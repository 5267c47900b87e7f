"""The probabilities of a label after people corrected some photos.

* What a person said of a photo is certain: probability 1 or 0 for that label.
* For all other photos the label's link is fitted anew on the held-out photos of the model and the
  corrected ones together, p = sigma(slope u + offset) of its log-odds u.

People correct what they happen to see, so the corrected photos are not a random sample; the
held-out ones keep the fit where it was unless corrections are many. Where fewer than 50 of these
speak of the label, the model's own probabilities of photos of the index, spread over its first
ROWS_AT_ONCE rows, make up the number, as soft labels: with eight held-out photos, one correction
could turn a fit around.

What follows from what people said: by a model's taxonomy a label is present where one of its kinds
is, and absent where what it is a kind of is absent. Of labels that exclude each other, those beside
a present one are absent, and the last one left of exactly one is present. What was said of a label
itself stands.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelwise.models.spec import ModelSpec
from labelwise.photos.probabilities import (
    ROWS_AT_ONCE,
    KnownPhotos,
    ModelOdds,
    Pair,
)
from labelwise.photos.store import Correction, Fact, Store
from labelwise.photos.topk import LabelOdds


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


FAR = 50.0  # log-odds beyond which nothing changes
ENOUGH = 50  # held-out photos that keep a fit where it was

Mapped = Callable[[NDArray[np.float64], NDArray[np.float64]], Pair]


def corrected_odds(
    odds: ModelOdds, label: int, rows: int, corrections: Sequence[Correction], mapped: Mapped
) -> LabelOdds:
    """Return those of a label for all ``rows``: mapped, and certain where somebody told."""
    log_p, log_q = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for start in range(0, rows, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, rows))
        log_p[part], log_q[part] = mapped(*odds.of_label(label, part))
    for one in corrections:
        if one.state in ("present", "absent"):
            certain = one.state == "present"
            log_p[one.row] = 0.0 if certain else -np.inf
            log_q[one.row] = -np.inf if certain else 0.0
    return LabelOdds(log_p, log_q)


def refitted(
    odds: ModelOdds,
    label: int,
    corrections: Sequence[Correction],
    held_out: Callable[[], KnownPhotos | None],
) -> Mapped:
    """Return the map of (log p, log(1 - p)) that held-out photos and corrections call for.

    ``held_out`` reads them, where there are corrections.
    """
    known = [one for one in corrections if one.state != "unknown"]
    if not known:
        return lambda log_p, log_q: (log_p, log_q)
    from labelwise.calibration import platt

    log_p, log_q = odds.of_label(label, np.array([one.row for one in known], np.int64))
    given = [log_p - log_q]
    labels = [np.array([one.state == "present" for one in known], np.float64)]
    photos, lacking = held_out(), None
    if photos is not None:
        seen = slice(None) if photos.observed is None else photos.observed[:, label]
        given.append((photos.log_p[:, label] - photos.log_q[:, label])[seen])
        labels.append(photos.labels[seen, label].astype(np.float64))
        lacking = ENOUGH - len(labels[-1])
    if lacking is None or lacking > 0:  # the model's own word, as soft labels
        log_p, log_q = odds.of_label(label, slice(0, ROWS_AT_ONCE))
        places = np.linspace(0, len(log_p) - 1, lacking or len(log_p)).astype(np.int64)
        given.append((log_p - log_q)[places])
        labels.append(np.exp(log_p)[places])
    u = np.concatenate(given)[:, None].clip(-FAR, FAR)
    link = platt(u, np.concatenate(labels)[:, None], None, scope="shared")

    def refit(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> Pair:
        found = link.log_probs((log_p - log_q).clip(-FAR, FAR)[:, None])
        return found[0][:, 0], found[1][:, 0]

    return refit

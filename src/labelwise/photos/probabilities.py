"""ModelOdds: log p and log(1 - p) of an index's photos under the model's own link.

Computing them takes longer than a search, so they are kept in the cache:

    labels-MODEL.bin             a small index: log p and log(1 - p) of all labels, in turn
    p-LABEL-MODEL.bin, q-...     a large one: log p, and log(1 - p), of one label
    held-out-MODEL-FILE.bin      photos of the model whose labels are known: what queries and
    validation-MODEL-FILE.bin    promises are fitted on

MODEL is a hash of ``model.json``, FILE one of their predictions. An index between small and large,
of few photos with very many labels, keeps no labels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Evidence
from labelwise.links import Link, check_log_probs
from labelwise.numeric.groups import Groups
from labelwise.photos.database import file_hash
from labelwise.photos.store import Store
from labelwise.photos.topk import LabelOdds
from labelwise.predictions import Predictions
from labelwise.system.progress import Watch

ROWS_AT_ONCE = 1 << 16
KEPT_FROM = 1 << 16  # rows from which each label has files of its own
ONE_FILE = 1 << 22  # probabilities that are kept in one file for all labels, of fewer rows
AT_ONCE = 1 << 19  # numbers of that file that are computed at once

Rows = NDArray[np.int64]
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class KnownPhotos:
    """Probabilities and labels (N, K) of photos, and which of the labels are known (None: all).

    ``log_p`` and ``log_q`` = log(1 - p) have 64 bits; ``probs`` have 32, as rules read them:
    ``Link.decision_probs``.
    """

    ids: Sequence[str]
    names: tuple[str, ...]
    log_p: NDArray[np.float64]
    log_q: NDArray[np.float64]
    probs: NDArray[np.float32]
    labels: NDArray[Any]
    observed: NDArray[np.bool_] | None
    groups: Groups | None

    @property
    def majority(self) -> NDArray[np.bool_]:
        """The labels as booleans, soft ones cut at 1/2, as ``Predictions.majority``."""
        cut: NDArray[np.bool_] = self.labels > 0.5
        return cut

    def evidence(self, photos: str) -> Evidence:
        """Return them as photos that a promise is made on; ``photos`` says which they are."""
        return Evidence.read(
            self.probs,
            self.majority,
            self.observed,
            names=self.names,
            ids=self.ids,
            photos=photos,
            groups=self.groups,
        )


class ModelOdds:
    """The log probabilities of a store's photos, as the model alone has them.

    ``link`` makes the model's link where the cache lacks what follows from it.
    """

    def __init__(self, store: Store, link: Callable[[], Link]) -> None:
        self._store, self._link = store, link
        self._labels = len(store.labels)
        self._model = file_hash(store.folder / "model.json").hex()[:16]

    def known_photos(self, name: str) -> KnownPhotos | None:
        """Return the photos of the predictions ``NAME.parquet``, None where there are none."""
        path, cache = self._store.checksums.sound_file(f"{name}.parquet"), self._store.cache
        if path is None:
            return None
        stored = Predictions.load(path, with_link=False)
        made_of = f"{self._model}-{file_hash(path).hex()[:16]}"
        cache.remove(f"{name}-*", but=made_of)

        def computed(done: int, _rows: int) -> Iterator[NDArray[np.float64]]:
            logits = stored.logits.astype(np.float64)
            log_p, log_q = self._link().log_probs(logits)
            probs = np.exp(log_p).astype(np.float32)  # as Link.decision_probs
            yield np.concatenate([log_p, log_q, probs], axis=1)[done:]

        shape = (len(stored.ids), 3 * len(stored.names))
        sides = cache.grown(f"{name}-{made_of}.bin", np.dtype(np.float64), shape, computed)
        log_p, log_q, probs = np.split(sides, 3, axis=1)
        return KnownPhotos(
            stored.ids,
            stored.names,
            log_p,
            log_q,
            probs.astype(np.float32),
            stored.labels,
            stored.observed,
            None if stored.group is None else Groups.if_shared(stored.group),
        )

    def of_label(self, label: int, rows: slice | Rows) -> Pair:
        """Return log p and log(1 - p) (n,) of one label of some photos."""

        def read(column: int) -> NDArray[np.float64]:
            return np.array(self._store.column(column)[rows], np.float64)

        return check_log_probs(*self._link().label_log_probs(label, read, self._labels))

    def of_photos(self, rows: slice | Rows) -> Pair:
        """Return log p and log(1 - p) (n, K) of all labels of some photos."""
        columns = [self._store.column(label)[rows] for label in range(self._labels)]
        logits = np.stack(columns, axis=1).astype(np.float64)
        return check_log_probs(*self._link().log_probs(logits))

    def every(self, label: int) -> LabelOdds:
        """Return those of all photos: from the cache, written now if need be, or computed."""
        if self._kept_as == "files":
            return LabelOdds(partial(self._column, label, 0), partial(self._column, label, 1))
        if self._kept_as == "table":
            table = self._table()
            return LabelOdds(table[:, 2 * label].copy(), table[:, 2 * label + 1].copy())
        pair = self.of_label(label, slice(0, self._store.rows))
        return LabelOdds(*(side.astype(np.float32) for side in pair))

    def prepare(self, watch: Watch) -> None:
        """Write what the first searches would wait for to the cache."""
        for old in ("order-*", "fronts-*", "axes-of-fronts*"):  # of version 0.2
            self._store.cache.remove(old, but="\0")
        for name in ("held-out", "validation"):
            self.known_photos(name)
        if self._kept_as == "table":
            self._table()
        if self._kept_as != "files":
            return
        watch.start("preparing searches", self._labels)
        for label in range(self._labels):
            self._column(label, 0)
            self._column(label, 1)
            watch.advance(1)
        watch.finish()

    @property
    def _kept_as(self) -> Literal["files", "table"] | None:
        """Whether each label has files of its own, all labels one table, or nothing is kept."""
        rows = self._store.rows
        if rows >= KEPT_FROM:
            return "files"
        return "table" if rows * self._labels <= ONE_FILE else None

    def _table(self) -> NDArray[np.float32]:
        """Return log p and log(1 - p) (rows, 2 K), in turn."""
        width = 2 * self._labels

        def computed(rows: slice) -> NDArray[np.floating[Any]]:
            return np.stack(self.of_photos(rows), axis=2).reshape(-1, width)

        return self._grown("labels", width, max(1, AT_ONCE // width), computed)

    def _column(self, label: int, side: Literal[0, 1]) -> NDArray[np.float32]:
        """Return log p, or log(1 - p) at side 1, of every row."""

        def computed(rows: slice) -> NDArray[np.floating[Any]]:
            return self.of_label(label, rows)[side]

        return self._grown(f"{'pq'[side]}-{label + 1:05d}", 1, ROWS_AT_ONCE, computed)[:, 0]

    def _grown(
        self, kind: str, width: int, step: int, computed: Callable[[slice], NDArray[Any]]
    ) -> NDArray[np.float32]:
        """Return what the cache keeps of all rows, (rows, width), after computing what it lacks."""
        self._store.cache.remove(f"{kind}-*", but=self._model)  # those of an earlier link

        def parts(done: int, rows: int) -> Iterator[NDArray[np.float32]]:
            for start in range(done, rows, step):
                yield computed(slice(start, min(start + step, rows))).astype(np.float32)

        name, shape = f"{kind}-{self._model}.bin", (self._store.rows, width)
        return self._store.cache.grown(name, np.dtype(np.float32), shape, parts)

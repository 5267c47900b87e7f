"""LookAlikes: the photos of an index by how they look to the backbone.

    projection.npy    from the backbone's features to the embeddings that the store keeps

Photos are asked for by an embedding (those nearest to it) or by a direction in the backbone's
features, such as a text's (those farthest along it).
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.search.fronts import Fronts, fronts_of
from labelwise.search.similar import PARALLEL, Projection, codes_of, farthest_rows, nearest_rows
from labelwise.search.store import Store
from labelwise.system.files import replacing

__all__ = ["LookAlikes"]

PROJECTION_FILE = "projection.npy"

Rows = NDArray[np.int64]


class LookAlikes:
    """The embeddings of an index's photos, with the projection that made them."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._codes: NDArray[np.uint64] | None = None

    @cached_property
    def projection(self) -> Projection | None:
        """From the backbone's features to the embeddings kept here; None before the first."""
        path = self._store.checksums.sound_file(PROJECTION_FILE)
        return None if path is None else Projection(np.load(path, allow_pickle=False))

    def start_projection(self, features: NDArray[np.float32]) -> Projection:
        """Fit the projection of this index to some features."""
        projection = Projection.fitted(features)
        with (
            self._store.checksums.rewriting(PROJECTION_FILE),
            replacing(self._folder / PROJECTION_FILE) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, projection.numbers)
        self.__dict__.pop("projection", None)
        return projection

    def nearest(
        self, embedding: NDArray[np.float16], count: int, without: Iterable[int] = ()
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows whose photos look most like an embedding, with the cosines."""
        vectors = self._store.embeddings()
        excluded = np.union1d(self._store.dead_rows(), np.array([*without], np.int64))
        if self._codes is None or self._codes.shape[1] != len(vectors):
            self._codes = codes_of(vectors)
        rows, cosines = nearest_rows(embedding, vectors, self._codes, count, excluded)
        return rows, cosines.astype(np.float64)

    def along(
        self, direction: NDArray[np.float64], count: int, among: Rows | None = None
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows whose features lie farthest along a direction (D,), with the cosines.

        ``among`` are the rows that are looked at, None for all. The answer is exact.
        """
        projection, vectors = self.projection, self._store.embeddings()
        if projection is None or not vectors.shape[1]:
            raise DataError(
                f"{self._folder} keeps no embeddings, so its photos cannot be ranked by a text; "
                "make it again with a model of `labelwise start`"
            )
        if direction.shape != projection.numbers.shape[1:]:
            raise DataError(
                f"the text has {len(direction):,} features and the photos of {self._folder} have "
                f"{projection.numbers.shape[1]:,}; index them with the model of the text"
            )
        turned = projection.numbers[1:].astype(np.float64) @ direction
        dead = self._store.dead_rows()
        return farthest_rows(turned, vectors, count, dead, among, self.fronts())

    def fronts(self) -> Fronts | None:
        """Return what says which rows need not be measured; None where measuring all is quick."""
        vectors = self._store.embeddings()
        return fronts_of(self._store.cache, vectors) if len(vectors) >= PARALLEL else None

"""Embeddings: the photos of an index by how they look to the backbone.

    embedding = unit vector of V (features - mean)   V: main directions of the first features
    nearness  = cosine of two embeddings

The nearest photos are found by the cosines of all of them, computed block by block.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import replacing
from labelwise.errors import DataError
from labelwise.photos.store import Store
from labelwise.photos.topk import ROWS_AT_ONCE, Rows, best_rows

PROJECTION_FILE = "projection.npy"
MAPS_FILE = Path(__file__).parent / "words" / "caption_maps.npz"
WIDTH = 256
COVARIANCE_ROWS = 20_000  # say how photos differ
ALBUM_RIDGE = 3.0  # mean variances; on COCO 1 to 10 rank about equally well

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Projection:
    """From features (n, D) to embeddings; ``numbers`` (1 + width, D) are the mean, then V."""

    numbers: Vectors

    @classmethod
    def fitted(cls, features: Vectors) -> "Projection":
        mean = features.mean(axis=0, dtype=np.float64)
        centred = features.astype(np.float64) - mean
        width = min(WIDTH, features.shape[1])
        directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :width]
        return cls(np.vstack([mean, directions.T]).astype(np.float32))

    def __call__(self, features: Vectors) -> NDArray[np.float16]:
        mean, directions = self.numbers[0], self.numbers[1:]
        turned = (features - mean) @ directions.T
        length = np.linalg.norm(turned, axis=1, keepdims=True)
        return np.asarray(turned / np.maximum(length, 1e-12), np.float16)


class IndexEmbeddings:
    """The embeddings of an index's photos, with the projection that made them."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store

    @cached_property
    def projection(self) -> Projection | None:
        path = self._store.database.sound_file(PROJECTION_FILE)
        if path is None:
            return None
        return Projection(np.asarray(np.load(path, allow_pickle=False), np.float32))

    def start_projection(self, features: NDArray[np.float32]) -> Projection:
        projection = Projection.fitted(features)
        with (
            self._store.database.rewriting(PROJECTION_FILE),
            replacing(self._folder / PROJECTION_FILE) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, projection.numbers)
        self.__dict__.pop("projection", None)
        return projection

    def nearest(
        self, embedding: NDArray[np.float16], count: int, without: Iterable[int] = ()
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows nearest to an embedding (D,), nearest first, and their cosines."""
        excluded = np.union1d(self._store.dead_rows(), np.array([*without], np.int64))
        vectors = self._store.embeddings()
        return farthest_rows(embedding.astype(np.float64), vectors, count, excluded)

    def along(
        self, direction: NDArray[np.float64], count: int, among: Rows | None = None
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows whose features lie farthest along a direction (D,), with the cosines."""
        projection, vectors = self.projection, self._store.embeddings()
        if projection is None or not vectors.shape[1]:
            mend = "make it with a model of `train --words`"
            raise DataError(f"{self._folder} keeps no embeddings; {mend}")
        if direction.shape != projection.numbers.shape[1:]:
            other = f"the text is not of the model of {self._folder}"
            raise DataError(f"{other}; index its photos with that model")
        turned = projection.numbers[1:].astype(np.float64) @ direction
        return farthest_rows(turned, vectors, count, self._store.dead_rows(), among)

    def like_album(
        self, album: Rows, count: int, captions: bool = False
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows most like those of an album, without these, by the cosine with the linear
        discriminant (covariance + ridge)^-1 (mean of the album - mean of all).

        ``captions`` compares photos in the space that photos share with captions.
        """
        vectors, dead = self._store.embeddings(), self._store.dead_rows()
        if not vectors.shape[1]:
            raise DataError(f"{self._folder} keeps no looks of photos; index them again")
        turned = to_captions(self.projection) if captions else None
        others = np.setdiff1d(np.arange(len(vectors)), dead)
        sample = vectors[others[:: -(-len(others) // COVARIANCE_ROWS)]]
        some = mapped(sample, turned).astype(np.float64)
        centred = some - some.mean(axis=0)
        covariance = centred.T @ centred / len(some)
        ridge = ALBUM_RIDGE * np.trace(covariance) / len(covariance)
        apart = mapped(vectors[album], turned).mean(axis=0, dtype=np.float64) - some.mean(axis=0)
        direction = np.linalg.solve(covariance + max(ridge, 1e-12) * np.eye(len(apart)), apart)
        return farthest_rows(direction, vectors, count, np.union1d(dead, album), turned=turned)


def to_captions(projection: Projection | None) -> Vectors | None:
    """Return the map (width, d) from embeddings to the space of captions, if it fits."""
    with np.load(MAPS_FILE, allow_pickle=False) as maps:
        image, deviation = maps["image"].astype(np.float32), maps["deviation"].astype(np.float32)
    if projection is None or projection.numbers.shape[1] != image.shape[1]:
        return None
    return np.asarray(projection.numbers[1:] @ (image / deviation).T)


def farthest_rows(
    direction: NDArray[np.float64],
    embeddings: NDArray[np.float16],
    count: int,
    excluded: Rows,
    among: Rows | None = None,
    turned: Vectors | None = None,
) -> tuple[Rows, NDArray[np.float64]]:
    """Return the ``count`` rows of ``among`` farthest along a direction (D,), and the cosines.

    ``turned`` (width, D) maps embeddings to where the direction is.
    """
    target = (direction / max(float(np.linalg.norm(direction)), 1e-12)).astype(np.float32)
    every = np.arange(len(embeddings)) if among is None else among
    rows = np.setdiff1d(every, excluded) if len(excluded) or among is not None else every
    cosines = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        cosines[block] = mapped(embeddings[rows[block]], turned) @ target
    order = best_rows(cosines, count)
    return rows[order], cosines[order].astype(np.float64)


def mapped(embeddings: NDArray[np.float16], turned: Vectors | None) -> Vectors:
    """Return embeddings, or unit vectors of where a map (width, D) puts them."""
    vectors = embeddings.astype(np.float32)
    if turned is None:
        return vectors
    vectors = vectors @ turned
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))

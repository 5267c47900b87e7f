"""Fronts: half of the numbers of each embedding, and no more, say which photos a text cannot find.

    f = V' x            V: orthonormal axes in which the first photos' embeddings differ most
    r = |x - V f|       the length of what the axes leave out
    q . x <= (V' q) . f + |q - V V' q| r        (Cauchy and Schwarz)

``fronts`` has f and r of every row, so that one product with (V' q, |q - V V' q|) gives ceilings:
no cosine is above its own. Rows whose ceiling is below the k-th best cosine of a few that were
measured are not among the best k, and the others are measured. The answer is that of measuring all.

    cache/axes-of-fronts.bin  V, (D, D / 2 - 1) doubles
    cache/fronts-KEY.bin      f and r, (n, D / 2) floats; the key is the hash of the axes
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.search.cache import CacheFiles

__all__ = ["ROUNDING", "Fronts", "fronts_of"]

SAMPLED = 1 << 14  # rows that say what the axes are
BLOCK = 1 << 14
ROUNDING = 1e-4  # more than sums of 256 products of single precision, of unit vectors, are off


@dataclass(frozen=True, eq=False)
class Fronts:
    """Axes V (D, F), and the fronts (n, F + 1) of all rows."""

    axes: NDArray[np.float64]
    values: NDArray[np.float32]

    def query(self, target: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the numbers (F + 1,) whose product with the fronts are ceilings of q . x."""
        front = target @ self.axes
        rest = np.linalg.norm(target - self.axes @ front)
        return np.append(front, rest).astype(np.float32)


def fronts_of(cache: CacheFiles, embeddings: NDArray[np.float16]) -> Fronts:
    """Return the fronts of embeddings (n, D), from the cache or computed and kept there."""
    rows, width = embeddings.shape
    count = width // 2 - 1

    def computed_axes(_done: int, _rows: int) -> Iterator[NDArray[np.float64]]:
        yield main_axes(embeddings[:: max(1, rows // SAMPLED)], count)

    axes = cache.grown("axes-of-fronts.bin", np.dtype(np.float64), (width, count), computed_axes)
    key = hashlib.sha256(axes.tobytes()).hexdigest()[:16]
    cache.remove("fronts-*", but=key)

    def computed(done: int, rows: int) -> Iterator[NDArray[np.float32]]:
        for start in range(done, rows, BLOCK):
            yield front_values(embeddings[start : min(start + BLOCK, rows)], axes)

    name, shape = f"fronts-{key}.bin", (rows, count + 1)
    return Fronts(axes, cache.grown(name, np.dtype(np.float32), shape, computed))


def main_axes(embeddings: NDArray[np.float16], count: int) -> NDArray[np.float64]:
    """Return ``count`` orthonormal axes (D, count) that hold most of some embeddings."""
    x = embeddings.astype(np.float64)
    return np.ascontiguousarray(np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :count])


def front_values(embeddings: NDArray[np.float16], axes: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the coordinates of embeddings along some axes, and the length of what is left."""
    x = embeddings.astype(np.float64)
    front = x @ axes
    rest = np.linalg.norm(x - front @ axes.T, axis=1, keepdims=True)
    return np.hstack([front, rest]).astype(np.float32)

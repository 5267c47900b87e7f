"""Fronts: three bytes for every four numbers of an embedding say which photos a text cannot find.

    f = V' x                  V: orthonormal axes in which the first photos' embeddings differ most
    f = a n + d               n: whole numbers from -127 to 127; a: the unit of each axis
    r = |x - V f|, e = |d|    lengths of what the axes leave out, and of what rounding does
    q . x <= (a V' q) . n + |q - V V' q| r + |V' q| e        (Cauchy and Schwarz, twice)

A front is n and both lengths, rounded up, in two digits of base 128. So one product of bytes with
the numbers of q, in three digits, gives ceilings: no cosine is above its own. Rows whose ceiling is
below the k-th best cosine of a few that were measured are not among the best k, and the others are
measured. The answer is that of measuring all.

    cache/axes-of-fronts-8.bin   V and a, (D + 1, F) doubles
    cache/fronts-KEY.bin         fronts, (n, F + 4) bytes; the key is the hash of V and a
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.small_products import SmallColumns
from labelwise.photos.checksums import CacheFiles

SAMPLED = 1 << 14  # rows that say what the axes are
BLOCK = 1 << 15
BASE, MOST = 128, 127  # of digits; they and what they count have signs
DIGITS, LENGTHS = 3, 4  # of a text's numbers; bytes of both lengths
LENGTH_UNIT = 2.0**-13  # two digits reach 2, and no unit vector has a longer part or rounding
ROUNDING = 3e-4  # more than sums of 256 products of single precision and the last digits are off


@dataclass(frozen=True, eq=False)
class TextDigits:
    """Numbers of a text, whole multiples of a unit, digit by digit: the highest first."""

    columns: SmallColumns
    unit: float


@dataclass(frozen=True, eq=False)
class Fronts:
    """Axes V (D, F), their units (F,), and the fronts (n, F + 4) of all rows."""

    axes: NDArray[np.float64]
    units: NDArray[np.float64]
    values: NDArray[np.int8]

    def query(self, target: NDArray[np.float64]) -> TextDigits:
        """Return the numbers whose product with fronts are ceilings of q . x."""
        front = target @ self.axes
        rest = np.linalg.norm(target - self.axes @ front)
        place = np.array([BASE, 1]) * LENGTH_UNIT
        numbers = np.concatenate([front * self.units, rest * place, np.linalg.norm(front) * place])
        unit = max(float(np.abs(numbers).max()), 1e-12) / (MOST * BASE ** (DIGITS - 1))
        return TextDigits(SmallColumns(_digits(np.rint(numbers / unit).astype(np.int64))), unit)

    def write_ceilings(
        self, query: TextDigits, ceilings: NDArray[np.int32], first: int, last: int
    ) -> None:
        """Write the ceilings of the rows ``first`` to ``last``, in units of the query."""
        for start in range(first, last, BLOCK):
            rows = slice(start, min(start + BLOCK, last))
            highest, *lower = query.columns.products(self.values[rows]).T
            own = ceilings[rows]
            own[:] = highest
            for digit in lower:  # what leaves 32 bits on the way comes back: the sums are < 2^30
                own *= BASE
                own += digit


def fronts_of(cache: CacheFiles, embeddings: NDArray[np.float16]) -> Fronts:
    """Return the fronts of embeddings (n, D), from the cache or computed and kept there."""
    rows, width = embeddings.shape
    count = max(1, 3 * width // 4 - LENGTHS)

    def computed_axes(_done: int, _rows: int) -> Iterator[NDArray[np.float64]]:
        some = embeddings[:: max(1, rows // SAMPLED)]
        axes = main_axes(some, count)
        yield np.vstack([axes, units_of(some, axes)])

    name = "axes-of-fronts-8.bin"
    kept = cache.grown(name, np.dtype(np.float64), (width + 1, count), computed_axes)
    key = hashlib.sha256(kept.tobytes()).hexdigest()[:16]
    cache.remove("axes-of-fronts*", but=name)  # of earlier versions
    cache.remove("fronts-*", but=key)
    axes, units = kept[:-1], kept[-1]

    def computed(done: int, rows: int) -> Iterator[NDArray[np.int8]]:
        for start in range(done, rows, BLOCK):
            yield front_values(embeddings[start : min(start + BLOCK, rows)], axes, units)

    name, shape = f"fronts-{key}.bin", (rows, count + LENGTHS)
    return Fronts(axes, units, cache.grown(name, np.dtype(np.int8), shape, computed))


def main_axes(embeddings: NDArray[np.float16], count: int) -> NDArray[np.float64]:
    """Return ``count`` orthonormal axes (D, count) that hold most of some embeddings."""
    x = embeddings.astype(np.float64)
    return np.ascontiguousarray(np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :count])


def units_of(embeddings: NDArray[np.float16], axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the units (F,) in which some embeddings reach 127 along each axis."""
    most = np.abs(embeddings.astype(np.float64) @ axes).max(axis=0)
    units: NDArray[np.float64] = np.maximum(most, 1e-6) / MOST
    return units


def front_values(
    embeddings: NDArray[np.float16], axes: NDArray[np.float64], units: NDArray[np.float64]
) -> NDArray[np.int8]:
    """Return the fronts (n, F + 4) of embeddings."""
    x = embeddings.astype(np.float64)
    front = x @ axes
    whole = np.clip(np.rint(front / units), -MOST, MOST)
    lengths = (x - front @ axes.T, front - whole * units)
    digits = [
        np.divmod(np.ceil(np.linalg.norm(part, axis=1) / LENGTH_UNIT), BASE) for part in lengths
    ]
    return np.column_stack([whole, *digits[0], *digits[1]]).astype(np.int8)


def _digits(whole: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return digits (3, W) from -64 to 127 of whole numbers, the highest first."""
    digits = []
    for _ in range(DIGITS - 1):
        rest = (whole + BASE // 2) // BASE
        digits.append(whole - rest * BASE)
        whole = rest
    return np.array([whole, *reversed(digits)]).astype(np.int8)

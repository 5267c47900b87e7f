"""Groups: photos that belong together, such as those of a patient, a site, a burst or a scene.

What is independent, and so what is drawn, resampled and tested, is the group. With U_m what photo m
adds to the error of a figure (its influence), Kish's design effect says how much that matters:

    design effect  D  = sum over groups of (sum of U_m within)^2  /  sum over photos of U_m^2
    effective number  = photos / D                     as many independent photos say as much
    error of a test photo by photo:  delta becomes  Phi(Phi^-1(delta) / sqrt(D))

A variance that is a sum of squares M_g^2 over G groups is carried by K = (sum M_g^2)^2 / sum M_g^4
of them. Its degrees of freedom are taken as 2 K - 1, from 1 to G - 1
(``benchmarks/group_figures.py`` at commit ad8fbb06).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Numbers, Values
from labelwise.base.special import ndtr, ndtri, stdtrit
from labelwise.errors import DataError


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each photo, as numbers (N,) from 0 on, of which ``count`` are in use."""

    codes: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, names: Iterable[object]) -> "Groups":
        """Return the groups of photos whose groups have these names (N,)."""
        different, codes = np.unique(np.asarray(list(names)), return_inverse=True)
        return cls(codes.astype(np.int64), len(different))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def are_photos(self) -> bool:
        """Whether each photo is a group of its own, so that groups change nothing."""
        return self.count == len(self.codes)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.codes, minlength=self.count)

    def take(self, rows: Values) -> "Groups":
        return Groups.of(self.codes[rows])

    def sums(self, values: Values) -> Numbers:
        """Return the sums (G, ...) within groups of values (N, ...) of photos."""
        if len(values) != len(self.codes):
            raise ValueError(f"there are {len(self.codes)} photos in groups, got {len(values)}")
        order, starts = self._order
        return np.asarray(np.add.reduceat(np.asarray(values, np.float64)[order], starts, axis=0))

    def ratios(self, values: Values, weights: Values) -> Numbers:
        """Return sum of values / sum of weights (G, ...) within groups; 0 without a weight."""
        total = self.sums(weights)
        return np.asarray(self.sums(values) / np.where(total > 0, total, 1.0) * (total > 0))

    def counted(self, weights: Values) -> Numbers:
        """Return 1 for each group (G, ...) that has a weight, 0 for others."""
        return np.asarray(self.sums(weights) > 0, np.float64)

    @cached_property
    def _order(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """The rows by group, and where each group begins among them."""
        starts = np.append(0, self.sizes.cumsum()[:-1]).astype(np.int64)
        return np.argsort(self.codes, kind="stable"), starts

    def divided(self, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the rows of a ``share`` of the groups, drawn by seed, and those of the others."""
        if not 0 < share < 1 or self.count < 2:
            what = f"{share:g} of the photos or groups cannot be taken"
            raise DataError(f"{what}; two or more are needed, got {self.count}")
        cut = min(max(1, round(share * self.count)), self.count - 1)
        chosen = np.isin(self.codes, np.random.default_rng(seed).permutation(self.count)[:cut])
        return np.flatnonzero(chosen), np.flatnonzero(~chosen)

    def one_of_each(self, seed: int = 0) -> NDArray[np.intp]:
        """Return one photo of each group, drawn by seed: photos that are independent."""
        order = np.random.default_rng(seed).permutation(len(self.codes))
        return np.sort(order[np.unique(self.codes[order], return_index=True)[1]])

    def bundled(self, most: int) -> "Groups":
        """Return at most ``most`` groups: where there are more, whole ones are put together."""
        if self.count <= most:
            return self
        dealt = np.random.default_rng(0).permutation(np.arange(self.count) % most)
        return Groups(dealt[self.codes].astype(np.int64), most)

    def worth(self, moved: Numbers, counted: Values) -> float:
        """Return how many independent photos those that count (N,) are worth for a share of them.

        That is their number divided by the design effect, at least 1, and by (t of groups / t of
        photos)^2. Photos move the share by ``moved`` (N,), and a group by its sum / (1 - its part
        of the photos that count), as if the share had been found without it. They are worth at
        least (sum of n_g)^2 / sum of n_g^2, for n_g in group g. Where no photo moves the share, all
        right or all wrong, the groups are counted.
        """
        parts = self.sums(counted)
        count, units = float(parts.sum()), int((parts > 0).sum())
        if units < 2 or not moved.any():
            return float(units)
        by_group = (self.sums(moved) / (1 - parts / count))[parts > 0]
        effect = float(by_group @ by_group) / float(moved @ moved)
        few, many = map(float, stdtrit([freedom_of(by_group), count - 1], 0.975))
        return max(count**2 / float(parts @ parts), count / max(effect, 1.0) * (many / few) ** 2)

    def design_effect(self, influence: Numbers) -> float | None:
        """Return D of a figure moved by each photo as ``influence`` (N,) says; None for none."""
        alone, together = float(influence @ influence), self.sums(influence)
        return float(together @ together) / alone if alone else None


def freedom_of(moved: Numbers) -> float:
    """Return the degrees of freedom of a variance to which groups add ``moved`` (G,) squared.

    >>> freedom_of(np.ones(10)), round(freedom_of(np.array([3.0, 0.1, 0.1])), 2)
    (9.0, 1.01)
    """
    squares, most = moved**2, float(max(len(moved) - 1, 1))
    fourth = float(squares @ squares)
    return float(np.clip(2 * squares.sum() ** 2 / fourth - 1, 1, most)) if fourth else most


def error_of_photo_test(delta: float, design_effect: float) -> float:
    """Return the chance of a false claim by a test that takes the photos as independent.

    >>> round(error_of_photo_test(0.05, 4.0), 2)
    0.21
    """
    return float(ndtr(ndtri(delta) / np.sqrt(max(design_effect, 1.0))))


def joined_rows(earliest: NDArray[np.int64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the earliest row (n,) that each is joined to, by what is known and by pairs (P, 2).

    >>> joined_rows(np.array([0, 1, 2, 2]), np.array([[1, 3]])).tolist()
    [0, 1, 1, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = np.arange(len(earliest))
    start, end = np.concatenate([np.stack([rows, earliest], 1), pairs]).T
    graph = coo_array((np.ones(len(start)), (start, end)), shape=(len(rows), len(rows)))
    codes = connected_components(graph, directed=False)[1]
    return np.asarray(np.unique(codes, return_index=True)[1][codes], np.int64)

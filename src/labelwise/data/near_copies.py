"""Tables whose near copies are groups: the same photo in another size, the next shot of a burst.

Two photos are near copies if their fingerprints have a cosine of at least NEAR
(:mod:`labelwise.pictures.fingerprint`), or their embeddings by some model one that is given. Photos
that a chain of near copies joins are one group, and so are photos of a group that the table has
already: no split that keeps groups together parts two near copies. A group is named after its
earliest photo, or after that one's group.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import LabelTable
from labelwise.errors import DataError, ImageError
from labelwise.numeric.duplicates import compared_groups, near_groups
from labelwise.numeric.groups import Groups, joined_rows
from labelwise.pictures.fingerprint import LEAST_SIDE, NEAR, WIDTH, look_of
from labelwise.system.names import Names
from labelwise.system.progress import Silent, Watch
from labelwise.system.text import counted

MANY, LARGE = 20, 0.5  # photos, and the share of them in one group that is worth a word


@dataclass(frozen=True, eq=False)
class GroupedTable:
    """A table with the groups of near copies, and what was found.

    ``copies`` photos look like another one; ``unread`` are the sentences on photos that could not
    be looked at.
    """

    table: LabelTable
    groups: Groups
    copies: int
    divided: int
    unread: tuple[str, ...]

    @property
    def warning(self) -> str:
        """What to look at before the groups are used; empty if nothing."""
        largest = int(self.groups.sizes.max())
        if len(self.table) < MANY or largest <= LARGE * len(self.table):
            return ""
        return (
            f"one group holds {largest:,} of {len(self.table):,} photos: a chain of near copies "
            "joins them, and its ends may be unlike"
        )

    def sentence(self) -> str:
        """Return what was found, in words."""
        return (
            f"{counted(len(self.table), 'photo')} in {counted(self.groups.count, 'group')} of up "
            f"to {int(self.groups.sizes.max()):,}; {self.copies:,} look like another photo"
        )


def group_near_copies(
    table: LabelTable, watch: Watch | None = None, *, workers: int = 2
) -> GroupedTable:
    """Return the table with near copies in one group; a photo that looks like no other is alone."""
    looks, unread = _looks(table, watch or Silent(), workers)
    if len(unread) == len(table):
        raise DataError(
            f"{table.name}: near copies are found by looking at photos, and none can be read "
            f"({unread[0]}); name the groups of other pictures in a column 'group'"
        )
    return _grouped(table, near_groups(looks, NEAR), unread)


def group_near_vectors(
    table: LabelTable,
    vectors: NDArray[np.floating[Any]],
    least: float,
    unread: Sequence[str] = (),
) -> GroupedTable:
    """Return the table with photos in one group whose vectors (N, D) have a cosine of ``least``.

    A vector of zeros is near nothing: that of a photo which the model could not see, of which a
    sentence of ``unread`` says why.
    """
    if not 0 < least <= 1:
        raise ValueError(f"the least cosine must lie in (0, 1], got {least}")
    values = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit = values / np.where(lengths > 0, lengths, 1)
    return _grouped(table, compared_groups(unit, least), unread)


def _grouped(table: LabelTable, alike: NDArray[np.int64], unread: Sequence[str]) -> GroupedTable:
    earliest, names = alike, table.ids
    if table.group is not None:
        codes, names = table.group.codes(), table.group
        first = np.unique(codes, return_index=True)[1][codes]
        earliest = joined_rows(alike, np.stack([np.arange(len(table)), first], 1))
    groups = Groups.of(earliest)
    sizes = np.bincount(alike, minlength=len(table))
    divided = 0
    if table.split is not None:
        divided = len(np.unique(earliest[table.split != table.split[earliest]]))
    named = Names(names[row] for row in earliest.tolist())
    copies = int(sizes[sizes > 1].sum())
    return GroupedTable(replace(table, group=named), groups, copies, divided, tuple(unread))


def _looks(table: LabelTable, watch: Watch, workers: int) -> tuple[NDArray[np.float32], list[str]]:
    """Return the fingerprints (N, WIDTH) and why some could not be made; those are zeros."""

    def look(row: int) -> NDArray[np.float32] | str:
        try:
            with table.images.read(row, LEAST_SIDE) as picture:
                return look_of(picture)
        except ImageError as error:
            return str(error)

    looks, unread = np.zeros((len(table), WIDTH), np.float32), []
    watch.start("looking at photos", len(table))
    with ThreadPoolExecutor(workers) as pool:
        for row, found in enumerate(pool.map(look, range(len(table)))):
            if isinstance(found, str):
                unread.append(found)
            else:
                looks[row] = found
            watch.advance(1)
    watch.finish()
    return looks, unread

"""Tables made of tables: labels that obey rules, single positives, partial labels, noise, splits.

Single positives as in Cole et al. 2021, bit for bit: RandomState(seed), made anew for the training
file (train and val rows, in order) and for the test file; for each image the positive columns are
shuffled and the first is kept, then the negative columns are shuffled too, although none is kept.

A stratified split deals images out one unit (an image, or a group) at a time, the rarest label
first, to the split that lowers most

    sum over labels, pairs and strata i, splits s of  (count_is - expected_is)^2 / expected_is

Two frequent labels that occur together are an item of their own if the smallest split can expect
one; "no label", "nothing known" and "any image" are items too. Same table, same seed, same split.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.groups import Groups, joined_rows
from labelwise.base.names import Names
from labelwise.base.progress import Silent, Watch
from labelwise.base.text import counted
from labelwise.errors import DataError, ImageError, SettingsError
from labelwise.pictures.copies import (
    alike_by_features,
    alike_by_looks,
    copied_groups,
    copied_pairs,
    reader,
)
from labelwise.pictures.duplicates import (
    LEAST_SIDE,
    WIDTH,
    compared_groups,
    look_of,
)
from labelwise.tables.checks import content_codes, without_training_photos
from labelwise.tables.table import BLOCK, SPLITS, LabelSets, LabelTable, SoftLabels
from labelwise.taxonomy import AttributeColumns, AttributeGroups, Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:
    from scipy import sparse

Rows = NDArray[np.int64]
Values = NDArray[Any]
Mask = NDArray[np.bool_]
FAR_FROM_WANTED = 0.05  # of the photos; a split by groups that is further off says so
BY_CHANCE = "hiding or flipping labels is for those that are 0 or 1"


@dataclass(frozen=True)
class SettledTable:
    """A table that obeys groups, their columns, the rows that broke one, and what was learned."""

    table: LabelTable
    columns: AttributeColumns
    conflicts: tuple[int, ...]
    learned: int

    def sentence(self) -> str:
        first = f", first {self.table.ids[self.conflicts[0]]!r}" if self.conflicts else ""
        return (
            f"{counted(len(self.conflicts), 'photo')} of {len(self.table):,} "
            f"{'breaks' if len(self.conflicts) == 1 else 'break'} a rule{first}; "
            f"{counted(self.learned, 'more label')} {'is' if self.learned == 1 else 'are'} known "
            "by the rules"
        )


def obey_groups(table: LabelTable, groups: AttributeGroups) -> SettledTable:
    """Return the table completed by rules of groups; labels that break one become unknown."""
    table.require_hard("rules of groups know yes, no and unknown")
    columns = groups.within(table.space)
    conflicts: list[int] = []
    learned = 0

    def settle(rows: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        nonlocal learned
        settled = columns.settled(labels.astype(np.float64), known)
        conflicts.extend(rows[settled.conflicts].tolist())
        learned += settled.learned
        return settled.labels, settled.observed

    return SettledTable(_changed(table, settle), columns, tuple(conflicts), learned)


@dataclass(frozen=True)
class Obeyed:
    """A table that obeys a taxonomy: labels that were known and rose, and that were learned.

    ``added`` are groups that became labels.
    """

    table: LabelTable
    raised: int
    learned: int
    added: tuple[str, ...] = ()

    def sentence(self) -> str:
        groups = f"; {len(self.added)} groups became labels" if self.added else ""
        return (
            f"by the taxonomy {self.raised:,} labels were raised, since a kind of them is there, "
            f"and {self.learned:,} unknown ones became known{groups}"
        )


def obey_taxonomy(table: LabelTable, taxonomy: Taxonomy, *, add_groups: bool = False) -> Obeyed:
    """Return the table with labels completed by :meth:`LabelTree.complete`.

    ``add_groups`` makes labels of parents that are none: present if one of their kinds is, absent
    if all of them are absent, otherwise unknown.
    """
    import torch

    names = table.space.names
    taxonomy.within(table.space)  # names that mean nothing
    above, own = taxonomy.all_above(names) if add_groups else (), set(names)
    added = tuple(name for name in above if name not in own)
    space = LabelSpace((*names, *added))
    tree = taxonomy.within(space)
    raised = learned = 0

    def complete(_: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        nonlocal raised, learned
        more = ((0, 0), (0, len(added)))
        none_below = np.pad(known & (labels == 0), more, constant_values=True)
        for child, parent in tree.upward if added else ():
            none_below[:, parent] &= none_below[:, child]
        seen = np.pad(known, more)
        seen[:, len(names) :] = none_below[:, len(names) :]
        wide = torch.from_numpy(np.pad(labels, more))
        values, there = tree.complete(wide, torch.from_numpy(seen))
        full, now = values.numpy(), np.ones_like(seen) if there is None else there.numpy()
        raised += int((known & (full[:, : len(names)] != labels)).sum())
        learned += int((now[:, : len(names)] & ~known).sum())
        return full, now

    return Obeyed(_changed(table, complete, space), raised, learned, added)


def _changed(
    table: LabelTable,
    change: Callable[[Rows, Values, Mask], tuple[Values, Mask]],
    space: LabelSpace | None = None,
) -> LabelTable:
    """Return the table with labels (n, K) of some rows, and which are known, changed in blocks."""
    parts = []
    step = max(1, BLOCK // max(1, len(space or table.space)))
    for start in range(0, len(table), step):
        rows = np.arange(start, min(start + step, len(table)))
        labels, observed = table.targets(rows)
        known = np.ones(labels.shape, np.bool_) if observed is None else observed
        values, now = change(rows, labels, known)
        values = np.where(now, values, 0).astype(np.float32)
        sets = LabelSets.from_dense(values > 0.5), LabelSets.from_dense(~now)
        parts.append((*sets, SoftLabels.from_dense(values)))
    if not parts:
        return table
    present, unknown, soft = zip(*parts, strict=True)
    return replace(
        table,
        space=space or table.space,
        present=LabelSets.concatenate(present),
        unknown=LabelSets.concatenate(unknown),
        soft=SoftLabels.concatenate(soft),
    )


def observe_uniform(
    labels: NDArray[np.generic], *, num_pos: int = 1, num_neg: int = 0, seed: int = 1200
) -> NDArray[np.int8]:
    """Return (N, K): 1 where a label is observed present, -1 observed absent, 0 not observed."""
    random = np.random.RandomState(seed)
    observed = np.zeros(labels.shape, np.int8)
    for row, truth in enumerate(labels.astype(np.bool_)):
        positives, negatives = np.flatnonzero(truth), np.flatnonzero(~truth)
        random.shuffle(positives)
        observed[row, positives[:num_pos]] = 1
        random.shuffle(negatives)
        observed[row, negatives[:num_neg]] = -1
    return observed


def single_positive(
    table: LabelTable,
    *,
    num_pos: int = 1,
    num_neg: int = 0,
    seed: int = 1200,
    splits: Collection[str] = ("train",),
) -> LabelTable:
    """Return the table where rows of ``splits`` keep one present label and the rest is unknown.

    Without a split column every row is corrupted. An image without label becomes unlabelled.
    """
    table.require_hard("single positives are chosen among labels that are 0 or 1")
    labels, observed = table.targets()
    known = np.ones(labels.shape, np.bool_) if observed is None else observed
    split = np.full(len(table), "train") if table.split is None else table.split
    for is_test in (False, True):
        rows = np.flatnonzero((split == "test") == is_test)
        seen = observe_uniform(labels[rows], num_pos=num_pos, num_neg=num_neg, seed=seed)
        chosen = np.isin(split[rows], list(splits)) | (table.split is None)
        known[rows[chosen]] &= seen[chosen] != 0
    return replace(
        table,
        present=LabelSets.from_dense(labels.astype(np.bool_) & known),
        unknown=LabelSets.from_dense(~known),
    )


def keep_known(table: LabelTable, rate: float, *, seed: int = 0) -> LabelTable:
    """Return the table where every known entry stays known with chance ``rate``."""
    _require_chance(rate)
    table.require_hard(BY_CHANCE)
    random = np.random.default_rng(seed)
    return _changed(
        table, lambda _, labels, known: (labels, known & (random.random(known.shape) < rate))
    )


def flip_labels(
    table: LabelTable, *, present: float = 0.0, absent: float = 0.0, seed: int = 0
) -> LabelTable:
    """Return the table with noise: known labels change state with the chance of their state."""
    _require_chance(present)
    _require_chance(absent)
    table.require_hard(BY_CHANCE)
    random = np.random.default_rng(seed)

    def flip(_: Rows, labels: Values, known: Mask) -> tuple[Values, Mask]:
        there = labels > 0.5
        return there ^ (random.random(there.shape) < np.where(there, present, absent)), known

    return _changed(table, flip)


def _require_chance(value: float) -> None:
    if not 0 <= value <= 1:
        raise SettingsError(f"a rate must be in [0, 1], got {value}")


MANY, LARGE = 20, 0.5  # photos, and the share of them in one group that is worth a word


@dataclass(frozen=True, eq=False)
class GroupedTable:
    """A table whose near-duplicates, and chains of them, joined its groups.

    A group is named after its earliest photo. ``unread`` are sentences on photos that failed.
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
        return (
            f"{counted(len(self.table), 'photo')} in {counted(self.groups.count, 'group')} of up "
            f"to {int(self.groups.sizes.max()):,}; {self.copies:,} look like another photo"
        )


def group_near_copies(
    table: LabelTable,
    watch: Watch | None = None,
    *,
    features: NDArray[np.float32] | None = None,
    workers: int = 2,
) -> GroupedTable:
    """Return the table with copies in one group; a photo that is a copy of no other is alone.

    Photos that look alike, from afar or by their ``features`` (N, D), are laid on each other
    (:mod:`labelwise.pictures.copies`).
    """

    def look(row: int) -> NDArray[np.float32] | str:
        try:
            with table.images.read(row, LEAST_SIDE) as picture:
                return look_of(picture)
        except ImageError as error:
            return str(error)

    looks, unread = np.zeros((len(table), WIDTH), np.float32), []
    watch = watch or Silent()
    watch.start("looking at photos", len(table))
    with ThreadPoolExecutor(workers) as pool:
        for row, found in enumerate(pool.map(look, range(len(table)))):
            if isinstance(found, str):
                unread.append(found)
            else:
                looks[row] = found
            watch.advance(1)
    watch.finish()
    if len(unread) == len(table):
        reason = f"near copies are found by looking at photos, and none can be read ({unread[0]})"
        way_out = "name the groups of other pictures in a column 'group'"
        raise DataError(f"{table.name}: {reason}; {way_out}")
    alike = alike_by_looks(looks)
    if features is not None:
        alike = np.unique(np.concatenate([alike, alike_by_features(features)]), axis=0)
    pairs = copied_pairs(alike, reader(table.images))[0]
    return _grouped(table, copied_groups(len(table), pairs), unread)


def group_near_vectors(
    table: LabelTable, vectors: NDArray[np.floating[Any]], least: float, unread: Sequence[str] = ()
) -> GroupedTable:
    """Return the table with photos in one group whose vectors (N, D) have a cosine of ``least``."""
    if not 0 < least <= 1:
        raise ValueError(f"the least cosine must lie in (0, 1], got {least}")
    values = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit = values / np.where(lengths > 0, lengths, 1)
    return _grouped(table, compared_groups(unit, least), unread)


def _grouped(table: LabelTable, alike: NDArray[np.int64], unread: Sequence[str]) -> GroupedTable:
    earliest, names = alike, table.ids
    if table.group is not None:
        names, own = table.group, table.group.firsts()
        earliest = joined_rows(alike, np.stack([np.arange(len(table)), own], 1))
    sizes = np.bincount(alike, minlength=len(table))
    copies, divided = int(sizes[sizes > 1].sum()), 0
    if table.split is not None:
        divided = len(np.unique(earliest[table.split != table.split[earliest]]))
    named = replace(table, group=Names(names[row] for row in earliest.tolist()))
    return GroupedTable(named, Groups.of(earliest), copies, divided, tuple(unread))


MOST_DENSE = 3000  # labels up to which all pairs may be counted in one dense array
MOST_PAIRS = 20_000_000  # beyond this many pairs in all, only single labels are balanced
SIZE_WEIGHT = 10.0  # the sizes of the splits are asked for, so they count more than one label


def stratified_split(
    table: LabelTable,
    shares: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    by_content: bool = True,
) -> LabelTable:
    """Return the table with a new split; images of equal bytes stay together ``by_content``."""
    from scipy import sparse  # slow to import, and seldom needed

    wanted = dict(shares or {"train": 0.8, "val": 0.1, "test": 0.1})
    for name, share in wanted.items():
        if name not in SPLITS:
            raise SettingsError(f"a split must be train, val or test, got {name!r}")
        if not share > 0:
            raise SettingsError(f"the share of {name} must be above 0, got {share}")
    if abs(sum(wanted.values()) - 1) > 1e-9:
        raise SettingsError(f"the shares of a split must sum to 1, got {sum(wanted.values()):g}")
    # Rows that share a group, or equal content, are one unit. Codes count up by first use, so the
    # sorted unique ones index their own first rows.
    unit = np.arange(len(table))
    alike = [table.group] if table.group is not None else []
    alike += [content_codes(table)] if by_content else []
    if alike:
        pairs = np.concatenate([np.stack([unit, names.firsts()], 1) for names in alike])
        unit = np.unique(joined_rows(unit, pairs), return_inverse=True)[1]
    items = _items(table, min(wanted.values()))
    if unit.max(initial=-1) + 1 < len(unit):
        rows = np.arange(len(unit))
        items = sparse.csr_array((np.ones(len(unit), np.int64), (unit, rows))) @ items
        items.sort_indices()
    totals = np.asarray(items.sum(0), np.int64)
    # Units with the rarest item come first, larger ones before others, then by chance.
    rarest = np.minimum.reduceat(totals[items.indices], items.indptr[:-1])
    sizes = np.add.reduceat(items.data, items.indptr[:-1])
    order = np.lexsort((np.random.default_rng(seed).permutation(items.shape[0]), -sizes, rarest))
    if items.shape[0] < len(wanted):
        count = counted(items.shape[0], "group")
        raise DataError(
            f"{table.name}: {count} cannot be divided into {len(wanted)} parts, for photos of one "
            "group (and equal photos) stay together; ask for fewer parts with --shares"
        )
    chosen = _deal(items, totals, order, list(wanted.values()))
    photos = np.bincount(unit)
    _fill_empty_parts(chosen, photos, items, np.array(list(wanted.values())), [*wanted])
    split = np.array(list(wanted), "U5")[chosen[unit]]
    reached = np.bincount(chosen, photos, len(wanted)) / max(len(table), 1)
    made = replace(table, split=split)
    if (abs(reached - list(wanted.values())) > FAR_FROM_WANTED).any():
        parts = ", ".join(
            f"{name} {share:.0%}" for name, share in zip(wanted, reached, strict=True)
        )
        made = made.noted(f"the parts follow the groups, which stay together: {parts}")
    return made.noted(*without_training_photos(made))


def _fill_empty_parts(
    chosen: Rows, photos: Rows, items: "sparse.csr_array", shares: Values, names: list[str]
) -> None:
    """Give each empty part the unit that fits its share best; ``chosen`` is changed in place.

    Another part keeps at least one unit, and train a photo of each label where that is possible.
    """
    for part in np.flatnonzero(np.bincount(chosen, minlength=len(shares)) == 0).tolist():
        there = np.bincount(chosen, minlength=len(shares))
        able = np.flatnonzero(there[chosen] > 1)
        lost = np.zeros(len(able), np.bool_)
        if "train" in names:
            train = names.index("train")
            held = np.asarray(items[np.flatnonzero(chosen == train)].sum(0)).ravel()
            for place in np.flatnonzero(chosen[able] == train).tolist():
                unit = items[[int(able[place])]]
                lost[place] = bool((held[unit.indices] == unit.data).any())
        far = abs(photos[able] - shares[part] * photos.sum())
        chosen[able[np.lexsort((far, lost))[0]]] = part


def with_validation(
    table: LabelTable, *, share: float = 0.1, seed: int = 0, by_content: bool = False
) -> LabelTable:
    """Return the table, ``share`` of whose training images became validation if it had none.

    They are drawn in proportion to each label set, the same for every method and training seed;
    groups stay together, and with ``by_content`` equal images too.
    """
    if not 0 < share < 1:
        raise SettingsError(f"the share of validation must be between 0 and 1, got {share:g}")
    if table.split is not None and "val" in table.split:
        return table
    split = np.full(len(table), "train", "U5") if table.split is None else table.split.astype("U5")
    rows = np.flatnonzero(split == "train")
    if len(rows) < 2:
        raise DataError(f"{table.name}: validation is taken out of train, which has too few images")
    if table.group is not None or by_content:
        shares = {"train": 1 - share, "val": share}
        divided = stratified_split(table.subset(rows), shares, seed=seed, by_content=by_content)
        taken = rows[np.asarray(divided.split) == "val"]
    else:
        # Rows of equal label sets lie together and are dealt in turn.
        mixed = rows[np.random.default_rng(seed).permutation(len(rows))]
        keys = [table.present.row(row).tobytes() for row in mixed.tolist()]
        mixed = mixed[np.argsort(np.unique(keys, return_inverse=True)[1], kind="stable")]
        taken = mixed[np.diff(np.floor(np.arange(len(rows) + 1) * share)) > 0]
    split[taken] = "val"
    note = f"{len(taken):,} of {len(rows):,} training images became validation, there was none"
    return replace(table, split=split).noted(note)


def mlspl_split(
    n: int, *, val_share: float = 0.2, seed: int = 1200
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted train and val rows as single-positive training draws them, unstratified."""
    order = np.random.RandomState(seed).permutation(n)
    held = round(val_share * n)
    return np.sort(order[: n - held]), np.sort(order[n - held :])


def _items(table: LabelTable, smallest: float) -> "sparse.csr_array":
    """Return the rows x items 0/1 matrix: labels, frequent pairs, no label, nothing known, any."""
    from scipy import sparse

    present = table.present.plain()
    rows, width = len(table), len(table.space)
    pair_row, pair = _pairs(present, smallest)
    strata = np.stack([table.zero_label(), table.unlabelled(), np.ones(rows, np.bool_)])
    stratum, of_stratum = np.nonzero(strata)
    pairs = int(pair.max(initial=-1)) + 1
    row = np.concatenate([present.owners(), pair_row, of_stratum])
    item = np.concatenate([present.columns, width + pair, width + pairs + stratum])
    shape = rows, width + pairs + len(strata)
    return sparse.csr_array((np.ones(len(row), np.int64), (row, item)), shape=shape)


def _pairs(sets: LabelSets, smallest: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, number) of every pair of labels that the smallest split can expect once."""
    sizes = np.diff(sets.offsets)
    nothing = np.zeros(0, np.int64)
    if not len(sizes) or int((sizes * (sizes - 1) // 2).sum()) > MOST_PAIRS:
        return nothing, nothing
    owner, columns = sets.owners(), sets.columns.astype(np.int64)
    rows, codes = [nothing], [nothing]
    for step in range(1, int(sizes.max())):
        first = np.flatnonzero(owner[:-step] == owner[step:])
        rows.append(owner[first])
        codes.append(columns[first] * sets.width + columns[first + step])
    row, code = np.concatenate(rows), np.concatenate(codes)
    if sets.width > MOST_DENSE:
        code = np.unique(code, return_inverse=True)[1]
    kept = np.bincount(code) * smallest >= 1
    chosen = kept[code]
    return row[chosen], np.cumsum(kept)[code[chosen]] - 1


def _deal(
    items: "sparse.csr_array",
    totals: NDArray[np.int64],
    order: NDArray[np.int64],
    shares: list[float],
) -> NDArray[np.int64]:
    """Return the split of each unit; ``gain[s][i]`` is what one more of item i is worth to s."""
    weight = np.ones(len(totals))
    weight[-1] = SIZE_WEIGHT
    slopes = [(2 * weight / (share * np.maximum(totals, 1))).tolist() for share in shares]
    gains = [
        (weight * (2 * share * totals - 1) / (share * np.maximum(totals, 1))).tolist()
        for share in shares
    ]
    indices, counts, starts = items.indices.tolist(), items.data.tolist(), items.indptr.tolist()
    chosen = np.empty(len(order), np.int64)
    for unit in order.tolist():
        start, end = starts[unit], starts[unit + 1]
        members = indices[start:end]
        some = counts[start:end]
        if some[-1] == 1:  # the last item counts images: one image
            worth = [sum(map(gain.__getitem__, members)) for gain in gains]
        else:
            pairs = list(zip(members, some, strict=True))
            worth = [
                sum(c * (gain[i] - (c - 1) * slope[i] / 2) for i, c in pairs)
                for gain, slope in zip(gains, slopes, strict=True)
            ]
        best = worth.index(max(worth))
        gain, slope, chosen[unit] = gains[best], slopes[best], best
        for item, count in zip(members, some, strict=True):
            gain[item] -= count * slope[item]
    return chosen

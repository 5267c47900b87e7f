"""describe: what a table holds, as plain data: frequencies, sizes, pairs, zero-label, unknown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.checks import reject_divided_groups
from labelwise.data.table import LabelSets, LabelTable
from labelwise.errors import DataError
from labelwise.system.text import counted

PAIRS_SHOWN = 20
MOST_DENSE = 2048  # labels up to which a count is kept for every pair
MOST_PAIRS = 50_000_000  # beyond so many different ones none is counted, for the memory they take
SPELLINGS_SHOWN = 5


@dataclass(frozen=True)
class LabelCount:
    """How often one label is present, absent and unknown; ``share`` is present among known."""

    name: str
    present: int
    absent: int
    unknown: int
    share: float | None


@dataclass(frozen=True)
class PairCount:
    """How often two labels are present together; ``lift`` is against independence."""

    first: str
    second: str
    images: int
    lift: float


@dataclass(frozen=True)
class Description:
    """The numbers of a table. ``zero_label``: reviewed, none of them; ``unlabelled``: none known.

    ``labels_per_image[n]`` counts images with n present labels; ``unknown_share`` is over all
    entries; ``never_present`` names labels without a single image.
    """

    name: str
    images: int
    splits: dict[str, int]
    groups: int | None
    zero_label: int
    unlabelled: int
    partly_known: int
    unknown_share: float
    mean_labels: float
    labels_per_image: list[int]
    labels: list[LabelCount]
    pairs: list[PairCount]
    never_present: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def describe(table: LabelTable) -> Description:
    """Return the numbers of a table; its most frequent pairs come first.

    Where there may be more than 50 million pairs, none is counted.
    """
    present, unknown = table.present.counts(), table.unknown.counts()
    unknown_sizes = table.unknown.sizes()
    labels = [
        LabelCount(name, int(p), len(table) - int(p) - int(u), int(u), _share(p, len(table) - u))
        for name, p, u in zip(table.space.names, present, unknown, strict=True)
    ]
    unlabelled = int(table.unlabelled().sum())
    return Description(
        name=table.name,
        images=len(table),
        splits={}
        if table.split is None
        else {name: len(part) for name, part in table.splits().items()},
        groups=None if table.group is None else int(table.group.codes().max(initial=-1)) + 1,
        zero_label=int(table.zero_label().sum()),
        unlabelled=unlabelled,
        partly_known=int((unknown_sizes > 0).sum()) - unlabelled,
        unknown_share=float(unknown_sizes.sum() / max(1, len(table) * len(table.space))),
        mean_labels=float(present.sum() / max(1, len(table))),
        labels_per_image=np.bincount(table.present.sizes()).tolist(),
        labels=labels,
        pairs=_pairs(table),
        never_present=[label.name for label in labels if not label.present],
        notes=[*table.notes, *_soft_note(table), *_spelling_note(labels), *_group_note(table)],
    )


def _group_note(table: LabelTable) -> list[str]:
    """Return a note if a group has photos in two splits, which training refuses."""
    try:
        reject_divided_groups(table)
    except DataError as error:
        return [str(error)]
    return []


def count_mismatches(table: LabelTable, counts: Mapping[str, int], labels: int | None) -> list[str]:
    """Return a sentence for each number that differs from what is stated of the whole set."""
    found = {} if table.split is None else {k: len(part) for k, part in table.splits().items()}
    sentences = [
        f"{split} has {counted(found.get(split, 0), 'image')}, the whole set has {count:,}"
        for split, count in counts.items()
        if found.get(split, 0) != count
    ]
    if labels is not None and len(table.space) != labels:
        sentences.append(f"there are {len(table.space)} labels, the whole set has {labels}")
    return sentences


def _spelling_note(labels: list[LabelCount]) -> list[str]:
    """Return a note on labels that differ only in case, spaces, hyphens or underscores.

    Without a letter they are numbers, and 1 3 is not 13.
    """
    alike: dict[str, list[LabelCount]] = {}
    for label in labels:
        if not any(map(str.isalpha, label.name)):
            continue
        plain = label.name.casefold().translate(str.maketrans("", "", " -_"))
        alike.setdefault(plain, []).append(label)
    groups = [
        " and ".join(f"{one.name!r} ({counted(one.present, 'image')})" for one in group)
        for group in alike.values()
        if len(group) > 1
    ]
    if not groups:
        return []
    more = f", and {len(groups) - SPELLINGS_SHOWN:,} more" if len(groups) > SPELLINGS_SHOWN else ""
    return [f"perhaps one label, spelled in two ways: {'; '.join(groups[:SPELLINGS_SHOWN])}{more}"]


def _soft_note(table: LabelTable) -> list[str]:
    if table.soft is None:
        return []
    return [
        f"{len(table.soft.shares):,} labels are soft, a share between 0 and 1; they count as "
        "present above one half"
    ]


def _share(present: int, known: int) -> float | None:
    return float(present / known) if known else None


def _pairs(table: LabelTable) -> list[PairCount]:
    sizes = table.present.sizes()
    if min(int((sizes * (sizes - 1) // 2).sum()), len(table.space) ** 2 // 2) > MOST_PAIRS:
        return []
    sets = table.present.plain()
    codes, images = _counted(sets)
    most = np.lexsort((codes, -images))[:PAIRS_SHOWN]
    counts, names = sets.counts(), table.space.names
    found = []
    for number, together in zip(codes[most].tolist(), images[most].tolist(), strict=True):
        one, other = divmod(number, sets.width)
        lift = float(together * len(table) / (counts[one] * counts[other]))
        found.append(PairCount(names[one], names[other], together, lift))
    return found


def _counted(sets: LabelSets) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first * width + second of all labels that are together, and in how many rows."""
    if sets.width <= MOST_DENSE:
        counts = np.zeros(sets.width**2, np.int64)
        for _, codes in sets.pairs():
            counts += np.bincount(codes, minlength=len(counts))
        found = np.flatnonzero(counts)
        return found, counts[found]
    found = images = np.zeros(0, np.int64)
    for _, codes in sets.pairs():
        found, place = np.unique(np.concatenate([found, codes]), return_inverse=True)
        counts = np.bincount(place[len(images) :], minlength=len(found))
        counts[place[: len(images)]] += images
        images = counts
    return found, images

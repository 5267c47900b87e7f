"""COMPUTED: tables of the papers that no training is needed for.

``001-table1``    which losses recover a probability, from formulas (``recovery``)
``001-table2``    statistics of SPA's data sets, and ``002-tableCa`` of NUS-WIDE, from label tables:
                  present and absent entries are counted over train and test together
``001-counts``    SPA's "29 of the 32" and "25 of the 36" best results, from its printed Table 3
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labelwise.data import LabelTable, load
from labelwise.errors import DataError, SettingsError
from labelwise.papers.protocols import DATASETS, PUBLISHED
from labelwise.papers.recovery import recovery_rows
from labelwise.papers.sources import holds_files


@dataclass(frozen=True)
class Computed:
    """What came out: header, rows, and sentences below the table."""

    header: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComputedTable:
    """A table that is computed; ``sets`` are the data sets it reads, or one source instead."""

    title: str
    compute: Callable[[Path, str | None], Computed]
    sets: tuple[str, ...] = ()


# Of SPA's Table 2 and two-way's Table C (a): labels, training and test images, the last column.
SPA_SETS: dict[str, tuple[float, ...]] = {
    "coco": (80, 82_081, 40_137, 0.04),
    "voc": (20, 5_717, 5_823, 0.08),
    "wider": (14, 28_340, 29_117, 0.26),
    "vispr": (68, 14_167, 8_000, 0.08),
}
NUS_WIDE: dict[str, tuple[float, ...]] = {"nus-wide": (81, 125_448, 83_898, 2.4)}
PRESENT_TO_ABSENT, PER_IMAGE = "present / absent labels", "labels per image"


def statistics_of(table: LabelTable, last: str) -> tuple[float, ...]:
    """Return labels, training images, test images, and ``last`` over both together."""
    splits = table.splits()
    for split in ("train", "test"):
        if split not in splits:
            raise DataError(f"{table.name} has no {split} images, whose number the table shows")
    present = sum(float(splits[split].facts().mean_labels) * len(splits[split]) for split in splits)
    images = sum(map(len, splits.values()))
    known = sum(int((len(part) - part.unknown.counts()).sum()) for part in splits.values())
    figure = present / max(known - present, 1) if last == PRESENT_TO_ABSENT else present / images
    training = images - len(splits["test"])  # validation images are training images held out
    return (len(table.space), training, len(splits["test"]), figure)


def _statistics(
    printed: Mapping[str, tuple[float, ...]], last: str
) -> Callable[[Path, str | None], Computed]:
    """Return the function that counts these data sets, or one source beside the first of them."""

    def compute(root: Path, source: str | None) -> Computed:
        places = {
            name: f"{DATASETS[name].format}:{root / DATASETS[name].folder}" for name in printed
        }
        if source is not None:
            places = {next(iter(printed)): source}
        rows, notes = [], []
        for name, place in places.items():
            if source is None and not holds_files(root / DATASETS[name].folder):
                missing = f"put into {root / DATASETS[name].folder}: {DATASETS[name].how_to_get}"
                notes.append(f"{name}: not counted; {missing}.")
                continue
            found = statistics_of(load(place), last)
            rows.append([name, "paper", *_shown(printed[name])])
            rows.append(["", "ours", *_shown(found)])
            same = _shown(found) == _shown(printed[name])
            notes.append(f"{name}: {'as printed' if same else 'differs from what is printed'}.")
        if not rows:
            raise DataError(f"none of the data sets is below {root}: {notes[0]}")
        if source is not None:
            notes.append(f"Data: {source} in place of the paper's.")
        return Computed(["data", "", "labels", "train", "test", last], rows, tuple(notes))

    return compute


def _shown(figures: tuple[float, ...]) -> list[str]:
    *counts, last = figures
    digits = 1 if last >= 1 else 2
    return [*(f"{count:,.0f}" for count in counts), f"{last:.{digits}f}"]


HIGHER = ("mAP@class", "mAP@sample")
OURS = ("spa", "spa+lpr")
CLAIMED = {OURS: (29, 32), ("spa+lpr",): (25, 36)}


def best_counts(rows: tuple[str, ...]) -> tuple[int, int]:
    """Return in how many configurations of the printed Table 3 one of the rows is best, and of all.

    A configuration is a data set, a network and a column; ties with another row count.
    """
    best = total = 0
    for name, table in PUBLISHED.items():
        if not name.startswith("001-table3."):
            continue
        for at, column in enumerate(table.columns):
            figures = {row: cells[at] for row, cells in table.rows.items() if cells[at] is not None}
            if not figures:
                continue
            sign = 1 if column in HIGHER else -1
            top = max(sign * float(figure or 0) for figure in figures.values())
            total += 1
            best += any(row in figures and sign * float(figures[row] or 0) == top for row in rows)
    return best, total


def _counts(root: Path, source: str | None) -> Computed:
    if source is not None:
        raise SettingsError("001-counts counts the printed figures of Table 3 and takes no --data")
    rows, notes = [], []
    for ours, (said, of) in CLAIMED.items():
        best, counted = best_counts(ours)
        words = " or ".join(ours)
        rows.append([words, f"{said} of {of}", f"{best} of {counted}"])
        left = 32 - counted
        needed = said - best
        possible = 0 <= needed <= left
        notes.append(
            f"{words}: the {left} configurations of VISPR are not in the text at hand; "
            + (
                f"{said} are reached if {needed} of them are won, so it can be right."
                if possible
                else f"{said} would need {needed} of them, so it cannot be right."
            )
        )
    notes.append("Table 3 has 32 configurations; the paper says 36 in the same sentence.")
    notes.append("LPR takes ACE on VISPR from 5.8 to 3.0: said in words, its rows are not at hand.")
    return Computed(["best or tied", "said", "counted in the printed table"], rows, tuple(notes))


def _recovery(root: Path, source: str | None) -> Computed:
    if source is not None:
        raise SettingsError("001-table1 is computed from formulas and takes no --data")
    return Computed(*recovery_rows())


COMPUTED: dict[str, ComputedTable] = {
    "001-table1": ComputedTable(
        "SPA and LPR, Table 1: does the minimiser give eta back?", _recovery
    ),
    "001-table2": ComputedTable(
        "SPA and LPR, Table 2: statistics of the data sets",
        _statistics(SPA_SETS, PRESENT_TO_ABSENT),
        tuple(SPA_SETS),
    ),
    "001-counts": ComputedTable(
        "SPA and LPR, 5.2: how often SPA and SPA + LPR are best in the printed Table 3", _counts
    ),
    "002-tableCa": ComputedTable(
        "Two-way loss, Table C (a): NUS-WIDE without images that have no label",
        _statistics(NUS_WIDE, PER_IMAGE),
        tuple(NUS_WIDE),
    ),
}

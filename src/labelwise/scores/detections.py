"""Detections: scores of one label heard or seen in one clip, and what people say of them.

Results of BirdNET, Perch, MegaDetector and SpeciesNet are read by :mod:`labelwise.contrib.results`.
What the program did not report (below its least confidence) is unknown, neither absent nor present.
Clips of one recording are alike, so the recording is the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.errors import DataError
from labelwise.links import Sigmoid
from labelwise.numeric.special import logit
from labelwise.predictions import Predictions
from labelwise.scores.tables import Kind, places, some_places
from labelwise.system.text import counted

READER = "labelwise.contrib.results"
UNREPORTED = -30.0  # log-odds that stand where nothing was reported, and are never looked at


@dataclass(frozen=True, eq=False)
class Detections:
    """N scores, each of one label in one clip; ``correct`` (N,) is NaN where nobody checked.

    ``label`` and ``file`` are places in ``names`` and ``files``; ``start`` is in seconds. ``facts``
    are columns that were asked for. ``groups`` are those of the ``files``, such as their sites;
    where nobody told any, each file is one. Of photos a file is a photo, and ``notes`` say what is
    not among the detections.
    """

    source: str
    kind: Kind
    names: tuple[str, ...]
    files: tuple[str, ...]
    label: NDArray[np.int64]
    file: NDArray[np.int64]
    start: NDArray[np.float64]
    scores: NDArray[np.float64]
    correct: NDArray[np.float64]
    split: NDArray[np.str_] | None = None
    facts: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    groups: tuple[str, ...] | None = None
    of_photos: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    @property
    def log_odds(self) -> NDArray[np.float64]:
        return self.scores if self.kind == "logits" else np.asarray(logit(self.scores))

    @property
    def group(self) -> NDArray[np.int64]:
        if self.groups is None:
            return self.file
        codes = np.unique(np.array(self.groups), return_inverse=True)[1]
        return np.asarray(codes[self.file], np.int64)

    def grouped_by(self, told: Mapping[str, str], source: str) -> "Detections":
        if self.groups is not None:
            raise DataError(f"{self.source} and {source} both name groups; leave one of them out")
        return replace(self, groups=tuple(told.get(name) or name for name in self.files))

    def keys(self) -> NDArray[np.int64]:
        starts, start_of = np.unique(np.round(self.start, 3), return_inverse=True)
        clip = self.file * len(starts) + start_of
        return np.asarray(clip * len(self.names) + self.label, np.int64)

    def row(self, number: int) -> str:
        return (
            f"{self.source}: row {number + 1} ({self.names[self.label[number]]} at "
            f"{self.start[number]:g} s of {self.files[self.file[number]]})"
        )

    def checked_by(self, other: "Detections", source: str) -> "Detections":
        """Return these detections with what ``other`` says is correct, matched row by row."""
        if not np.isnan(self.correct).all():
            raise DataError(f"{self.source} has a column 'correct' of its own; leave out --labels")
        checked_rows = np.flatnonzero(~np.isnan(other.correct))
        if not len(checked_rows):
            raise DataError(f"{source}: no row has 'correct'; write 1 or 0 where you checked")
        labels = places(other.names, self.names)[other.label]
        files = places(other.files, self.files)[other.file]
        both = replace(
            self,
            label=np.append(self.label, labels),
            file=np.append(self.file, files),
            start=np.append(self.start, other.start),
        )
        keys, wanted = np.split(both.keys(), [len(self)])
        wanted = np.where((labels >= 0) & (files >= 0), wanted, -1)[checked_rows]
        order = np.argsort(keys, kind="stable")
        at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
        lost = checked_rows[keys[at] != wanted]
        if len(lost):
            raise DataError(f"{other.row(int(lost[0]))} is not a row of {self.source}")
        correct = self.correct.copy()
        correct[at] = other.correct[checked_rows]
        checked = replace(self, correct=correct)
        if other.groups is None:
            return checked
        return checked.grouped_by(dict(zip(other.files, other.groups, strict=True)), source)

    def checked_by_table(self, table: LabelTable) -> "Detections":
        """Return these detections of photos with what a label table says of their labels."""
        lacks = f"{table.name} has none of the"
        rows = some_places(self.files, table.ids, f"{lacks} photos of {self.source}")
        names = table.space.names
        columns = some_places(self.names, names, f"{lacks} labels of {self.source}")
        labels, observed = table.targets()
        row, at = rows[self.file], columns[self.label]
        known = (row >= 0) & (at >= 0)
        if observed is not None:
            known &= observed[row, at]
        correct = np.where(known, (labels[row, at] > 0.5) * 1.0, np.nan)
        checked = replace(self, correct=correct, notes=self.notes + unreported_notes(self, table))
        if table.group is None:
            return checked
        return checked.grouped_by(dict(zip(table.ids, table.group, strict=True)), table.name)

    def predictions(self) -> tuple[Predictions, NDArray[np.intp]]:
        rows = np.flatnonzero(~np.isnan(self.correct))
        if not len(rows):
            way = "add a column 'correct', 1 or 0 for some random ones, or give one by --labels"
            raise DataError(f"{self.source}: nobody has checked a detection; {way}")
        clip = self.keys()[rows] // len(self.names)
        _, first, clips = np.unique(clip, return_index=True, return_inverse=True)
        shape = (len(first), len(self.names))
        logits = np.full(shape, UNREPORTED)
        labels, observed = np.zeros(shape, np.uint8), np.zeros(shape, bool)
        logits[clips, self.label[rows]] = self.log_odds[rows]
        labels[clips, self.label[rows]] = self.correct[rows] == 1
        observed[clips, self.label[rows]] = True
        at = rows[first]
        predictions = Predictions(
            [f"{self.files[self.file[row]]}@{self.start[row]:g}" for row in at],
            logits,
            labels,
            observed,
            self.names,
            "",
            Sigmoid(),
            [(self.groups or self.files)[self.file[row]] for row in at],
        )
        return predictions, at

    def by_label(self, of: Any) -> NDArray[np.float64]:
        """Return what a function of logits (n, K) says of each detection, (N,), label by label."""
        # The different scores of a label fill its column from the top: no row for each clip.
        scores, score_of = np.unique(self.log_odds, return_inverse=True)
        pairs, pair_of = np.unique(self.label * len(scores) + score_of, return_inverse=True)
        label, score = np.divmod(pairs, len(scores))
        depth = np.arange(len(pairs)) - np.searchsorted(label, label)
        probs = np.empty(len(pairs))
        step = max(1, (1 << 22) // len(self.names))
        for start in range(0, int(depth.max()) + 1, step):
            rows = np.flatnonzero((depth >= start) & (depth < start + step))
            block = np.full((int(depth[rows].max()) - start + 1, len(self.names)), UNREPORTED)
            where = depth[rows] - start, label[rows]
            block[where] = scores[score[rows]]
            probs[rows] = of(block)[where]
        return np.asarray(probs[pair_of])


def is_detections(path: Path) -> bool:
    """Return whether a file, or the first table of a folder, has the columns of a known program."""
    return bool(import_module(READER).is_results(path))


def read_detections(path: Path, keep: Sequence[str] = ()) -> Detections:
    """Return the detections of a result table, or of a folder with one per recording."""
    detections: Detections = import_module(READER).read_results(path, keep)
    return detections


# A photo with a label that the program reported nothing of has no score, so it is in no
# calibration and under no threshold:
#   sensitivity over all photos = sensitivity over reported ones * reported / seen by people

NAMED = 5  # labels


def unreported_notes(found: Detections, table: LabelTable) -> tuple[str, ...]:
    """Return sentences on labelled photos that are not in the results, or not under their label."""
    at = places(table.ids, found.files)
    notes = []
    if (at < 0).any():
        first = table.ids[int((at < 0).argmax())]
        count = counted(int((at < 0).sum()), "photo")
        notes.append(f"Without a result in {found.source}: {count} of {table.name}, first {first}.")
    labels, observed = table.targets()
    known = np.ones(labels.shape, bool) if observed is None else np.asarray(observed)
    seen = (np.asarray(labels) > 0.5) & known & (at >= 0)[:, None]
    missed = []
    for column, name in enumerate(table.space.names):
        own = found.label == (found.names.index(name) if name in found.names else -1)
        reported = np.isin(at, found.file[own])
        lost = int((seen[:, column] & ~reported).sum())
        if lost:
            missed.append(f"{name} in {lost:,} of {int(seen[:, column].sum()):,}")
    if missed:
        more = f" and {len(missed) - NAMED:,} more labels" if len(missed) > NAMED else ""
        notes.append(
            "Photos in which people saw a label and the program reported none of it: "
            f"{', '.join(missed[:NAMED])}{more}. Sensitivity and recall are those of reported "
            "detections; over all photos they are lower by these shares."
        )
    return tuple(notes)

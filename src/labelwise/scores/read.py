"""Reading other people's scores: every number is checked, and what it is must be stated.

Logits are read as log-odds under the link that is named; probabilities are kept as log-odds in
float64, infinite where they are exactly 0 or 1. Nothing is inferred from the numbers' range.
Labels stand in the same file, in a second one of the same form, or in any data that labelwise
reads; rows are matched by id (or by being the same file), labels by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.special import logit
from labelwise.base.table_files import read_parquet
from labelwise.base.text import counted
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation import Subgroups
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.predictions import Predictions
from labelwise.scores.embeddings import Texts, read_cosines
from labelwise.scores.tables import (
    aligned_labels,
    check_labels,
    label_arrays,
    labels_beside,
    places,
    refuse_entries,
    some_places,
    unscored_note,
)
from labelwise.tables import LabelTable
from labelwise.tables.camera_results import read_times
from labelwise.tables.load import load_for_labels
from labelwise.tables.score_files import Kind, RawScores, read_raw
from labelwise.taxonomy import AttributeColumns, AttributeGroups
from labelwise.types import LabelSpace, nearest

LINKS: Mapping[str, Link | None] = {"sigmoid": Sigmoid(), "softmax": Softmax(), "none": None}
Logits = NDArray[np.floating[Any]]
FLOAT32_MAX = float(np.finfo(np.float32).max)

# Detections: scores of one label heard or seen in one clip, and what people say of them.
#
# Results of BirdNET, Perch, MegaDetector and SpeciesNet are read by `labelwise.contrib.results`.
# What the program did not report (below its least confidence) is unknown, neither absent nor
# present. Clips of one recording are alike, so the recording is the group.

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
        lacks = f"{table.name} has none of the photos of {self.source}"
        row = some_places(self.files, table.ids, lacks)[self.file]
        truth = aligned_labels(table, self.names)[0][row, self.label]
        correct = np.where((row >= 0) & ~np.isnan(truth), truth > 0.5, np.nan)
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

    def by_label(
        self, of: Callable[[NDArray[np.float64]], NDArray[np.floating[Any]]]
    ) -> NDArray[np.float64]:
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
        lost = int((seen[:, column] & ~np.isin(at, found.file[own])).sum())
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


@dataclass(frozen=True, eq=False)
class UnlabelledScores:
    """Scores as logits (N, K) under a link, whatever the file held."""

    source: str
    ids: tuple[str, ...]
    names: tuple[str, ...]
    logits: Logits
    link: Link | None
    kind: Kind
    failed: int = 0


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores with labels, as predictions; ``unlabelled`` are the logits (M, K) of the other rows.

    ``notes`` say what was left out, ``facts`` are columns that were asked for, such as the site of
    each row. Of a result table, ``detections`` are all of its rows.
    """

    source: str
    predictions: Predictions
    split: NDArray[np.str_] | None = None
    unlabelled: Logits | None = None
    notes: tuple[str, ...] = ()
    kind: Kind = "logits"
    unlabelled_ids: tuple[str, ...] = ()
    facts: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    detections: Detections | None = None

    def settled(self, groups: AttributeGroups) -> "tuple[ScoreTable, AttributeColumns]":
        """Return the table with labels completed by what excludes what, and the columns of that."""
        columns = groups.within(LabelSpace(self.predictions.names))
        done, settled = self.predictions.settled(columns)
        broken = np.flatnonzero(settled.conflicts)
        note = f"By {groups.source} {settled.learned:,} more labels are known."
        if len(broken):
            note = (
                f"{len(broken):,} rows break a rule of {groups.source}, first "
                f"{done.ids[int(broken[0])]!r}; their labels of that group are unknown."
            )
        return replace(self, predictions=done, notes=(*self.notes, note)), columns

    def subgroups(self, column: str, rows: Predictions) -> Subgroups:
        return Subgroups.of(column, self.facts[column][places(rows.ids, self.predictions.ids)])

    def photos_per_day(self) -> float:
        times = read_times(self.facts["time"].tolist(), self.source, "time")
        return len(times) / len(np.unique(times.astype("datetime64[D]")))

    def part(self, name: str) -> Predictions:
        if self.split is None:
            raise DataError(f"{self.source}: there is no column or array 'split', got {name!r}")
        rows = np.flatnonzero(self.split == name)
        if len(rows) == 0:
            there = sorted(set(self.split.tolist()))
            raise DataError(f"{self.source}: no row has split {name!r}{nearest(name, there)}")
        return replace(self.predictions.take(rows), split=name)


def read_scores(
    path: Path,
    kind: Kind | None,
    *,
    link: str | None = None,
    labels: str | Path | None = None,
    texts: Texts | None = None,
    keep: Sequence[str] = (),
) -> ScoreTable:
    """Return the scores of a file, with its own labels or those of a second source.

    ``kind`` must be given except for files written by labelwise, which say it themselves. With
    ``texts`` the file holds embeddings of photos, and the scores are what these make of them.
    ``keep`` names further columns of the file, which become the ``facts`` of the rows.
    """
    if texts is not None and (kind is not None or link is not None):
        raise SettingsError("--texts makes the scores and knows their link; leave out --scores")
    if texts is None and is_detections(path):
        return _checked_clips(path, kind, link, labels, keep)
    if (predictions := _own_predictions(path, kind, link, labels)) is not None:
        if keep:
            way = "use a table with columns id, score:NAME, label:NAME and the one asked for"
            raise DataError(f"{path} was written by labelwise: no column {keep[0]!r}; {way}")
        return ScoreTable(str(path), predictions, np.full(len(predictions), predictions.split))
    if texts is None:
        raw = read_raw(path, keep)
        scores = unlabelled_scores(raw, kind, link)
    else:
        raw = read_cosines(path, texts)
        scores = unlabelled_scores(raw, "logits", "sigmoid" if texts.gives_logits else "none")
    group, divided = raw.group, raw.split
    if labels is not None:
        if raw.labels is not None:
            raise DataError(f"{raw.source} has labels of its own; leave out --labels")
        truth, matched, group, divided = labels_beside(raw, labels)
    elif raw.labels is not None:
        truth, matched = raw.labels, np.ones(len(raw.ids), dtype=bool)
        check_labels(raw, truth)
    else:
        way = "add 'label:NAME' columns (an array 'labels'), or give a second file with --labels"
        raise DataError(f"{path}: there are no labels; {way}")
    notes = list(raw.notes)
    if raw.failed:
        notes.append(f"{unscored_note(raw.failed, str(path))}.")
    if not matched.all():
        notes.append(
            f"{labels} has labels of {int(matched.sum()):,} of the {len(matched):,} rows; "
            "the others are left out."
        )
    predictions = Predictions(
        list(compress(raw.ids, matched)),
        scores.logits[matched],
        *label_arrays(truth[matched]),
        raw.names,
        "",
        scores.link,
        None if group is None else list(compress(group, matched)),
    )
    return ScoreTable(
        str(path),
        predictions,
        None if divided is None else np.array(divided)[matched],
        None if matched.all() else scores.logits[~matched],
        tuple(notes),
        scores.kind,
        tuple(compress(raw.ids, ~matched)),
        {name: np.array(values)[matched] for name, values in raw.facts.items()},
    )


def with_checks(found: Detections, labels: str | Path) -> Detections:
    """Return detections with what a second table, or any labelled data, says of them."""
    if is_detections(Path(labels)):
        return found.checked_by(read_detections(Path(labels)), str(labels))
    return found.checked_by_table(load_for_labels(labels, found.names))


def _checked_clips(
    path: Path,
    kind: Kind | None,
    link: str | None,
    labels: str | Path | None,
    keep: Sequence[str],
) -> ScoreTable:
    detections = read_detections(path, keep)
    if kind not in (None, detections.kind) or link is not None:
        what = f"a table of results, which holds {detections.kind}"
        raise SettingsError(f"{path} is {what}; leave out --scores and --link")
    if labels is not None:
        detections = with_checks(detections, labels)
    predictions, rows = detections.predictions()
    checked = int((~np.isnan(detections.correct)).sum())
    where = counted(len(predictions), "photo" if detections.of_photos else "clip")
    if not detections.of_photos or detections.groups is not None:
        of = "recording" if detections.groups is None else "group"
        where += f" of {counted(len(set(predictions.group or ())), of)}"
    note = (
        f"A person checked {checked:,} of {len(detections):,} detections, in {where}; the others "
        "are unknown. Figures hold for detections like the checked ones: draw them at random."
    )
    split = None if detections.split is None else detections.split[rows]
    facts = {name: values[rows] for name, values in detections.facts.items()}
    return ScoreTable(
        str(path),
        predictions,
        split,
        None,
        (note, *detections.notes),
        detections.kind,
        (),
        facts,
        detections=detections,
    )


def read_unlabelled(path: Path, kind: Kind | None, *, link: str | None = None) -> UnlabelledScores:
    """Return the scores of a file; labels in it are left alone."""
    own = _own_predictions(path, kind, link)
    if own is None:
        return unlabelled_scores(read_raw(path), kind, link)
    return UnlabelledScores(str(path), tuple(own.ids), own.names, own.logits, own.link, "logits")


def _own_predictions(
    path: Path, kind: Kind | None, link: str | None, labels: str | Path | None = None
) -> Predictions | None:
    """Return what Predictions.save wrote to a file, None for another file."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return None
    try:
        schema = pq.read_schema(path)
    except Exception:
        schema = read_parquet(path).schema  # which says what is wrong
    if b"labelwise" not in (schema.metadata or {}) or not {"id", "logits"} <= set(schema.names):
        return None
    if kind == "probs" or link is not None or labels is not None:
        what = f"{path} was written by labelwise: it holds logits with their link and labels"
        raise SettingsError(f"{what}; leave out --scores probs, --link and --labels")
    return Predictions.load(path)


def unlabelled_scores(raw: RawScores, kind: Kind | None, link: str | None) -> UnlabelledScores:
    """Return the scores of a table as logits, once it is said what they are."""
    if raw.scores is None:
        raise DataError(f"{raw.source}: there are no scores; name columns like 'score:dog'")
    if raw.kind is not None and kind not in (None, raw.kind):
        what = f"was written by `labelwise predict`: it holds {raw.kind}"
        raise SettingsError(f"{raw.source} {what}; leave out --scores {kind}")
    kind = kind or raw.kind
    if kind is None:
        raise SettingsError(f"{raw.source}: name its scores: --scores logits or --scores probs")
    if kind == "probs" and link is not None:
        raise SettingsError("--link belongs to logits; probabilities need none")
    name = link or "sigmoid"
    if name not in LINKS:
        raise SettingsError(f"unknown link {name!r}{nearest(name, LINKS)}")
    scores = raw.scores
    missing = "a score must be a number", "fill it in, or drop the row"
    refuse_entries(raw, np.isnan(scores), scores, *missing)
    if kind == "logits":
        too_large = "a logit must be finite in 32 bits", "cut it to ±80 or so"
        refuse_entries(raw, ~(np.abs(scores) <= FLOAT32_MAX), scores, *too_large)
        logits: Logits = scores.astype(np.float32)
    else:
        outside = "a probability lies in [0, 1]", "if these are logits, say --scores logits"
        refuse_entries(raw, (scores < 0) | (scores > 1), scores, *outside)
        logits = logit(scores)
    return UnlabelledScores(raw.source, raw.ids, raw.names, logits, LINKS[name], kind, raw.failed)

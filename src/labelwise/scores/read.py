"""Reading other people's scores: every number is checked, and what it is must be stated.

Logits are read as log-odds under the link that is named; probabilities are kept as log-odds in
float64, infinite where they are exactly 0 or 1. Nothing is inferred from the numbers' range.
Labels stand in the same file, in a second one of the same form, or in any data that labelwise
reads; rows are matched by id (or by being the same file), labels by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.data.camera_results import read_times
from labelwise.data.load import load_for_labels
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation import Subgroups
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.numeric.special import logit
from labelwise.predictions import Predictions
from labelwise.scores.detections import Detections, is_detections, read_detections
from labelwise.scores.embeddings import Texts, read_cosines
from labelwise.scores.tables import (
    Kind,
    RawScores,
    check_labels,
    label_arrays,
    labels_beside,
    places,
    read_raw,
    refuse_entries,
    unscored_note,
)
from labelwise.system.table_files import read_parquet
from labelwise.system.text import counted
from labelwise.taxonomy import AttributeColumns, AttributeGroups
from labelwise.types import LabelSpace, nearest

LINKS: Mapping[str, Link | None] = {"sigmoid": Sigmoid(), "softmax": Softmax(), "none": None}
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class UnlabelledScores:
    """Scores as logits (N, K) under a link, whatever the file held."""

    source: str
    ids: tuple[str, ...]
    names: tuple[str, ...]
    logits: NDArray[Any]
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
    unlabelled: NDArray[Any] | None = None
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
    notes = []
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
        logits: NDArray[Any] = scores.astype(np.float32)
    else:
        outside = "a probability lies in [0, 1]", "if these are logits, say --scores logits"
        refuse_entries(raw, (scores < 0) | (scores > 1), scores, *outside)
        logits = logit(scores)
    return UnlabelledScores(raw.source, raw.ids, raw.names, logits, LINKS[name], kind, raw.failed)

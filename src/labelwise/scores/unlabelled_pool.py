"""Photos to ask about: pools of unlabelled ones, and labels that may be mistakes.

A pool is what a model says of the pictures in and below a folder, of a table, whose known labels
are known, or of predict's output, which has no embeddings (nor has an exported model).
"""

import json
import os
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.asking import Pool
from labelwise.answers.suspects import (
    Reviewed,
    Suspects,
    marked_checks,
    read_review,
)
from labelwise.base.files import write_text
from labelwise.base.progress import Watch
from labelwise.base.storage import is_uri
from labelwise.base.text import counted
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.eyes import Eye, features
from labelwise.eyes.fit import fit
from labelwise.links import Sigmoid
from labelwise.models import load_model
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.scoring import Embedder, Scored, Scorer, score
from labelwise.pictures import FeatureRows, FileImages
from labelwise.pictures.decode import find_images
from labelwise.predictions import Predictions
from labelwise.scores.embeddings import holds_vectors, read_embeddings
from labelwise.scores.read import read_scores, read_unlabelled
from labelwise.scores.run import read_run, unread_notes, watched
from labelwise.scores.tables import aligned_labels, places, unscored_note
from labelwise.tables import LabelTable, open_table
from labelwise.tables.camera_results import read_camera_results, with_classes
from labelwise.tables.derived import GroupedTable, group_near_copies, group_near_vectors
from labelwise.tables.load import load_for_labels
from labelwise.tables.rows import read_json
from labelwise.tables.score_files import Kind, read_raw
from labelwise.tables.tabular import TABULAR, read_csv_rows
from labelwise.tables.words import PATH_HEADERS
from labelwise.types import matching_columns, nearest

MOST_ASKED = 5  # labels of a photo
LOOKED_AT = 5000  # photos that the network sees to find copies; of more, a look from afar has to do
FEATURES = "runs/features"  # where training finds them again


@dataclass(frozen=True, eq=False)
class PhotoPool:
    """A pool, and its photos as a table in the labels of the model, ``named`` by a table or not."""

    pool: Pool
    table: LabelTable
    notes: tuple[str, ...] = ()
    named: bool = False

    def names(self, rows: NDArray[np.intp], folder: Path) -> list[str]:
        """Return what photos are called in a file of ``folder``: as in their table, or by path."""
        images = self.table.images
        if self.named or not isinstance(images, FileImages):
            return [self.table.ids[row] for row in rows.tolist()]
        return [os.path.relpath(images.path(row), folder) for row in rows.tolist()]

    def about_labels(
        self, rows: NDArray[np.intp], columns: NDArray[np.intp], folder: Path
    ) -> list[Reviewed]:
        labels, probs = self.table.space.names, self.pool.probs[rows, columns]
        asked = zip(self.names(rows, folder), columns.tolist(), probs, strict=True)
        return [Reviewed(name, labels[k], "unknown", float(p)) for name, k, p in asked]

    def about_photos(self, rows: NDArray[np.intp], folder: Path) -> list[Reviewed]:
        probs = np.where(self.pool.open[rows], self.pool.probs[rows], -1.0)
        first = np.argsort(-probs, axis=1, kind="stable")[:, :MOST_ASKED]
        return [
            Reviewed(name, self.table.space.names[k], "unknown", float(own[k]))
            for name, own, columns in zip(self.names(rows, folder), probs, first, strict=True)
            for k in columns.tolist()
            if own[k] >= 0
        ]


def read_pool(
    source: str,
    model: Path,
    *,
    device: str = "cpu",
    batch_size: int = 64,
    watch: Watch | None = None,
) -> PhotoPool:
    """Return what a model says of the photos of a folder, of data, or of predict's output."""
    path = Path(source)
    scorer = load_model(model, device)
    if path.suffix.lower() != ".npz" and open_table(source).holds == "scores":
        return _answered(path, scorer, str(model))
    names = scorer.space.names
    if path.is_dir() or (paths := _paths_alone(path, names)) is not None:
        paths_found, notes = find_images(path) if path.is_dir() else (paths, ())
        if not paths_found:
            raise DataError(f"there are no images in the folder {path}")
        images = FileImages(path if path.is_dir() else path.parent, paths_found)
        table = replace(_unlabelled(names, images, source), notes=notes)
    else:
        table = _of_train(load_for_labels(source, names, check_files=True))
    made = score_pool(table, scorer, batch_size=batch_size, watch=watch)
    return replace(made, named=not path.is_dir())


def _of_train(table: LabelTable) -> LabelTable:
    if table.split is None:
        return table
    if not (table.split == "train").any():
        why = "labels that a model asks for measure nothing; leave the split out to ask about all"
        raise DataError(f"{table.name} has no rows in the split train, and {why}")
    rest = int((table.split != "train").sum())
    note = f"{rest:,} photos of val and test are not asked about: a chosen sample measures nothing."
    notes = (*table.notes, note) if rest else table.notes
    return replace(table.subset(table.split == "train"), notes=notes)


def score_pool(
    table: LabelTable, scorer: Scorer, *, batch_size: int = 64, watch: Watch | None = None
) -> PhotoPool:
    """Return what a model says of the photos of a table, which is put in the model's labels."""
    table.require_hard("questions to people are answered by yes, no and unknown")
    truth, more = aligned_labels(table, scorer.space.names)
    notes = [*table.notes, *more]
    batches = score(scorer, table.images, batch_size=batch_size, embed=isinstance(scorer, Embedder))
    scored = Scored.join(list(watched(batches, table, watch)))
    notes += unread_notes(table, scored.failures, len(scored))
    known = truth[scored.rows]
    pool = Pool.of(scored.probs, scored.sets, known, scored.embeddings)
    photos = LabelTable.from_arrays(
        scorer.space,
        table.images.subset(scored.rows),
        known == 1,
        ~np.isnan(known),
        split=None if table.split is None else table.split[scored.rows],
        name=table.name,
    )
    return PhotoPool(pool, photos, tuple(notes), named=True)


def _paths_alone(path: Path, names: tuple[str, ...]) -> list[str] | None:
    """Return the paths of a table that has no labels at all, None for anything else."""
    opener = TABULAR.get(path.suffix.lower())
    if opener is None or not path.is_file():
        return None
    tabular = opener(path)
    header = next((name for name in PATH_HEADERS if name in tabular.header), None)
    if header is None or {"labels", "image", *names, *tabular.meanings} & set(tabular.header):
        return None
    # All columns are read: a row that is empty in all that are read is left out.
    every = list(dict.fromkeys(tabular.header))
    columns = (batch.column(header) for batch in tabular.batches(every))
    listed = [name for column in columns for name in column.to_pylist()]
    for number, name in enumerate(listed, start=1):
        if not isinstance(name, str) or not name:
            raise DataError(f"{path}: row {number} must name an image, got {name!r:.60}")
    return listed


def _answered(path: Path, scorer: Scorer, model: str) -> PhotoPool:
    raw, names = read_raw(path), scorer.space.names
    if raw.scores is None:
        raise DataError(f"{path} holds no scores; write it again with `labelwise predict`")
    probs = raw.scores[:, matching_columns(names, raw.names, of=model, in_=str(path))]
    if not ((probs >= 0) & (probs <= 1)).all():
        raise DataError(f"{path}: a probability lies in [0, 1]")
    pool = Pool.of(probs, scorer.rule(probs.astype(np.float32)))
    notes = (f"{unscored_note(raw.failed, str(path))}.",) if raw.failed else ()
    return PhotoPool(pool, _unlabelled(names, FileImages(Path(), raw.ids), str(path)), notes)


def _unlabelled(names: tuple[str, ...], images: FileImages, source: str) -> LabelTable:
    nothing = np.zeros((len(images), len(names)), bool)
    return LabelTable.from_arrays(names, images, nothing, nothing, name=source)


def write_classes(results: Path, predictions: Path, crops: Path, out: Path) -> int:
    """Write MegaDetector's results with a model's answers about their crops; return how many."""
    scores = read_unlabelled(predictions, None)
    if scores.link is None:
        raise DataError(f"{predictions}: scores that only rank are not probabilities")
    named = {
        Path(name).name: dict(zip(scores.names, row, strict=True))
        for name, row in zip(scores.ids, scores.link(scores.logits).tolist(), strict=True)
    }
    program = read_camera_results(results).program
    if program != "MegaDetector":
        raise DataError(f"{results} is of {program}; classes go into MegaDetector's results")
    rows = read_csv_rows(crops, ("path", "image", "detection"))
    content, count = with_classes(read_json(results), rows, named)
    if not count:
        raise DataError(f"{predictions} names no crop of {crops}")
    write_text(out, json.dumps(content, ensure_ascii=False, indent=1))
    return count


def grouped_copies(
    table: LabelTable,
    model: Path | None,
    file: Path | None,
    cosine: float | None,
    watch: Watch | None = None,
) -> GroupedTable:
    """Return a table with its near copies as groups: by look, or by vectors of a given cosine."""
    if model is not None and file is not None:
        raise SettingsError("give --model or --embeddings, not both")
    held = isinstance(table.images, FeatureRows)
    named = model is not None or file is not None
    if held and named:
        what = f"{table.name} holds features, which are compared themselves"
        raise SettingsError(f"{what}; leave --model and --embeddings out")
    if not held and not named and cosine is not None:
        raise SettingsError("--cosine is for --model and --embeddings; leave it out")
    if not held and not named:
        return group_near_copies(table, watch, features=_features(table, watch))
    if cosine is None or not 0 < cosine <= 1:
        rule = "from which cosine on two photos are near copies, between 0 and 1, as 0.9"
        raise SettingsError(f"say with --cosine {rule}; it depends on the model (got {cosine})")
    if isinstance(table.images, FeatureRows):  # maps of features are pooled
        vectors = np.asarray(table.images.features)
        vectors = vectors.mean(axis=(2, 3)) if vectors.ndim == 4 else vectors
        return group_near_vectors(table, vectors, cosine)
    if model is not None:
        vectors, unread = _vectors_by_model(table, model, watch)
        return group_near_vectors(table, vectors, cosine, unread)
    embeddings = read_embeddings(file or Path())
    rows = places(table.ids, embeddings.ids)
    if (rows < 0).any():
        name = table.ids[int(rows.argmin())]
        photo = f"{name!r} of {table.name}{nearest(name, embeddings.ids)}"
        raise DataError(f"{file}: there is no vector of the photo {photo}")
    return group_near_vectors(table, embeddings.vectors[rows], cosine)


def copies_as_groups(table: LabelTable, watch: Watch) -> tuple[LabelTable, str]:
    """Return a table whose copies are groups, and what to say of them; nothing without photos."""
    photos = counted(len(table), "photo")
    if isinstance(table.images, FeatureRows) or table.images.blocks is not None:
        return table, ""
    if len(table) > LOOKED_AT:
        return table, f"copies were not looked for among {photos}; `labelwise data group` does"
    try:
        grouped = grouped_copies(table, None, None, None, watch)
    except LabelwiseError:  # photos that are not there, which training will name
        return table, ""
    if not grouped.copies:
        return table, ""
    return grouped.table, (
        f"{grouped.copies:,} of {photos} are copies of each other: they are written as groups, "
        "which stay in one split"
    )


def _features(table: LabelTable, watch: Watch | None) -> NDArray[np.float32] | None:
    """Return features of photos by the built-in network; None of too many, or unreadable ones."""
    if len(table) > LOOKED_AT:
        return None
    try:
        seen = features(Eye.open(), table.images, FEATURES, outputs=("means",), watch=watch)
    except LabelwiseError:  # the look names each one
        return None
    return np.asarray(seen[:], np.float32)


def _vectors_by_model(
    table: LabelTable, model: Path, watch: Watch | None
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    scorer = load_model(model)
    if not isinstance(scorer, Embedder):
        raise SettingsError(f"{model} gives no embeddings; name the run that it was exported from")
    scored = Scored.join(list(watched(score(scorer, table.images, embed=True), table, watch)))
    unread = tuple(failure.reason for failure in scored.failures)
    if scored.embeddings is None or not len(scored):
        raise DataError(f"{table.name}: no photo can be read ({unread[0]})")
    vectors = np.zeros((len(table), scored.embeddings.shape[1]), np.float32)
    vectors[scored.rows] = scored.embeddings
    return vectors, unread


# Labels that may be mistakes: held-out scores to judge them by, questions, and their answers.


def reviewable(
    place: str,
    split: str | None,
    *,
    seed: int = 0,
    scores: Kind | None = None,
    link: str | None = None,
    labels: str | None = None,
) -> Predictions:
    """Return held-out scores with labels: of a run, of a table, or by fits on frozen features."""
    source = fetched_run(place, "results") if is_uri(place) else Path(place)
    if source.is_dir():
        unseen = RunFolder(source).out_of_fold() if split in (None, "train") else None
        if unseen is not None:
            return unseen
        if split == "train":
            way = "train it with --folds 5, or give the frozen features of train as an .npz file"
            raise SettingsError(f"a run's model believes the train labels that it saw; {way}")
        return read_run(source, split or "val").predictions
    if holds_vectors(source):
        return _from_features(source, split, seed)
    table = read_scores(source, scores, link=link, labels=labels)
    return table.predictions if split is None else table.part(split)


def _from_features(source: Path, split: str | None, seed: int) -> Predictions:
    table = read_embeddings(source)
    if table.labels is None or table.names is None:
        raise DataError(f"{source}: there is no array 'labels' to look for mistakes in")
    rows = np.arange(len(table.ids))
    if split is not None:
        rows = np.flatnonzero(table.split == split) if table.split is not None else rows[:0]
        if not len(rows):
            raise DataError(f"{source}: no row has split {split!r}")
    known, present = ~np.isnan(table.labels[rows]), (table.labels[rows] == 1).astype(np.uint8)
    seen = None if known.all() else known
    logits = fit(table.vectors[rows], present, seen, seed=seed).out_of_fold
    ids = [table.ids[row] for row in rows]
    return Predictions(ids, logits, present, seen, table.names, split or "", Sigmoid())


def suspect_questions(
    suspects: Suspects, predictions: Predictions, checks: int, seed: int
) -> list[Reviewed]:
    """Return a question about each suspect, some of them marked to be checked."""
    marked = marked_checks(len(suspects), per_stretch=checks, seed=seed)
    given: Literal["present", "absent"] = "absent" if suspects.kind == "missing" else "present"
    ids, names = predictions.ids, predictions.names
    entries = zip(suspects.rows, suspects.columns, suspects.probs, marked, strict=True)
    return [
        Reviewed(str(ids[row]), names[column], given, float(prob), bool(check))
        for row, column, prob, check in entries
    ]


def answered_questions(questions: list[Reviewed], path: Path) -> list[Reviewed]:
    """Return the questions with the answers of a review of the same list."""
    reviewed = read_review(path)
    facts = attrgetter("photo", "label", "given", "check")
    if list(map(facts, reviewed)) != list(map(facts, questions)):
        same = "scores, --find, --top, --checks, --context, --folds and --seed"
        raise DataError(f"{path} reviews another list than this one; give the same {same} as then")
    return [replace(new, answer=old.answer) for old, new in zip(reviewed, questions, strict=True)]

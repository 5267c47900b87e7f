"""Pools of photos to choose from: what a model says of pictures, tables, or predict's output.

a folder        every picture in and below it, nothing known of their labels
a table, data   known labels are known; a table of paths alone knows nothing
predict's file  .parquet, .csv or .jsonl with probabilities; it has no embeddings

Any model judges them, an exported one too, which has no embeddings either.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.asking import Pool
from labelwise.data import LabelTable
from labelwise.data.columns import PATH_HEADERS
from labelwise.data.load import load_for_labels
from labelwise.data.tabular import TABULAR
from labelwise.errors import DataError, SettingsError
from labelwise.models import load_model
from labelwise.models.scoring import Embedder, Scored, Scorer, score
from labelwise.pictures import FeatureRows, FileImages, ImageSource
from labelwise.pictures.decode import find_images
from labelwise.scores.embeddings import read_embeddings
from labelwise.scores.tables import ANSWER_COLUMNS, aligned_labels, read_raw, unscored_note
from labelwise.system.progress import Silent, Watch
from labelwise.system.text import counted
from labelwise.types import matching_columns, nearest


@dataclass(frozen=True, eq=False)
class PhotoPool:
    """A pool, and its photos as a table in the labels of the model; ``notes`` say what is not.

    ``named`` says whether the photos were named by a table, and not by where their files are.
    """

    pool: Pool
    table: LabelTable
    notes: tuple[str, ...] = ()
    named: bool = False


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
    if path.is_file() and holds_answers(path):
        return _answered(path, scorer, str(model))
    names = scorer.space.names
    if path.is_dir() or (paths := _paths_alone(path, names)) is not None:
        found, notes = find_images(path) if path.is_dir() else (paths, ())
        if not found:
            raise DataError(f"there are no images in the folder {path}")
        images = FileImages(path if path.is_dir() else path.parent, found)
        nothing = np.zeros((len(images), len(names)), bool)
        table = LabelTable.from_arrays(names, images, nothing, nothing, name=source)
        table = replace(table, notes=notes)
    else:
        table = _of_train(load_for_labels(source, names, check_files=True))
    made = score_pool(table, scorer, batch_size=batch_size, watch=watch)
    return replace(made, named=not path.is_dir())


def _of_train(table: LabelTable) -> LabelTable:
    """Return the training rows of a table that has splits, all rows of another."""
    if table.split is None:
        return table
    if not (table.split == "train").any():
        raise DataError(
            f"{table.name} has no rows in the split train, and labels that a model asks for are no "
            "sample to measure it on; leave the split out to choose among all"
        )
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
    scored = _scored(scorer, table.images, batch_size, watch or Silent())
    if scored.failures:
        notes.append(
            f"{len(scored.failures):,} of {counted(len(table), 'image')} could not be read, left "
            f"out; first {scored.failures[0].reason}"
        )
    if not len(scored):
        raise DataError(f"{table.name}: no image could be read; {scored.failures[0].reason}")
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


def _scored(scorer: Scorer, images: ImageSource, batch_size: int, watch: Watch) -> Scored:
    watch.start("scoring", len(images))
    embed, parts = isinstance(scorer, Embedder), []
    for part in score(scorer, images, batch_size=batch_size, embed=embed):
        parts.append(part)
        watch.advance(len(part) + len(part.failures))
    watch.finish()
    return Scored.join(parts)


def _paths_alone(path: Path, names: tuple[str, ...]) -> list[str] | None:
    """Return the paths of a table that has no labels at all, None for anything else."""
    opener = TABULAR.get(path.suffix.lower())
    if opener is None or not path.is_file():
        return None
    tabular = opener(path)
    header = next((one for one in PATH_HEADERS if one in tabular.header), None)
    if header is None or {"labels", "image", *names, *tabular.meanings} & set(tabular.header):
        return None
    found: list[str] = []
    for batch in tabular.batches([header]):
        found += batch.column(header).to_pylist()
    for number, one in enumerate(found, start=1):
        if not isinstance(one, str) or not one:
            raise DataError(f"{path}: row {number} must name an image, got {one!r:.60}")
    return found


def _answered(path: Path, scorer: Scorer, model: str) -> PhotoPool:
    raw, names = read_raw(path), scorer.space.names
    if raw.scores is None:
        raise DataError(f"{path} holds no scores; write it again with `labelwise predict`")
    probs = raw.scores[:, matching_columns(names, raw.names, of=model, in_=str(path))]
    if not ((probs >= 0) & (probs <= 1)).all():
        raise DataError(f"{path}: a probability lies in [0, 1]")
    sets = scorer.rule(probs.astype(np.float32))
    notes = [f"{unscored_note(raw.failed, str(path))}."]
    nothing = np.zeros(probs.shape, bool)
    images = FileImages(Path(), raw.ids)
    table = LabelTable.from_arrays(names, images, nothing, nothing, name=str(path))
    return PhotoPool(Pool.of(probs, sets), table, tuple(notes[: raw.failed > 0]))


def holds_answers(path: Path) -> bool:
    """Return whether a file is one that ``labelwise predict`` wrote."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return {"path", "probs"} <= set(TABULAR[suffix](path).header)
    try:
        with path.open(encoding="utf-8") as stream:
            first = stream.readline()
        if suffix == ".csv":
            return first.startswith(",".join(ANSWER_COLUMNS) + ",")
        record = json.loads(first) if suffix == ".jsonl" else None
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "path" in record and bool({"probs", "error"} & set(record))


# Where photos of a table lie, one vector each: by a model, by a file of another program, or as
# the table's own features.


@dataclass(frozen=True, eq=False)
class PhotoVectors:
    """Vectors (N, D) in the order of a table; of a photo in ``unread`` (sentences) it is zeros."""

    vectors: NDArray[np.floating[Any]]
    unread: Sequence[str] = ()


def vectors_of_features(table: LabelTable) -> PhotoVectors:
    """Return the features of a table that holds some instead of photos, maps of them pooled."""
    if not isinstance(table.images, FeatureRows):
        raise TypeError(f"{table.name} must hold features, got {type(table.images).__name__}")
    features = np.asarray(table.images.features)
    return PhotoVectors(features.mean(axis=(2, 3)) if features.ndim == 4 else features)


def vectors_by_file(table: LabelTable, file: Path) -> PhotoVectors:
    """Return the vectors of an .npz file, found by the photos' ids."""
    found = read_embeddings(file)
    place = {name: row for row, name in enumerate(found.ids)}
    for name in table.ids:
        if name not in place:
            raise DataError(
                f"{file}: there is no vector of the photo {name!r} of {table.name}"
                f"{nearest(name, found.ids)}"
            )
    return PhotoVectors(found.vectors[[place[name] for name in table.ids]])


def vectors_by_model(table: LabelTable, model: Path, watch: Watch | None = None) -> PhotoVectors:
    """Return the embeddings of a model that has them."""
    scorer, watch = load_model(model), watch or Silent()
    if not isinstance(scorer, Embedder):
        raise SettingsError(
            f"{model} gives answers but no embeddings; name the run that it was exported from"
        )
    vectors: NDArray[np.float32] | None = None
    unread: list[str] = []
    watch.start("looking at photos", len(table))
    for part in score(scorer, table.images, embed=True):
        unread += [failure.reason for failure in part.failures]
        if part.embeddings is not None and len(part):
            if vectors is None:
                vectors = np.zeros((len(table), part.embeddings.shape[1]), np.float32)
            vectors[part.rows] = part.embeddings.numpy()
        watch.advance(len(part) + len(part.failures))
    watch.finish()
    if vectors is None:
        raise DataError(f"{table.name}: no photo can be read ({unread[0]})")
    return PhotoVectors(vectors, tuple(unread))

"""Near copies by vectors, one per photo: of a model, of another program's file, or features.

Vectors (N, D) are in the order of the table; of photos that cannot be read they are zeros, and
sentences say why.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.data.near_copies import GroupedTable, group_near_copies, group_near_vectors
from labelwise.errors import DataError, SettingsError
from labelwise.models import load_model
from labelwise.models.scoring import Embedder, score
from labelwise.pictures import FeatureRows
from labelwise.scores.embeddings import read_embeddings
from labelwise.system.progress import Silent, Watch
from labelwise.types import nearest

Vectors = tuple[NDArray[np.floating[Any]], Sequence[str]]


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
    features = isinstance(table.images, FeatureRows)
    if features and (model is not None or file is not None):
        raise SettingsError(
            f"{table.name} holds features, which are compared themselves; leave --model and "
            "--embeddings out"
        )
    if not features and model is None and file is None:
        if cosine is not None:
            raise SettingsError("--cosine is for --model and --embeddings; leave it out")
        return group_near_copies(table, watch)
    if cosine is None or not 0 < cosine <= 1:
        raise SettingsError(
            "say with --cosine from which on two photos are near copies, between 0 and 1, as 0.9; "
            f"what it means depends on the model (got {cosine})"
        )
    if file is not None:
        vectors, unread = vectors_by_file(table, file)
    elif model is not None:
        vectors, unread = vectors_by_model(table, model, watch)
    else:
        vectors, unread = vectors_of_features(table)
    return group_near_vectors(table, vectors, cosine, unread)


def vectors_of_features(table: LabelTable) -> Vectors:
    """Return the features of a table that holds some instead of photos, maps of them pooled."""
    if not isinstance(table.images, FeatureRows):
        raise TypeError(f"{table.name} must hold features, got {type(table.images).__name__}")
    features = np.asarray(table.images.features)
    return features.mean(axis=(2, 3)) if features.ndim == 4 else features, ()


def vectors_by_file(table: LabelTable, file: Path) -> Vectors:
    """Return the vectors of an .npz file, found by the photos' ids."""
    found = read_embeddings(file)
    place = {name: row for row, name in enumerate(found.ids)}
    for name in table.ids:
        if name not in place:
            raise DataError(
                f"{file}: there is no vector of the photo {name!r} of {table.name}"
                f"{nearest(name, found.ids)}"
            )
    return found.vectors[[place[name] for name in table.ids]], ()


def vectors_by_model(table: LabelTable, model: Path, watch: Watch | None = None) -> Vectors:
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
    return vectors, tuple(unread)

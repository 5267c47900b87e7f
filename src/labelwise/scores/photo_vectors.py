"""Where photos of a table lie, one vector each: by a model, by a file of another program, or as
the table's own features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data import LabelTable
from labelwise.errors import DataError, SettingsError
from labelwise.models import load_model
from labelwise.models.scoring import Embedder, score
from labelwise.pictures import FeatureRows
from labelwise.scores.embeddings import read_embeddings
from labelwise.system.progress import Silent, Watch
from labelwise.types import nearest


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

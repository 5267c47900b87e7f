"""How ``labelwise data near-copies`` compares photos: by look, by a model, or by embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.data import LabelTable
    from labelwise.data.near_copies import GroupedTable


def grouped_copies(
    table: "LabelTable", model: Path | None, vectors: Path | None, cosine: float | None
) -> "GroupedTable":
    """Return a table with its near copies as groups: by look, or by vectors of a given cosine."""
    from labelwise.data.near_copies import group_near_copies, group_near_vectors
    from labelwise.errors import SettingsError
    from labelwise.pictures import FeatureRows
    from labelwise.system.progress import make_watch

    if model is not None and vectors is not None:
        raise SettingsError("give --model or --embeddings, not both")
    features = isinstance(table.images, FeatureRows)
    if features and (model is not None or vectors is not None):
        raise SettingsError(
            f"{table.name} holds features, which are compared themselves; leave --model and "
            "--embeddings out"
        )
    if not features and model is None and vectors is None:
        if cosine is not None:
            raise SettingsError("--cosine is for --model and --embeddings; leave it out")
        return group_near_copies(table, make_watch())
    if cosine is None or not 0 < cosine <= 1:
        raise SettingsError(
            "say with --cosine from which on two photos are near copies, between 0 and 1, as 0.9; "
            f"what it means depends on the model (got {cosine})"
        )
    from labelwise.scores.photo_vectors import (
        vectors_by_file,
        vectors_by_model,
        vectors_of_features,
    )

    if vectors is not None:
        placed = vectors_by_file(table, vectors)
    elif model is not None:
        placed = vectors_by_model(table, model, make_watch())
    else:
        placed = vectors_of_features(table)
    return group_near_vectors(table, placed.vectors, cosine, placed.unread)

"""Embeddings of photos, and of texts, as they stand in .npz files.

    photos   features (N, D) or embeddings (N, D), ids (N,), and optionally labels (N, K) with NaN
             for unknown, observed (N, K), names (K,), split (N,)
    texts    embeddings (T, D), and names (T,): the label of each text; several texts of one label
             are normalised and averaged, as CLIP's prompts are

    score of a photo for a label = cosine of the photo and the label's mean text

A cosine is a raw score and no logit: CLIP multiplies it by about 100, SigLIP also adds about -10.
What they mean here is fitted on labels (``labelwise calibrate``).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.scores.tables import RawScores, npz_arrays, npz_texts
from labelwise.types import nearest

__all__ = [
    "Embeddings",
    "cosine_scores",
    "holds_vectors",
    "read_cosines",
    "read_embeddings",
    "read_texts",
]

PHOTO_ARRAYS = ("features", "embeddings", "ids", "id", "labels", "observed", "names", "split")
TEXT_ARRAYS = ("embeddings", "names", "prompts")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors (N, D) of photos; labels (N, K) with NaN for unknown, where the file has them."""

    source: str
    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    names: tuple[str, ...] | None = None
    labels: NDArray[np.float64] | None = None
    split: NDArray[np.str_] | None = None


def read_embeddings(path: Path) -> Embeddings:
    """Return the vectors of photos, and their labels if the file has any."""
    arrays = npz_arrays(path)
    _refuse_others(path, arrays, PHOTO_ARRAYS)
    vectors = _vectors(path, arrays, "features" if "features" in arrays else "embeddings")
    rows = len(vectors)
    ids = npz_texts(path, arrays, "ids" if "ids" in arrays else "id", rows)
    if ids is None:
        raise DataError(f"{path}: there is no array 'ids', which names the photos")
    if len(set(ids)) < rows:
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"{path}: id {twice!r} stands there twice")
    split = npz_texts(path, arrays, "split", rows)
    labels, names = arrays.get("labels"), None
    if labels is not None:
        if labels.ndim != 2 or len(labels) != rows or labels.dtype.kind not in "fiub":
            raise DataError(f"{path}: labels must be numbers ({rows}, K), got {labels.shape}")
        labels = labels.astype(np.float64)
        if not (np.isnan(labels) | ((labels >= 0) & (labels <= 1))).all():
            raise DataError(f"{path}: a label is 1, 0, a share in between, or NaN for unknown")
        if "observed" in arrays:
            if arrays["observed"].shape != labels.shape:
                raise DataError(f"{path}: observed must have the shape of labels, {labels.shape}")
            labels = np.where(arrays["observed"].astype(bool), labels, np.nan)
        names = npz_texts(path, arrays, "names", labels.shape[1])
        names = names or tuple(f"label-{column}" for column in range(labels.shape[1]))
    divided = None if split is None else np.array(split)
    return Embeddings(str(path), ids, vectors, names, labels, divided)


def read_texts(path: Path) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Return the labels of the texts, each once, and their unit vectors (K, D)."""
    arrays = npz_arrays(path)
    _refuse_others(path, arrays, TEXT_ARRAYS)
    vectors = _vectors(path, arrays, "embeddings")
    names = npz_texts(path, arrays, "names", len(vectors))
    if names is None:
        raise DataError(f"{path}: there is no array 'names', the label of each text")
    labels = tuple(dict.fromkeys(names))
    unit = _unit(path, vectors)
    places = np.array([labels.index(name) for name in names])
    means = np.stack([unit[places == column].mean(0) for column in range(len(labels))])
    return labels, _unit(path, means)


def cosine_scores(photos: Embeddings, texts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines (N, K) of photos and unit text vectors (K, D)."""
    if photos.vectors.shape[1] != texts.shape[1]:
        raise DataError(
            f"{photos.source}: vectors of photos and texts must have one length, "
            f"got {photos.vectors.shape[1]} and {texts.shape[1]}"
        )
    cosines: NDArray[np.float32] = _unit(photos.source, photos.vectors) @ texts.T
    return cosines


def read_cosines(path: Path, texts: Path) -> RawScores:
    """Return the cosines of a file of photos and a file of texts, with the labels of the first."""
    photos, (names, vectors) = read_embeddings(path), read_texts(texts)
    labels = photos.labels
    if labels is not None and photos.names is not None:
        missing = sorted(set(names) ^ set(photos.names))
        if missing:
            raise DataError(f"{path} and {texts} must have the same labels, not so {missing[0]!r}")
        labels = labels[:, [photos.names.index(name) for name in names]]
    split = None if photos.split is None else tuple(photos.split.tolist())
    scores = cosine_scores(photos, vectors).astype(np.float64)
    return RawScores(str(path), names, photos.ids, scores, labels, split).check_names()


def _unit(source: Path | str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (lengths > 0).all():
        row = int(np.flatnonzero(~(lengths[:, 0] > 0))[0]) + 1
        raise DataError(f"{source}: row {row} is all zeros, which has no direction")
    unit: NDArray[np.float32] = vectors / lengths
    return unit


def _vectors(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    value = arrays.get(name)
    if value is None:
        raise DataError(f"{path}: there is no array {name!r}{nearest(name, arrays)}")
    if value.ndim != 2 or value.dtype.kind != "f" or not len(value):
        raise DataError(f"{path}: {name} must be (rows, D) floats, got {value.dtype} {value.shape}")
    bad = ~np.isfinite(value).all(1)
    if bad.any():
        raise DataError(f"{path}: {name}: row {int(np.flatnonzero(bad)[0]) + 1} is not finite")
    return value.astype(np.float32)


def _refuse_others(path: Path, arrays: dict[str, NDArray[Any]], known: tuple[str, ...]) -> None:
    for name in arrays:
        if name not in known:
            raise DataError(f"{path}: unknown array {name!r}{nearest(name, known)}")


def holds_vectors(path: Path) -> bool:
    """Return whether a file is an .npz of vectors rather than of scores."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    return bool({"features", "embeddings"} & npz_arrays(path).keys())

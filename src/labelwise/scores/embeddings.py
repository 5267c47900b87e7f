"""Embeddings of photos, and of texts, as they stand in .npz files.

    photos   features (N, D) or embeddings (N, D), ids (N,), and optionally labels (N, K) with NaN
             for unknown, observed (N, K), names (K,), split (N,)
    texts    embeddings (T, D), and names (T,), the label of each text; or prompts (T,), the texts
             themselves, whose labels a file of prompts says; optionally logit_scale, logit_bias
    prompts  CSV or TSV with the columns label and prompt, one text per line

    score of a photo for a label = cosine of the photo and the mean of the label's unit texts

A cosine is a raw score and no logit: what it means is fitted on labels (``labelwise calibrate``).
SigLIP was trained so that logit_scale cosine + logit_bias is the logit of a text by itself: where a
file holds both numbers, the fit starts there. CLIP has no bias: its scale, here the number itself
and not its logarithm, changes nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError
from labelwise.scores.tables import places
from labelwise.tables.archives import Archive
from labelwise.tables.score_files import RawScores, refuse_twice
from labelwise.tables.tabular import read_csv_rows
from labelwise.types import matching_columns, nearest

PHOTO_ARRAYS = ("features", "embeddings", "ids", "id", "labels", "observed", "names", "split")
TEXT_ARRAYS = ("embeddings", "names", "prompts", "logit_scale", "logit_bias")


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
    archive = Archive(path, PHOTO_ARRAYS)
    vectors = archive.features("features" if "features" in archive else "embeddings", (None, None))
    rows = len(vectors)
    ids = archive.texts("ids" if "ids" in archive else "id", rows)
    if ids is None:
        raise DataError(f"{path}: there is no array 'ids', which names the photos")
    refuse_twice(path, ids, "id")
    split, names = archive.texts("split", rows), None
    labels = archive.labels((rows, None))
    if labels is not None:
        if not (np.isnan(labels) | ((labels >= 0) & (labels <= 1))).all():
            raise DataError(f"{path}: a label is 1, 0, a share in between, or NaN for unknown")
        names = archive.names(labels.shape[1])
    divided = None if split is None else np.array(split)
    return Embeddings(str(path), ids, vectors, names, labels, divided)


@dataclass(frozen=True, eq=False)
class Texts:
    """Labels with the unit vectors (K, D) of their texts, and what the model makes of a cosine."""

    names: tuple[str, ...]
    vectors: NDArray[np.float32]
    prompts: tuple[tuple[str, str], ...] = ()  # a label and a text of it, where they are known
    scale: float | None = None  # with a bias, if the model gives each text a logit of its own
    bias: float | None = None

    @property
    def gives_logits(self) -> bool:
        return self.scale is not None and self.bias is not None


def read_texts(path: Path, prompts: Path | None = None) -> Texts:
    """Return the labels with the means of their texts' unit vectors."""
    archive = Archive(path, TEXT_ARRAYS)
    unit = _unit(path, archive.features("embeddings", (None, None)))
    names, written = archive.texts("names", len(unit)), archive.texts("prompts", len(unit))
    if prompts is not None:
        if written is None:
            raise DataError(f"{path}: there is no array 'prompts', the texts of the embeddings")
        pairs = read_prompts(prompts)
        row_of = {text: row for row, text in reversed(list(enumerate(written)))}
        for line, _, text in pairs:
            if text not in row_of:
                lost = f"{text!r}{nearest(text, written)}"
                raise DataError(f"{prompts}, row {line}: {path} has no embedding of {lost}")
        _, names, written = zip(*pairs, strict=True)
        unit = unit[[row_of[text] for text in written]]
    if names is None:
        way = "or say with --prompts which label each of its prompts has"
        raise DataError(f"{path}: there is no array 'names', the label of each text; {way}")
    labels = tuple(dict.fromkeys(names))
    columns = places(names, labels)
    sums = np.zeros((len(labels), unit.shape[1]))
    np.add.at(sums, columns, unit)
    means = (sums / np.bincount(columns)[:, None]).astype(np.float32)
    scale, bias = _number(archive, "logit_scale"), _number(archive, "logit_bias")
    if scale is not None and scale <= 0:
        raise DataError(f"{path}: logit_scale must be positive, got {scale:g}")
    if bias is not None and scale is None:
        raise DataError(f"{path}: logit_bias needs a logit_scale beside it")
    pairs_used = () if written is None else tuple(zip(names, written, strict=True))
    return Texts(labels, _unit(path, means), pairs_used, scale, bias)


def read_prompts(path: Path) -> list[tuple[int, str, str]]:
    """Return row, label and text of each row of a table with the columns label and prompt."""
    prompts = []
    for number, row in enumerate(read_csv_rows(path, ("label", "prompt")), 1):
        label, prompt = row["label"], row["prompt"]
        if not label or not prompt or len(row) != 2:
            raise DataError(f"{path}, row {number}: a row must be a label and one text, got {row}")
        prompts.append((number, label, prompt))
    if not prompts:
        raise DataError(f"{path}: there are no prompts")
    return prompts


def _number(archive: Archive, name: str) -> float | None:
    if name not in archive:
        return None
    value = archive.arrays[name]
    if value.size != 1 or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        got = f"{value.dtype} {value.shape}"
        raise DataError(f"{archive.path}: {name} must be one number, got {got}")
    return float(value.reshape(()))


def read_cosines(path: Path, texts: Texts) -> RawScores:
    """Return the scores of a file of photos and texts, with the labels of the first."""
    photos, names = read_embeddings(path), texts.names
    labels = photos.labels
    if labels is not None and photos.names is not None:
        labels = labels[:, matching_columns(names, photos.names, of="the texts", in_=str(path))]
    split = None if photos.split is None else tuple(photos.split.tolist())
    if photos.vectors.shape[1] != texts.vectors.shape[1]:
        got = f"{photos.vectors.shape[1]} and {texts.vectors.shape[1]}"
        raise DataError(f"{path}: vectors of photos and texts must have one length, got {got}")
    scores = (_unit(path, photos.vectors) @ texts.vectors.T).astype(np.float64)
    if texts.scale is not None and texts.bias is not None:
        scores = texts.scale * scores + texts.bias
    return RawScores(str(path), names, photos.ids, scores, labels, split).check_names()


def _unit(source: Path | str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (lengths > 0).all():
        row = int(np.flatnonzero(~(lengths[:, 0] > 0))[0]) + 1
        raise DataError(f"{source}: row {row} is all zeros, which has no direction")
    unit: NDArray[np.float32] = vectors / lengths
    return unit


def holds_vectors(path: Path) -> bool:
    """Return whether a file is an .npz of vectors rather than of scores."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    return bool({"features", "embeddings"} & Archive(path).arrays.keys())

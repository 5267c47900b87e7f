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

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.text import from_cell
from labelwise.errors import DataError
from labelwise.scores.tables import places
from labelwise.tables.score_files import (
    RawScores,
    npz_arrays,
    npz_labels,
    npz_matrix,
    npz_texts,
    refuse_twice,
)
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
    arrays = npz_arrays(path, PHOTO_ARRAYS)
    vectors = _vectors(path, arrays, "features" if "features" in arrays else "embeddings")
    rows = len(vectors)
    ids = npz_texts(path, arrays, "ids" if "ids" in arrays else "id", rows)
    if ids is None:
        raise DataError(f"{path}: there is no array 'ids', which names the photos")
    refuse_twice(path, ids, "id")
    split = npz_texts(path, arrays, "split", rows)
    first, labels, names = npz_matrix(path, arrays, "labels"), None, None
    if first is not None:
        labels, names = npz_labels(path, arrays, (rows, first.shape[1]))
        if not (np.isnan(first) | ((first >= 0) & (first <= 1))).all():
            raise DataError(f"{path}: a label is 1, 0, a share in between, or NaN for unknown")
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
    arrays = npz_arrays(path, TEXT_ARRAYS)
    unit = _unit(path, _vectors(path, arrays, "embeddings"))
    names = npz_texts(path, arrays, "names", len(unit))
    written = npz_texts(path, arrays, "prompts", len(unit))
    if prompts is not None:
        if written is None:
            raise DataError(f"{path}: there is no array 'prompts', the texts of the embeddings")
        pairs = read_prompts(prompts)
        row_of = {text: row for row, text in reversed(list(enumerate(written)))}
        for line, _, text in pairs:
            if text not in row_of:
                lost = f"{text!r}{nearest(text, written)}"
                raise DataError(f"{prompts}, line {line}: {path} has no embedding of {lost}")
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
    scale, bias = _number(path, arrays, "logit_scale"), _number(path, arrays, "logit_bias")
    if scale is not None and scale <= 0:
        raise DataError(f"{path}: logit_scale must be positive, got {scale:g}")
    if bias is not None and scale is None:
        raise DataError(f"{path}: logit_bias needs a logit_scale beside it")
    pairs_used = () if written is None else tuple(zip(names, written, strict=True))
    return Texts(labels, _unit(path, means), pairs_used, scale, bias)


def read_prompts(path: Path) -> list[tuple[int, str, str]]:
    """Return line, label and text of each line of a CSV or TSV file ``label,prompt``."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        mark = "\t" if "\t" in text.partition("\n")[0] else ","
        lines = iter(list(csv.reader(text.splitlines(), delimiter=mark, skipinitialspace=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: the prompts cannot be read ({error})") from None
    header = [cell.strip().lower() for cell in next(lines, [])]
    if sorted(header) != ["label", "prompt"]:
        raise DataError(f"{path}, line 1: the columns must be label and prompt, got {header}")
    prompts = []
    for number, cells in enumerate(lines, 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            rule = f"a line must be a label and one text, got {cells}"
            raise DataError(f"{path}, line {number}: {rule}; put a text with a comma in quotes")
        row = dict(zip(header, map(str.strip, cells), strict=True))
        prompts.append((number, from_cell(row["label"]), from_cell(row["prompt"])))
    if not prompts:
        raise DataError(f"{path}: there are no prompts")
    return prompts


def _number(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> float | None:
    value = arrays.get(name)
    if value is None:
        return None
    if value.size != 1 or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise DataError(f"{path}: {name} must be one number, got {value.dtype} {value.shape}")
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


def holds_vectors(path: Path) -> bool:
    """Return whether a file is an .npz of vectors rather than of scores."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    return bool({"features", "embeddings"} & npz_arrays(path).keys())

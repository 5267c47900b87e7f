"""Features that are there already: an .npz file of arrays in the place of images.

    features      (N, D) numbers, or maps of them (N, D, h, w)
    labels        (N, K) 0 or 1, or a share between them where labels are soft
    label_names   (K,) texts
    observed      (N, K) 0 or 1, which labels are known; without it, all are
    split         (N,) train, val or test; may be left out, as may ``ids`` (N,), one text per row,
                  and ``group`` (N,), the patient, site or burst of each row

Nothing in the file is pickled. :func:`write_features` writes what the reader reads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np
from numpy.typing import NDArray

from labelwise.data.rows import require_file
from labelwise.data.table import SPLIT_WORDS, LabelTable
from labelwise.errors import DataError
from labelwise.pictures.memory import FeatureRows
from labelwise.system.files import replacing
from labelwise.system.text import first_line

NEEDED = ("features", "labels", "label_names")
OPTIONAL = ("observed", "split", "ids", "group")


def read_arrays(
    file: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file by name; those of ``optional`` only where they are there."""
    try:
        # Opened here: numpy leaves a file open that is not an archive.
        with (
            require_file(file).open("rb") as stream,
            np.load(stream, allow_pickle=False) as arrays,
        ):
            there = [name for name in optional if name in arrays]
            return {name: arrays[name] for name in (*needed, *there)}
    except (
        *(KeyError, ValueError, OSError, EOFError, SyntaxError, TypeError),
        *(BadZipFile, ZlibError, NotImplementedError),
    ) as error:
        listed = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise DataError(f"{file}: must be an .npz file of {listed} ({first_line(error)})") from None


def read_feature_file(path: Path) -> LabelTable:
    """Return the table of an .npz file of features and labels (see the module)."""
    arrays = read_arrays(path, NEEDED, OPTIONAL)
    features, labels = arrays["features"], arrays["labels"]
    for name, kinds, what in (
        *(("features", "fiu", "numbers"), ("labels", "fiub", "numbers")),
        *(("observed", "iub", "0 and 1"), ("label_names", "U", "texts")),
        *(("split", "U", "texts"), ("ids", "U", "texts"), ("group", "U", "texts")),
    ):
        if name in arrays and arrays[name].dtype.kind not in kinds:
            raise DataError(f"{path}: {name} must hold {what}, got {arrays[name].dtype}")
    if features.ndim not in (2, 4) or not features.size:
        raise DataError(f"{path}: features must be (N, D) or (N, D, h, w), got {features.shape}")
    names = [str(name) for name in arrays["label_names"].ravel()]
    shape, rows = (len(features), len(names)), (len(features),)
    expected = {"labels": shape, "observed": shape, "split": rows, "ids": rows, "group": rows}
    for name, wanted in expected.items():
        if name in arrays and arrays[name].shape != wanted:
            raise DataError(f"{path}: {name} must be {wanted}, got {arrays[name].shape}")
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(1))[0])
        raise DataError(f"{path}, row {row + 1}: features must be finite numbers")
    split = arrays.get("split")
    if split is not None:
        strange = [word for word in np.unique(split).tolist() if word.lower() not in SPLIT_WORDS]
        if strange:
            raise DataError(f"{path}: split must be train, val or test, got {strange[0]!r}")
        split = np.array([SPLIT_WORDS[word.lower()] for word in split.tolist()])
    ids = arrays["ids"].tolist() if "ids" in arrays else None
    observed = arrays.get("observed")
    if labels.dtype.kind != "f":
        known = np.ones(shape, np.bool_) if observed is None else observed != 0
        strange_labels = labels[known & (labels != 0) & (labels != 1)]
        if strange_labels.size:
            raise DataError(
                f"{path}: labels must lie in [0, 1] where they are observed, "
                f"got {strange_labels[0]}"
            )
    try:
        return LabelTable.from_arrays(
            names,
            FeatureRows(features.astype(np.float32, copy=False), ids),
            labels,
            None if observed is None else observed != 0,
            split=split,
            group=arrays["group"].tolist() if "group" in arrays else None,
            name=path.stem,
        )
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write_features(table: LabelTable, path: Path) -> None:
    """Write a table that holds features as an .npz file that :func:`read_feature_file` reads."""
    if not isinstance(table.images, FeatureRows):
        raise DataError(f"{table.name} holds images; only features are written to {path}")
    labels, observed = table.targets()
    arrays: dict[str, Any] = {
        "features": np.asarray(table.images.features),
        "labels": labels,
        "label_names": np.array(table.space.names),
        "ids": np.array(list(table.ids)),
    }
    arrays |= {} if observed is None else {"observed": observed}
    arrays |= {} if table.split is None else {"split": table.split}
    arrays |= {} if table.group is None else {"group": np.array(list(table.group))}
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)

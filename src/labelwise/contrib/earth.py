"""Aerial and satellite images with several labels: BigEarthNet v2 and UC Merced.

BigEarthNet v2 (reBEN): 480,038 patches of Sentinel-2, one TIFF per band and patch.

    metadata.parquet                           patch_id, labels (19 classes), split, ...
    BigEarthNet-S2/TILE/PATCH/PATCH_B02.tif    12 bands of 10, 20 and 60 m; train with --bands
    Reference_Maps/TILE/PATCH/PATCH_reference_map.tif

TILE is PATCH without its last two numbers. With ``labels=43`` a patch has the classes of CORINE
Land Cover that its reference map shows. Patches of one tile are a group; a tile that the published
splits divide is one group in each of them, and a note says so.

UC Merced: 2,100 aerial photos of 256 pixels; the 17 labels of Chaudhuri et al. (2018).

    Images/CLASS/CLASS00.tif, LandUse_Multilabeled.txt (columns by tabs)

Columns, splits and headers were compared with those that public programs for these sets read.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from labelwise.contrib import LABEL_NAMES
from labelwise.data.rows import from_rows, read_lines, require_file
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.pictures.multiband import open_cube
from labelwise.pictures.sources import read_image_file
from labelwise.system.table_files import read_parquet
from labelwise.system.text import counted

SPLITS = {"train": "train", "validation": "val", "test": "test"}
UNCLASSIFIED = (0, 335, 999)  # no data, glaciers (none of the 43), and what CORINE left open
CLASSES_19 = tuple(LABEL_NAMES["bigearthnet_19"])
CLASSES_43 = {int(code): name for code, name in LABEL_NAMES["corine"].items()}


def read_bigearthnet(
    path: Path,
    labels: Literal[19, 43] = 19,
    splits: Literal["published", "none"] = "published",
) -> LabelTable:
    """Return BigEarthNet v2: metadata.parquet beside BigEarthNet-S2, each patch a folder."""
    file = require_file(path / "metadata.parquet")
    wanted = ["patch_id", "split", *(["labels"] if labels == 19 else [])]
    table = read_parquet(file, wanted)
    absent = [name for name in wanted if name not in table.column_names]
    if absent:
        raise DataError(f"{file}: must have the columns {', '.join(wanted)}, lacks {absent[0]!r}")
    patches: list[str] = _texts(table.column("patch_id"), "patch_id", file)
    stated = _texts(table.column("split"), "split", file)
    for row, name in enumerate(stated):
        if name not in SPLITS:
            raise DataError(
                f"{file}, row {row + 1}: split must be one of {', '.join(SPLITS)}, got {name!r}"
            )
    split = [SPLITS[name] for name in stated]
    tiles = []
    for row, patch in enumerate(patches):
        tile, *numbers = patch.rsplit("_", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise DataError(
                f"{file}, row {row + 1}: patch_id must end in _ROW_COLUMN, got {patch!r}"
            )
        tiles.append(tile)
    names: Sequence[str] = CLASSES_19
    if labels == 19:
        rows = _texts(table.column("labels"), "labels", file, lists=True)
    else:
        names = list(CLASSES_43.values())
        with ThreadPoolExecutor() as pool:
            rows = list(pool.map(partial(_mapped, path), tiles, patches))
    images = [f"BigEarthNet-S2/{t}/{p}" for t, p in zip(tiles, patches, strict=True)]
    note = "each patch is a folder of bands: train with --bands, such as B02,B03,B04,B08"
    notes = [note]
    groups = tiles
    parts: dict[str, set[str]] = defaultdict(set)
    for tile, split_name in zip(tiles, split, strict=True):
        parts[tile].add(split_name)
    divided = sum(len(splits_of) > 1 for splits_of in parts.values())
    if splits == "published" and divided:  # a tile's part within one split is a group
        groups = [
            f"{tile} in {split_name}" if len(parts[tile]) > 1 else tile
            for tile, split_name in zip(tiles, split, strict=True)
        ]
        notes.append(
            f"the published splits divide {divided:,} of {counted(len(parts), 'tile')}, so that "
            "test patches lie beside training ones: a group is the part of a tile within its split "
            "(`--set splits=none` leaves them out; `labelwise data split` then keeps tiles whole)"
        )
    found = from_rows(
        (path, images),
        rows,
        names=names,
        split=split if splits == "published" else None,
        group=groups,
        name="bigearthnet",
    )
    return replace(found, notes=(*found.notes, *notes))


def _texts(column: Any, name: str, file: Path, *, lists: bool = False) -> list[Any]:
    """Return the texts of a column, or its lists of texts; every row must have one."""
    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if listed else column.type
    is_right = listed == lists and kind in (pa.string(), pa.large_string())
    if not is_right:
        what = "lists of texts" if lists else "texts"
        raise DataError(f"{file}: the column {name!r} must hold {what}, got {column.type}")
    values: list[Any] = column.to_pylist()
    for row, value in enumerate(values):
        if value is None or (lists and None in value):
            raise DataError(f"{file}, row {row + 1}: there is no {name!r}")
    return values


def _mapped(path: Path, tile: str, patch: str) -> list[str]:
    """Return the classes that the reference map of a patch shows."""
    file = path / "Reference_Maps" / tile / patch / f"{patch}_reference_map.tif"
    values = open_cube(read_image_file(file, str(file)), str(file)).values
    codes = [int(code) for code in np.unique(values) if int(code) not in UNCLASSIFIED]
    strange = [code for code in codes if code not in CLASSES_43]
    if strange:
        raise DataError(f"{file}: {strange[0]} is not a code of CORINE Land Cover")
    return [CLASSES_43[code] for code in codes]


def read_ucmerced(path: Path) -> LabelTable:
    """Return UC Merced with 17 labels: Images/, and LandUse_Multilabeled.txt."""
    file = path / "LandUse_Multilabeled.txt"
    header, *lines = [line.split("\t") for line in read_lines(file) if line.strip()] or [[]]
    names = [name.strip() for name in header[1:]]
    if not names:
        raise DataError(f"{file}: must begin with a line of labels between tabs")
    images, labels = [], []
    for number, (image, *states) in enumerate(lines, 2):
        states = [state.strip() for state in states]
        if len(states) != len(names) or not set(states) <= {"0", "1"}:
            raise DataError(
                f"{file}, line {number}: must be an image and {len(names)} numbers 0 or 1"
            )
        kind = image.strip().rstrip("0123456789")
        images.append(f"Images/{kind}/{image.strip()}.tif")
        labels.append([name for name, state in zip(names, states, strict=True) if state == "1"])
    return from_rows((path, images), labels, names=names, name="ucmerced")
